//! An older client over HTTP: a session, and messages in it.

use super::{Connection, Instance, Response, within};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A session as its client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    address: SocketAddr,
    headers: Vec<(String, String)>,
}

/// One event of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) id: String,
    /// `None` in one that only says where the stream begins.
    pub(crate) message: Option<Value>,
}

/// A message that opens a session.
pub(crate) fn initialize(revision: &str, capabilities: &Value) -> Value {
    let params = json!({
        "protocolVersion": revision,
        "capabilities": capabilities,
        "clientInfo": {"name": "older", "version": "1"},
    });
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

pub(crate) fn request(id: u32, method: &str, params: Value) -> Value {
    let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method});
    request["params"] = params;
    request
}

pub(crate) fn call(id: u32, tool: &str, arguments: Value) -> Value {
    let mut params = json!({"name": tool});
    params["arguments"] = arguments;
    request(id, "tools/call", params)
}

/// What a person filled in, as the response to what was asked.
pub(crate) fn filled_in(asked: &Value, name: &str) -> Value {
    let result = json!({"action": "accept", "content": {"name": name}});
    json!({"jsonrpc": "2.0", "id": asked["id"], "result": result})
}

impl Session {
    /// Opens a session of 2025-11-25 whose client can do everything.
    pub(crate) async fn open(instance: &Instance) -> Self {
        let all =
            json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}});
        Self::open_with(instance, "2025-11-25", &all, &[]).await
    }

    pub(crate) async fn open_with(
        instance: &Instance,
        revision: &str,
        capabilities: &Value,
        headers: &[(&str, &str)],
    ) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut session = Self {
            id: String::new(),
            address: instance.address,
            headers: headers.iter().map(owned).collect(),
        };
        let opened = session.post(&initialize(revision, capabilities)).await;
        assert_eq!(opened.status, 200, "{opened:?}");
        let id = opened.header("mcp-session-id").expect("a session");
        session.id = id.to_owned();
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(session.post(&ready).await.status, 202);
        session
    }

    /// The same session, at another instance.
    pub(crate) fn at(&self, instance: &Instance) -> Self {
        Self {
            address: instance.address,
            ..self.clone()
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, for a caller with this token.
    pub(crate) fn bearer(mut self, token: &str) -> Self {
        self.headers.retain(|(name, _)| name != "Authorization");
        self.header("Authorization", &format!("Bearer {token}"))
    }

    async fn send(&self, method: &str, body: &[u8]) -> Connection {
        let mut connection = Connection::open(self.address).await;
        let mut head = format!("{method} /mcp HTTP/1.1\r\nHost: {}\r\n", self.address);
        let mut add = |name: &str, value: &str| {
            head.push_str(name);
            head.push_str(": ");
            head.push_str(value);
            head.push_str("\r\n");
        };
        add("Accept", "application/json, text/event-stream");
        if method == "POST" {
            add("Content-Type", "application/json");
            add("Content-Length", &body.len().to_string());
        }
        if !self.id.is_empty() {
            add("Mcp-Session-Id", &self.id);
        }
        for (name, value) in &self.headers {
            add(name, value);
        }
        head.push_str("\r\n");
        connection.write(head.as_bytes()).await;
        connection.write(body).await;
        connection
    }

    /// Posts a message and reads the whole response, which has to come to an end.
    pub(crate) async fn post(&self, message: &Value) -> Response {
        let body = message.to_string();
        self.send("POST", body.as_bytes()).await.response().await
    }

    /// The result of a request that is answered with one object.
    pub(crate) async fn result(&self, message: &Value) -> Value {
        let reply = self.post(message).await.reply();
        reply
            .get("result")
            .unwrap_or_else(|| panic!("no result in {reply}"))
            .clone()
    }

    /// Posts a message that is answered with a stream.
    pub(crate) async fn stream(&self, message: &Value) -> Stream {
        let body = message.to_string();
        Stream::of(self.send("POST", body.as_bytes()).await).await
    }

    pub(crate) async fn get(&self) -> Stream {
        Stream::of(self.send("GET", b"").await).await
    }

    /// Takes a stream up again after this event.
    pub(crate) async fn resume(&self, after: &str) -> Stream {
        let session = self.clone().header("Last-Event-ID", after);
        session.get().await
    }

    pub(crate) async fn refused(&self, method: &str) -> Response {
        self.send(method, b"").await.response().await
    }

    /// Is a GET answered with a stream?
    pub(crate) async fn refused_or_stream(&self) -> bool {
        self.send("GET", b"").await.head().await.status == 200
    }

    pub(crate) async fn delete(&self) -> Response {
        self.refused("DELETE").await
    }
}

/// A stream of events.
pub(crate) struct Stream(pub(crate) Connection);

impl Stream {
    async fn of(mut connection: Connection) -> Self {
        let head = connection.head().await;
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        Self(connection)
    }

    /// The next event. `None` at the end of the stream.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            let piece = self.0.piece().await?;
            if piece.starts_with(':') {
                continue;
            }
            let line = |name: &str| {
                let mut lines = piece.lines();
                lines
                    .find_map(|line| line.strip_prefix(name))
                    .map(str::trim)
            };
            let data = line("data:").expect("data");
            return Some(Event {
                id: line("id:").expect("an id").to_owned(),
                message: (!data.is_empty()).then(|| serde_json::from_str(data).expect("JSON")),
            });
        }
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> Value {
        let next = async {
            loop {
                let event = self.event().await.expect("another message");
                if let Some(message) = event.message {
                    return message;
                }
            }
        };
        within("a message", next).await
    }

    /// All messages up to the end.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(event) = within("the end", self.event()).await {
            rest.extend(event.message);
        }
        rest
    }
}
