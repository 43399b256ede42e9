//! An MCP server whose responses come from a closure. It records the requests.

use super::http_server::{Body, CannedResponse, respond_events, serve_http};
use super::{listen, until, url_of};
use hyper::header::HeaderMap;
use hyper::{Method, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use url::form_urlencoded;

/// A request that the server received. Dereferences to its JSON-RPC message.
#[derive(Debug, Clone)]
pub struct Received {
    pub verb: Method,
    pub path: String,
    pub headers: HeaderMap,
    /// The parameters of the query or of the form.
    pub params: HashMap<String, String>,
    /// Null if the body is not JSON.
    pub message: Value,
}

impl Deref for Received {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.message
    }
}

impl Received {
    pub fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn tool(&self) -> &str {
        self.message["params"]["name"].as_str().unwrap_or_default()
    }

    pub fn result(&self, result: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": self.message["id"], "result": result})
    }

    pub fn text(&self, text: &str) -> Value {
        self.result(&json!({"content": [{"type": "text", "text": text}]}))
    }

    pub fn error(&self, code: i64, message: &str, data: &Value) -> Value {
        let mut reply = json!({"jsonrpc": "2.0", "id": self.message["id"]});
        reply["error"] = json!({"code": code, "message": message, "data": data});
        reply
    }
}

/// The response to a request. Numbers are HTTP statuses, except the JSON-RPC code of an error, whose status is 400.
pub enum Respond {
    Result(Value),
    Error(i64, &'static str),
    Status(u16),
    /// A status, a content type and a body.
    Raw(u16, &'static str, String),
    Json(u16, Value),
    /// A message, and the id of the session that it opens.
    Session(Value, &'static str),
    Redirect(u16, String),
    /// A status, and the seconds of `Retry-After`.
    RetryAfter(u16, &'static str),
    With(CannedResponse),
    /// The response, once the value is true or its sender is dropped.
    When(watch::Receiver<bool>, CannedResponse),
    /// An event stream; it ends with the sender.
    Events(mpsc::UnboundedReceiver<io::Result<String>>),
}

impl Respond {
    pub fn text(text: &str) -> Self {
        let content = json!([{"type": "text", "text": text}]);
        Self::Result(json!({"resultType": "complete", "content": content}))
    }

    pub fn asks(asks: Value, state: Option<&str>) -> Self {
        let mut result = json!({"resultType": "input_required"});
        result["inputRequests"] = asks;
        if let Some(state) = state {
            result["requestState"] = state.into();
        }
        Self::Result(result)
    }

    /// A complete event stream of these messages. Messages without a method are the response to the request.
    pub fn stream(request: &Value, messages: &[Value]) -> Self {
        let events = messages.iter().map(|message| {
            let mut message = message.clone();
            message["jsonrpc"] = "2.0".into();
            if message.get("method").is_none() {
                message["id"] = request["id"].clone();
            }
            format!("event: message\ndata: {message}\n\n")
        });
        let body = std::iter::once(": still here\n\n".to_owned()).chain(events);
        Self::Raw(200, "text/event-stream", body.collect())
    }

    /// The start of an event stream, after which the connection breaks.
    pub fn cut(start: &str) -> Self {
        let (events, stream) = Events::new();
        let broken = io::ErrorKind::ConnectionReset.into();
        events.send(Ok(start.to_owned()));
        events.send(Err(broken));
        stream
    }

    async fn into_response(self, request: &Received) -> Response<Body> {
        let answer = match self {
            Self::Result(result) => CannedResponse::json(200, &request.result(&result)),
            Self::Error(code, message) => {
                let error = json!({"code": code, "message": message});
                let id = &request["id"];
                CannedResponse::json(400, &json!({"jsonrpc": "2.0", "id": id, "error": error}))
            }
            Self::Status(status) => CannedResponse::new(status),
            Self::Raw(status, kind, body) => CannedResponse::new(status)
                .header("content-type", kind)
                .body(body),
            Self::Json(status, message) => CannedResponse::json(status, &message),
            Self::Session(message, id) => {
                CannedResponse::json(200, &message).header("mcp-session-id", id)
            }
            Self::Redirect(status, url) => CannedResponse::new(status).header("location", url),
            Self::RetryAfter(status, seconds) => {
                let answer = CannedResponse::new(status).header("retry-after", seconds);
                answer.header("content-type", "text/plain").body("later")
            }
            Self::With(answer) => answer,
            Self::When(mut gate, answer) => {
                let _ = gate.wait_for(|is_open| *is_open).await;
                answer
            }
            Self::Events(events) => return respond_events(events),
        };
        answer.into_response()
    }
}

/// The sending end of an event stream.
pub struct Events(mpsc::UnboundedSender<io::Result<String>>);

impl Events {
    /// A stream, and the response that carries it.
    pub fn new() -> (Self, Respond) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), Respond::Events(receiver))
    }

    pub fn message(&self, message: &Value) {
        self.event(&format!("data: {message}"));
    }

    /// Sends the text of an event unchanged.
    pub fn event(&self, event: &str) {
        self.send(Ok(format!("{event}\n\n")));
    }

    fn send(&self, event: io::Result<String>) {
        // The client may have closed the stream.
        let _ = self.0.send(event);
    }

    pub fn ask(&self, id: &str, method: &str, params: &Value) {
        self.message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    /// Sends a message once the server has received a request for which the condition holds.
    pub fn after(
        self,
        server: &FakeServer,
        condition: impl Fn(&Received) -> bool + Send + Sync + 'static,
        message: Value,
    ) {
        let server = server.clone();
        tokio::spawn(async move {
            let expected = "the condition of a message";
            server.receives(expected, condition).await;
            self.message(&message);
        });
    }

    /// Waits until the client closes the stream.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Keeps the stream open until the test ends.
    pub fn stays_open(self) {
        tokio::spawn(async move {
            std::future::pending::<()>().await;
            drop(self);
        });
    }
}

/// The server. Clones are the same server.
#[derive(Clone)]
pub struct FakeServer {
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl FakeServer {
    /// A server of 2026-07-28 that answers `server/discover`; the closure answers everything else.
    pub async fn start(respond: impl Fn(&Received) -> Respond + Send + Sync + 'static) -> Self {
        Self::start_raw(move |request| match request.method() {
            "server/discover" => Respond::Result(json!({
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}},
            })),
            _ => respond(request),
        })
        .await
    }

    /// A server whose closure answers everything.
    pub async fn start_raw(respond: impl Fn(&Received) -> Respond + Send + Sync + 'static) -> Self {
        Self::start_with(move |request, _| respond(request)).await
    }

    /// A server whose closure answers everything and gets the server itself.
    pub async fn start_with(
        respond: impl Fn(&Received, &Self) -> Respond + Send + Sync + 'static,
    ) -> Self {
        let listener = listen().await;
        let server = Self {
            url: url_of(&listener),
            received: Arc::default(),
        };
        let fake = server.clone();
        serve_http(listener, None, move |request| {
            let (head, body) = request.into_parts();
            let params = head.uri.query().map_or(&body[..], str::as_bytes);
            let request = Received {
                verb: head.method,
                path: head.uri.path().to_owned(),
                headers: head.headers,
                params: form_urlencoded::parse(params).into_owned().collect(),
                message: serde_json::from_slice(&body).unwrap_or_default(),
            };
            fake.received.lock().push(request.clone());
            let respond = respond(&request, &fake);
            async move { respond.into_response(&request).await }
        });
        server
    }

    /// A server of 2025-11-25 with the session `s1` and without a GET stream. The closure answers calls.
    pub async fn legacy(
        respond: impl Fn(&Received, &Self) -> Respond + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(move |request, server| {
            let greeting = legacy_greeting(request, "2025-11-25", "s1");
            greeting.unwrap_or_else(|| respond(request, server))
        })
        .await
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub fn all(&self) -> Vec<Received> {
        self.received.lock().clone()
    }

    pub fn requests(&self, method: &str) -> Vec<Value> {
        let requests = self.received(|request| request.method() == method);
        requests
            .into_iter()
            .map(|request| request.message)
            .collect()
    }

    pub fn count(&self, method: &str) -> usize {
        self.requests(method).len()
    }

    pub fn received(&self, condition: impl Fn(&Received) -> bool) -> Vec<Received> {
        let mut received = self.all();
        received.retain(condition);
        received
    }

    /// Waits for a request for which the condition holds. `what` names it in the panic message.
    pub async fn receives(&self, what: &str, condition: impl Fn(&Received) -> bool) -> Received {
        until(what, || !self.received(&condition).is_empty()).await;
        self.received(condition).remove(0)
    }
}

/// The response of a legacy server to a request that is not a call.
pub fn legacy_greeting(
    request: &Received,
    version: &str,
    session: &'static str,
) -> Option<Respond> {
    let is_response = request.get("result").or(request.get("error")).is_some();
    Some(match (request.verb.as_str(), request.method()) {
        ("GET", _) => Respond::Status(405),
        ("DELETE", _) => Respond::Status(200),
        (_, "server/discover") => {
            let text = "Bad Request: Server not initialized";
            Respond::Json(400, request.error(-32000, text, &Value::Null))
        }
        (_, "initialize") => {
            let greeting = json!({
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            });
            Respond::Session(request.result(&greeting), session)
        }
        (_, method) if method.starts_with("notifications/") => Respond::Status(202),
        _ if is_response => Respond::Status(202),
        _ => return None,
    })
}
