//! HTTP requests, well-formed until a test changes them.

use serde_json::{Map, Value, json};

pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
pub const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
pub const CLIENT_INFO_KEY: &str = "io.modelcontextprotocol/clientInfo";
pub const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A request: an MCP message of 2026-07-28, or any bytes.
#[derive(Clone, Debug)]
pub struct Request {
    verb: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    id: Value,
    method: String,
    params: Map<String, Value>,
    /// Replaces the message.
    body: Option<Vec<u8>>,
    chunked: bool,
}

impl Request {
    /// A request without a message: only `Host` and, for a body, its length are added to the headers.
    pub fn plain(verb: &'static str, path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            verb,
            path: path.to_owned(),
            headers: Vec::new(),
            id: json!(1),
            method: String::new(),
            params: Map::new(),
            body: Some(body.into()),
            chunked: false,
        }
    }

    pub fn get(path: &str) -> Self {
        Self::plain("GET", path, [])
    }

    /// A POST of these bytes with the headers that every transport version requires.
    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::plain("POST", path, body)
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, text/event-stream")
    }

    /// A POST to `/mcp` with complete `_meta` and the headers that repeat it.
    pub fn rpc(method: &str, params: Value) -> Self {
        let Value::Object(mut params) = params else {
            panic!("params are an object")
        };
        let name = params.get("name").or_else(|| params.get("uri"));
        let name = name.and_then(Value::as_str).map(str::to_owned);
        params.insert(
            "_meta".into(),
            json!({
                VERSION_KEY: "2026-07-28",
                CLIENT_INFO_KEY: {"name": "test", "version": "1"},
                CAPABILITIES_KEY: {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}},
            }),
        );
        let mut request = Self::post("/mcp", [])
            .header("MCP-Protocol-Version", "2026-07-28")
            .header("Mcp-Method", method);
        if let Some(name) = name {
            request = request.header("Mcp-Name", &name);
        }
        Self {
            method: method.to_owned(),
            params,
            body: None,
            ..request
        }
    }

    pub fn tool(name: &str, arguments: Value) -> Self {
        Self::rpc("tools/call", json!({"name": name})).param("arguments", arguments)
    }

    pub fn prompt(name: &str, arguments: Value) -> Self {
        Self::rpc("prompts/get", json!({"name": name})).param("arguments", arguments)
    }

    pub fn read(uri: &str) -> Self {
        Self::rpc("resources/read", json!({"uri": uri}))
    }

    /// A request about a task, from a client that declares the extension.
    pub fn task(method: &str, id: &str) -> Self {
        Self::rpc(method, json!({"taskId": id}))
            .header("Mcp-Name", id)
            .declares_tasks()
    }

    /// Sends these bytes as the body, with headers for a call of the tool `echo`.
    pub fn bytes(body: impl Into<Vec<u8>>) -> Self {
        Self::tool("echo", json!({})).body(body)
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub fn id(mut self, id: Value) -> Self {
        self.id = id;
        self
    }

    pub fn param(mut self, name: &str, value: Value) -> Self {
        self.params.insert(name.to_owned(), value);
        self
    }

    pub fn without_param(mut self, name: &str) -> Self {
        self.params.remove(name);
        self
    }

    pub fn meta(mut self, key: &str, value: Value) -> Self {
        self.params["_meta"][key] = value;
        self
    }

    pub fn without_meta(mut self, key: &str) -> Self {
        if let Some(meta) = self.params["_meta"].as_object_mut() {
            meta.remove(key);
        }
        self
    }

    /// Declares the tasks extension and no other capability.
    pub fn declares_tasks(self) -> Self {
        self.meta(
            CAPABILITIES_KEY,
            json!({"extensions": {TASKS_EXTENSION: {}}}),
        )
    }

    /// Sends a token back, with answers.
    pub fn again(self, token: &str, answers: Value) -> Self {
        self.param("requestState", json!(token))
            .param("inputResponses", answers)
    }

    /// Sets a header and removes others of the same name.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.without_header(name).second_header(name, value)
    }

    /// Adds a header to others of the same name.
    pub fn second_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without_header(mut self, name: &str) -> Self {
        self.headers
            .retain(|(header, _)| !header.eq_ignore_ascii_case(name));
        self
    }

    pub fn bearer(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// Sends the body in chunks, without its length.
    pub fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// The body: the message, or the bytes that replace it.
    pub fn message(&self) -> Vec<u8> {
        if let Some(body) = &self.body {
            return body.clone();
        }
        let message = json!({
            "jsonrpc": "2.0", "id": self.id, "method": self.method, "params": self.params,
        });
        message.to_string().into_bytes()
    }

    /// The whole request. `host` is used unless the headers have one.
    pub fn to_bytes(&self, host: &str) -> Vec<u8> {
        let body = self.message();
        let mut out = format!("{} {} HTTP/1.1\r\n", self.verb, self.path).into_bytes();
        let mut line = |name: &str, value: &str| {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        };
        if !self.headers.iter().any(|(name, _)| name == "Host") {
            line("Host", host);
        }
        for (name, value) in &self.headers {
            line(name, value);
        }
        if self.chunked {
            line("Transfer-Encoding", "chunked");
        } else if self.verb == "POST" || !body.is_empty() {
            line("Content-Length", &body.len().to_string());
        }
        out.extend_from_slice(b"\r\n");
        if !self.chunked {
            out.extend_from_slice(&body);
            return out;
        }
        for piece in body.chunks(1000) {
            out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n\r\n");
        out
    }
}
