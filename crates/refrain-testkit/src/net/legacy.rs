//! A client of a legacy revision over HTTP: a session and its streams.

use super::{Connection, Instance, Request, Response, result, within};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Debug)]
pub struct Session {
    pub id: String,
    address: SocketAddr,
    /// The address of the client, if it is not the default one.
    local: Option<IpAddr>,
    headers: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub id: String,
    /// `None` for the event without data at the start of a stream.
    pub message: Option<Value>,
}

/// The message that opens a session.
pub fn initialize(revision: &str, capabilities: &Value) -> Value {
    let params = json!({
        "protocolVersion": revision,
        "capabilities": capabilities,
        "clientInfo": {"name": "legacy", "version": "1"},
    });
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

pub fn request(id: u32, method: &str, params: Value) -> Value {
    let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method});
    request["params"] = params;
    request
}

pub fn call(id: u32, tool: &str, arguments: Value) -> Value {
    let mut params = json!({"name": tool});
    params["arguments"] = arguments;
    request(id, "tools/call", params)
}

/// The response to an ask for a form, accepted with this name.
pub fn filled_in(asked: &Value, name: &str) -> Value {
    let result = json!({"action": "accept", "content": {"name": name}});
    json!({"jsonrpc": "2.0", "id": asked["id"], "result": result})
}

impl Session {
    /// Opens a session of 2025-11-25 with all capabilities.
    pub async fn open(instance: &Instance) -> Self {
        let all =
            json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}});
        Self::open_with(instance.address, "2025-11-25", &all, &[]).await
    }

    pub async fn open_with(
        address: SocketAddr,
        revision: &str,
        capabilities: &Value,
        headers: &[(&str, &str)],
    ) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut session = Self {
            id: String::new(),
            address,
            local: None,
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
    pub fn at(&self, instance: &Instance) -> Self {
        Self {
            address: instance.address,
            ..self.clone()
        }
    }

    /// The same session, used from this loopback address.
    pub fn from_address(mut self, local: IpAddr) -> Self {
        self.local = Some(local);
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same session, with this access token.
    pub fn bearer(mut self, token: &str) -> Self {
        self.headers.retain(|(name, _)| name != "Authorization");
        self.header("Authorization", &format!("Bearer {token}"))
    }

    async fn send(&self, verb: &'static str, body: &str) -> Connection {
        let mut request = match verb {
            "POST" => Request::post("/mcp", body),
            _ => Request::plain(verb, "/mcp", [])
                .header("Accept", "application/json, text/event-stream"),
        };
        if !self.id.is_empty() {
            request = request.header("Mcp-Session-Id", &self.id);
        }
        for (name, value) in &self.headers {
            request = request.second_header(name, value);
        }
        let mut connection = match self.local {
            Some(local) => Connection::open_from(local, self.address).await,
            None => Connection::open(self.address).await,
        };
        connection.send(&request).await;
        connection
    }

    /// Posts a message without reading the response.
    pub async fn begin(&self, message: &Value) -> Connection {
        self.send("POST", &message.to_string()).await
    }

    pub async fn post(&self, message: &Value) -> Response {
        let message = message.to_string();
        self.send("POST", &message).await.response().await
    }

    /// The result of a request that is answered with JSON.
    pub async fn result(&self, message: &Value) -> Value {
        let reply = self.post(message).await.reply();
        result(&reply).clone()
    }

    /// Posts a message that is answered with an event stream.
    pub async fn stream(&self, message: &Value) -> Stream {
        Stream::of(self.send("POST", &message.to_string()).await).await
    }

    pub async fn get(&self) -> Stream {
        Stream::of(self.send("GET", "").await).await
    }

    /// Resumes a stream after this event.
    pub async fn resume(&self, after: &str) -> Stream {
        let session = self.clone().header("Last-Event-ID", after);
        session.get().await
    }

    /// Sends a request without a body.
    pub async fn send_empty(&self, verb: &'static str) -> Response {
        self.send(verb, "").await.response().await
    }

    pub async fn get_opens_stream(&self) -> bool {
        self.send("GET", "").await.head().await.status == 200
    }

    pub async fn delete(&self) -> Response {
        self.send_empty("DELETE").await
    }
}

pub struct Stream(pub Connection);

impl Stream {
    async fn of(mut connection: Connection) -> Self {
        let head = connection.head().await;
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        Self(connection)
    }

    /// The next event. `None` at the end of the stream.
    pub async fn event(&mut self) -> Option<Event> {
        let mut block = self.0.block().await?;
        while block.starts_with(':') {
            block = self.0.block().await?;
        }
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let data = field("data:").expect("data").trim();
        Some(Event {
            id: field("id:").expect("an id").trim().to_owned(),
            message: (!data.is_empty()).then(|| serde_json::from_str(data).expect("JSON")),
        })
    }

    pub async fn next(&mut self) -> Value {
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

    pub async fn rest(&mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(event) = within("the end", self.event()).await {
            rest.extend(event.message);
        }
        rest
    }
}
