//! What the tests share: an older server behind a pipe, and one behind HTTP that answers as it is told.

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use refrain_client::{Client, ClientBuilder, Error};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Longer than anything here takes, and short enough to wait for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits, but not for ever.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    within(what, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The command of the server in Python. See there for what it is told.
pub(crate) fn python(told: &[&str]) -> Command {
    python_of("server.py", told)
}

/// The command of another server in Python.
pub(crate) fn python_of(script: &str, told: &[&str]) -> Command {
    let mut command = Command::new("python3");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/older");
    let script = scripts.join(script);
    command.arg(script).args(told);
    command
}

/// Starts the server in Python.
pub(crate) async fn spawn(builder: ClientBuilder, told: &[&str]) -> Result<Client, Error> {
    within("the server", builder.spawn(python(told))).await
}

/// Calls a tool without arguments, and gives the JSON in the text of its result.
pub(crate) async fn called(client: &Client, tool: &str) -> Result<Value, Error> {
    let result = within(tool, client.call_tool(tool, json!({}))).await?;
    let result = json!(result);
    let text = result["content"][0]["text"].as_str().expect("a text");
    Ok(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) verb: Method,
    pub(crate) headers: HeaderMap,
    /// The message; null where there is none.
    pub(crate) message: Value,
}

impl Seen {
    pub(crate) fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn tool(&self) -> &str {
        self.message["params"]["name"].as_str().unwrap_or_default()
    }

    /// The response that carries this result.
    pub(crate) fn result(&self, result: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": self.message["id"], "result": result})
    }

    /// The response with a result that is one text.
    pub(crate) fn text(&self, text: &str) -> Value {
        self.result(&json!({"content": [{"type": "text", "text": text}]}))
    }

    /// The response that carries this error.
    pub(crate) fn error(&self, code: i64, message: &str, data: &Value) -> Value {
        let error = json!({"code": code, "message": message, "data": data});
        json!({"jsonrpc": "2.0", "id": self.message["id"], "error": error})
    }
}

/// What the server behind HTTP says.
pub(crate) enum Say {
    /// A status and nothing else.
    Status(u16),
    /// A status, and that it is to be tried again at once.
    Later(u16),
    /// A status and a text.
    Text(u16, &'static str),
    /// A message.
    Json(u16, Value),
    /// A message, and the id of a new session.
    Opened(Value, &'static str),
    /// Events, as they come. The stream ends with the sender.
    Events(mpsc::UnboundedReceiver<String>),
}

/// Events that are written by hand.
pub(crate) struct Writer(mpsc::UnboundedSender<String>);

impl Writer {
    pub(crate) fn new() -> (Self, Say) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), Say::Events(receiver))
    }

    /// Writes one message.
    pub(crate) fn message(&self, message: &Value) {
        self.event(&format!("data: {message}"));
    }

    /// Writes an event as it is.
    pub(crate) fn event(&self, event: &str) {
        self.0.send(format!("{event}\n\n")).ok();
    }

    /// Writes this as soon as the server has seen what it waits for.
    pub(crate) fn after(
        self,
        told: &Told,
        is_so: impl Fn(&Seen) -> bool + Send + Sync + 'static,
        message: Value,
    ) {
        let told = told.clone();
        tokio::spawn(async move {
            told.sees("what it waits for", is_so).await;
            self.message(&message);
        });
    }

    /// Leaves the stream open until the test ends.
    pub(crate) fn stays_open(self) {
        tokio::spawn(async move {
            std::future::pending::<()>().await;
            drop(self);
        });
    }

    /// Asks the client something.
    pub(crate) fn ask(&self, id: &str, method: &str, params: &Value) {
        self.message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }
}

/// A form that wants one text.
pub(crate) fn form(message: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"b": {"type": "string"}}});
    json!({"message": message, "requestedSchema": schema})
}

/// A server behind HTTP that answers as it is told, and remembers what it was asked.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Told {
    /// Answers everything as it is told.
    pub(crate) async fn start(say: impl Fn(&Seen, &Self) -> Say + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let told = Self {
            url: format!("http://{address}/mcp"),
            seen: Arc::default(),
        };
        let (say, server) = (Arc::new(say), told.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (say, told) = (Arc::clone(&say), server.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (say, told) = (Arc::clone(&say), told.clone());
                    async move {
                        let seen = see(request).await;
                        told.seen.lock().expect("no panic").push(seen.clone());
                        Ok::<_, Infallible>(written(say(&seen, &told)))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        told
    }

    /// An older server with the session `s1`, and no stream beside the calls. Calls are answered as it is told.
    pub(crate) async fn older(say: impl Fn(&Seen, &Self) -> Say + Send + Sync + 'static) -> Self {
        Self::start(move |seen, told| {
            let greeting = greet(seen, "2025-11-25", "s1");
            greeting.unwrap_or_else(|| say(seen, told))
        })
        .await
    }

    /// What it saw that is so.
    pub(crate) fn seen(&self, is_so: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let seen = self.seen.lock().expect("no panic");
        seen.iter().filter(|seen| is_so(seen)).cloned().collect()
    }

    /// Waits until it saw something that is so, and gives it.
    pub(crate) async fn sees(&self, what: &str, is_so: impl Fn(&Seen) -> bool) -> Seen {
        until(what, || !self.seen(&is_so).is_empty()).await;
        self.seen(is_so).remove(0)
    }
}

/// What an older server says before any call, and to what is no call.
pub(crate) fn greet(seen: &Seen, version: &str, session: &'static str) -> Option<Say> {
    let is_response = seen.message.get("result").or(seen.message.get("error"));
    Some(match (seen.verb.as_str(), seen.method()) {
        ("GET", _) => Say::Status(405),
        ("DELETE", _) => Say::Status(200),
        (_, "server/discover") => Say::Json(
            400,
            seen.error(-32000, "Bad Request: Server not initialized", &Value::Null),
        ),
        (_, "initialize") => {
            let greeting = json!({
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            });
            Say::Opened(seen.result(&greeting), session)
        }
        (_, method) if method.starts_with("notifications/") => Say::Status(202),
        _ if is_response.is_some() => Say::Status(202),
        _ => return None,
    })
}

async fn see(request: Request<Incoming>) -> Seen {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    Seen {
        verb: head.method,
        headers: head.headers,
        message: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

fn written(say: Say) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let response = Response::builder();
    let json = "application/json";
    let (response, body) = match say {
        Say::Status(status) => (response.status(status), String::new()),
        Say::Later(status) => (
            response.status(status).header("retry-after", "0"),
            String::new(),
        ),
        Say::Text(status, text) => (
            response.status(status).header("content-type", "text/html"),
            text.to_owned(),
        ),
        Say::Json(status, message) => (
            response.status(status).header("content-type", json),
            message.to_string(),
        ),
        Say::Opened(message, session) => (
            response
                .header("content-type", json)
                .header("mcp-session-id", session),
            message.to_string(),
        ),
        Say::Events(events) => {
            let pieces = stream::unfold(events, |mut events| async {
                let piece = events.recv().await?;
                Some((Ok(Frame::data(Bytes::from(piece))), events))
            });
            return response
                .header("content-type", "text/event-stream")
                .body(StreamBody::new(pieces).boxed_unsync())
                .expect("a response");
        }
    };
    let body = Full::from(body).boxed_unsync();
    response.body(body).expect("a response")
}
