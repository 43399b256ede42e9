//! What the tests share: Refrain's server, and one that answers as it is told.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use refrain::{AllowedHosts, ServerBuilder, serve};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// Longer than anything here takes, and short enough to wait for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

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

/// Serves what is built until the test ends, and gives its URL.
pub(crate) async fn start(builder: ServerBuilder) -> String {
    let server = builder.build().expect("a usable server");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let never = std::future::pending();
    tokio::spawn(serve(listener, server, AllowedHosts::local(), never));
    url(address)
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/mcp")
}

/// A server that answers as it is told, and remembers what it was asked.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<(Parts, Value)>>>,
}

/// What to answer to a request: a result, an error, the whole body as it is, or that it is elsewhere.
pub(crate) enum Say {
    Result(Value),
    Error(i64, &'static str),
    Raw(u16, &'static str, String),
    Elsewhere(u16, String),
}

impl Told {
    /// Answers `server/discover` by itself, and everything else as it is told.
    pub(crate) async fn start(answer: impl Fn(&Value) -> Say + Send + Sync + 'static) -> Self {
        Self::start_raw(move |request| match request["method"].as_str() {
            Some("server/discover") => Say::Result(json!({
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "told", "version": "1"}},
            })),
            _ => answer(request),
        })
        .await
    }

    /// Answers everything as it is told.
    pub(crate) async fn start_raw(answer: impl Fn(&Value) -> Say + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests: Arc<Mutex<Vec<(Parts, Value)>>> = Arc::default();
        let (answer, seen) = (Arc::new(answer), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.expect("a body");
                        let body: Value =
                            serde_json::from_slice(&body.to_bytes()).expect("a message");
                        seen.lock().expect("no panic").push((head, body.clone()));
                        Ok::<_, Infallible>(written(&body, answer(&body)))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self {
            url: url(address),
            requests,
        }
    }

    /// What it was asked by this method, in order.
    pub(crate) fn requests(&self, method: &str) -> Vec<Value> {
        let all = self.messages().into_iter();
        let of_method = all.filter(|(_, request)| request["method"] == method);
        of_method.map(|(_, request)| request).collect()
    }

    /// Everything it was sent, in order.
    pub(crate) fn messages(&self) -> Vec<(Parts, Value)> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn written(request: &Value, say: Say) -> Response<Full<Bytes>> {
    let id = &request["id"];
    let mut response = Response::builder();
    let (status, kind, body) = match say {
        Say::Result(result) => {
            let body = json!({"jsonrpc": "2.0", "id": id, "result": result});
            (200, "application/json", body.to_string())
        }
        Say::Error(code, message) => {
            let error = json!({"code": code, "message": message});
            let body = json!({"jsonrpc": "2.0", "id": id, "error": error});
            (400, "application/json", body.to_string())
        }
        Say::Raw(status, kind, body) => (status, kind, body),
        Say::Elsewhere(status, url) => {
            response = response.header("location", url);
            (status, "text/plain", String::new())
        }
    };
    response
        .status(status)
        .header("content-type", kind)
        .body(Full::from(body))
        .expect("a response")
}

/// A form with these properties, none of them required.
pub(crate) fn form(message: &str, properties: Value) -> Value {
    let mut schema = json!({"type": "object"});
    schema["properties"] = properties;
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

/// A result that asks.
pub(crate) fn asks(asks: Value, state: Option<&str>) -> Say {
    let mut result = json!({"resultType": "input_required"});
    result["inputRequests"] = asks;
    if let Some(state) = state {
        result["requestState"] = state.into();
    }
    Say::Result(result)
}

/// A result that is one text.
pub(crate) fn done(text: &str) -> Say {
    let content = json!([{"type": "text", "text": text}]);
    Say::Result(json!({"resultType": "complete", "content": content}))
}

/// A stream of these messages; those without a name are the response.
pub(crate) fn stream(request: &Value, messages: &[Value]) -> Say {
    let events = messages.iter().map(|message| {
        let mut message = message.clone();
        message["jsonrpc"] = "2.0".into();
        if message.get("method").is_none() {
            message["id"] = request["id"].clone();
        }
        format!("event: message\ndata: {message}\n\n")
    });
    let body = std::iter::once(": still here\n\n".to_owned()).chain(events);
    Say::Raw(200, "text/event-stream", body.collect())
}
