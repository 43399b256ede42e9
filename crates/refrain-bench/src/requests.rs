//! The requests of the workloads, serialised before anything is measured.
//!
//! They carry what the public clients send: both media types, the three request headers of the
//! protocol and a full `_meta`.

use std::fmt::Write as _;
use std::net::SocketAddr;

/// The text that `echo` is called with; its reply holds `Echo: ` and this.
pub(crate) const ECHO_TEXT: &str = "what was done is refrained from";

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"refrain-bench","version":"0.1.0"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{},"roots":{}}}"#;
const ANSWER: &str =
    r#""inputResponses":{"github_login":{"action":"accept","content":{"name":"octocat"}}}"#;

/// Writes requests for one server.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    address: SocketAddr,
}

impl Requests {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// `echo` with a text: one round, nothing asked.
    pub(crate) fn echo(&self) -> Vec<u8> {
        let arguments = format!(r#"{{"text":"{ECHO_TEXT}"}}"#);
        let mut request = String::new();
        self.call(&mut request, "echo", 1, &arguments, None);
        request.into_bytes()
    }

    /// `get_weather` without state.
    pub(crate) fn round_1(&self) -> Vec<u8> {
        let mut request = String::new();
        self.open_dialogue(&mut request, "New York");
        request.into_bytes()
    }

    /// `get_weather` without state for some place, written over `request`.
    pub(crate) fn open_dialogue(&self, request: &mut String, location: &str) {
        let arguments = format!(r#"{{"location":"{location}"}}"#);
        self.call(request, "get_weather", 1, &arguments, None);
    }

    /// `get_weather` with the answer and the token, written over `request`.
    pub(crate) fn round_2(&self, request: &mut String, token: &str) {
        let arguments = r#"{"location":"New York"}"#;
        self.call(request, "get_weather", 2, arguments, Some(token));
    }

    fn call(
        &self,
        request: &mut String,
        tool: &str,
        id: u32,
        arguments: &str,
        token: Option<&str>,
    ) {
        const OPEN: &str = r#"{"jsonrpc":"2.0","id":"#;
        const METHOD: &str = r#","method":"tools/call","params":{"name":""#;
        const ARGUMENTS: &str = r#"","arguments":"#;
        const STATE: &str = r#","requestState":""#;

        // One digit of id, two commas or one, a closing quote and the closing braces.
        let mut length = OPEN.len()
            + 1
            + METHOD.len()
            + tool.len()
            + ARGUMENTS.len()
            + arguments.len()
            + 1
            + META.len()
            + 2;
        if let Some(token) = token {
            length += 1 + ANSWER.len() + STATE.len() + token.len() + 1;
        }

        request.clear();
        // Writing to a String does not fail.
        let _ = write!(
            request,
            "POST /mcp HTTP/1.1\r\n\
             host: {address}\r\n\
             user-agent: refrain-bench\r\n\
             content-type: application/json\r\n\
             accept: application/json, text/event-stream\r\n\
             mcp-protocol-version: 2026-07-28\r\n\
             mcp-method: tools/call\r\n\
             mcp-name: {tool}\r\n\
             content-length: {length}\r\n\r\n",
            address = self.address,
        );
        let head = request.len();
        let _ = write!(request, "{OPEN}{id}{METHOD}{tool}{ARGUMENTS}{arguments}");
        if let Some(token) = token {
            let _ = write!(request, ",{ANSWER}{STATE}{token}\"");
        }
        let _ = write!(request, ",{META}}}}}");
        debug_assert_eq!(request.len() - head, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn body(request: &str) -> Value {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .unwrap();
        assert_eq!(length.parse::<usize>().unwrap(), body.len());
        serde_json::from_str(body).unwrap()
    }

    #[test]
    fn requests_are_whole() {
        let requests = Requests::new(([127, 0, 0, 1], 8080).into());
        let echo = String::from_utf8(requests.echo()).unwrap();
        assert!(echo.contains("\r\nmcp-name: echo\r\n"));
        assert_eq!(body(&echo)["params"]["arguments"]["text"], ECHO_TEXT);

        let first = String::from_utf8(requests.round_1()).unwrap();
        assert_eq!(body(&first)["params"]["arguments"]["location"], "New York");

        let mut second = String::from("left from before");
        requests.round_2(&mut second, "abc");
        let second = body(&second);
        assert_eq!(second["params"]["requestState"], "abc");
        assert_eq!(
            second["params"]["inputResponses"]["github_login"]["content"]["name"],
            "octocat"
        );
        let meta = &second["params"]["_meta"];
        assert!(meta["io.modelcontextprotocol/clientCapabilities"]["elicitation"].is_object());
    }
}
