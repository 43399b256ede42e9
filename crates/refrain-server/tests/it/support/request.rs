//! A request to the endpoint: a good one, until a test makes it a bad one.

use serde_json::{Map, Value, json};

pub(crate) const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub(crate) const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub(crate) const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// A POST to `/mcp`.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    id: Value,
    method: String,
    params: Map<String, Value>,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
    chunked: bool,
    path: &'static str,
}

impl Request {
    /// A request as a good client sends it: with all of `_meta`, and with the headers that repeat it.
    pub(crate) fn rpc(method: &str, params: Value) -> Self {
        let Value::Object(mut params) = params else {
            panic!("params are an object")
        };
        let name = params.get("name").or_else(|| params.get("uri"));
        let name = name.and_then(Value::as_str).map(str::to_owned);
        params.insert(
            "_meta".into(),
            json!({
                VERSION: "2026-07-28",
                CLIENT_INFO: {"name": "test", "version": "1"},
                CAPABILITIES: {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}},
            }),
        );
        let mut request = Self {
            id: json!(1),
            method: method.to_owned(),
            params,
            headers: Vec::new(),
            body: None,
            chunked: false,
            path: "/mcp",
        }
        .header("Content-Type", "application/json")
        .header("Accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", method);
        if let Some(name) = name {
            request = request.header("Mcp-Name", &name);
        }
        request
    }

    pub(crate) fn tool(name: &str, arguments: Value) -> Self {
        Self::rpc("tools/call", json!({"name": name})).param("arguments", arguments)
    }

    pub(crate) fn prompt(name: &str, arguments: Value) -> Self {
        Self::rpc("prompts/get", json!({"name": name})).param("arguments", arguments)
    }

    pub(crate) fn read(uri: &str) -> Self {
        Self::rpc("resources/read", json!({"uri": uri}))
    }

    /// A body of these bytes, with headers that suit a call of the tool `echo`.
    pub(crate) fn bytes(body: impl Into<Vec<u8>>) -> Self {
        let mut request = Self::tool("echo", json!({}));
        request.body = Some(body.into());
        request
    }

    pub(crate) fn id(mut self, id: Value) -> Self {
        self.id = id;
        self
    }

    /// Sets a member of `params`.
    pub(crate) fn param(mut self, name: &str, value: Value) -> Self {
        self.params.insert(name.to_owned(), value);
        self
    }

    pub(crate) fn without_param(mut self, name: &str) -> Self {
        self.params.remove(name);
        self
    }

    /// Sets a member of `_meta`.
    pub(crate) fn meta(mut self, key: &str, value: Value) -> Self {
        self.params["_meta"][key] = value;
        self
    }

    pub(crate) fn without_meta(mut self, key: &str) -> Self {
        if let Some(meta) = self.params["_meta"].as_object_mut() {
            meta.remove(key);
        }
        self
    }

    /// Sends a token back, with answers.
    pub(crate) fn again(self, token: &str, answers: Value) -> Self {
        self.param("requestState", json!(token))
            .param("inputResponses", answers)
    }

    /// Sets a header, in place of any of that name.
    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        self.without_header(name).second_header(name, value)
    }

    /// Adds a header to those of that name.
    pub(crate) fn second_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without_header(mut self, name: &str) -> Self {
        self.headers
            .retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    /// Sends the body in chunks, without saying how long it is.
    pub(crate) fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    pub(crate) fn path(mut self, path: &'static str) -> Self {
        self.path = path;
        self
    }

    /// The message by itself.
    pub(crate) fn message(&self) -> Vec<u8> {
        if let Some(body) = &self.body {
            return body.clone();
        }
        let message = json!({
            "jsonrpc": "2.0", "id": self.id, "method": self.method, "params": self.params,
        });
        message.to_string().into_bytes()
    }

    /// The whole request for this host.
    pub(crate) fn to_bytes(&self, host: &str) -> Vec<u8> {
        let body = self.message();
        let mut out = format!("POST {} HTTP/1.1\r\n", self.path).into_bytes();
        if !self.headers.iter().any(|(name, _)| name == "Host") {
            out.extend_from_slice(format!("Host: {host}\r\n").as_bytes());
        }
        for (name, value) in &self.headers {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if !self.chunked {
            out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            out.extend_from_slice(&body);
            return out;
        }
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        for piece in body.chunks(1000) {
            out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n\r\n");
        out
    }
}
