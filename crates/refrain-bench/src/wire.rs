//! Serialized requests, and a minimal keep-alive HTTP/1.1 client.
//!
//! The requests have the headers and the `_meta` of real clients.

use std::io;
use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::error::Error;

/// The maximum length of a reply in bytes.
const REPLY_LIMIT: usize = 256 * 1024;
const TOO_LONG: &str = "the reply has more than 256 KiB";
/// The text that `echo` is called with.
const ECHO_TEXT: &str = "what was done is refrained from";
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"refrain-bench","version":"0.1.0"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{},"roots":{}}}"#;
pub(crate) const ANSWER: &str =
    r#""inputResponses":{"github_login":{"action":"accept","content":{"name":"octocat"}}}"#;

/// `echo` with a text: one round without a question.
pub(crate) fn echo(address: SocketAddr) -> String {
    let arguments = format!(r#"{{"text":"{ECHO_TEXT}"}}"#);
    call(address, "echo", &arguments, None)
}

/// `get_weather` without state.
pub(crate) fn round_1(address: SocketAddr, location: &str) -> String {
    let arguments = format!(r#"{{"location":"{location}"}}"#);
    call(address, "get_weather", &arguments, None)
}

/// `get_weather` with the answer and the token.
pub(crate) fn round_2(address: SocketAddr, token: &str) -> String {
    let arguments = r#"{"location":"New York"}"#;
    call(address, "get_weather", arguments, Some(token))
}

fn call(address: SocketAddr, tool: &str, arguments: &str, token: Option<&str>) -> String {
    let (id, state) = match token {
        Some(token) => (2, format!(r#"{ANSWER},"requestState":"{token}","#)),
        None => (1, String::new()),
    };
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},{state}{META}}}}}"#
    );
    format!(
        "POST /mcp HTTP/1.1\r\n\
         host: {address}\r\n\
         user-agent: refrain-bench\r\n\
         content-type: application/json\r\n\
         accept: application/json, text/event-stream\r\n\
         mcp-protocol-version: 2026-07-28\r\n\
         mcp-method: tools/call\r\n\
         mcp-name: {tool}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len(),
    )
}

/// An open connection and the bytes of the last reply.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// The offsets of the parts of a reply.
#[derive(Debug, PartialEq, Eq)]
struct ReplyHead {
    status: u16,
    body: usize,
    end: usize,
}

impl HttpConnection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: vec![0; REPLY_LIMIT],
        })
    }

    /// Sends a request and returns the body of its reply, which must have status 200 and contain `expected`.
    pub(crate) async fn exchange(
        &mut self,
        request: &str,
        expected: &'static str,
    ) -> Result<&[u8], Error> {
        self.stream.write_all(request.as_bytes()).await?;
        let (mut filled, mut head) = (0, None);
        let ReplyHead { status, body, end } = loop {
            if filled == self.buffer.len() {
                return Err(TOO_LONG.into());
            }
            match self.stream.read(&mut self.buffer[filled..]).await? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => filled += read,
            }
            if head.is_none() {
                head = parse_head(&self.buffer[..filled])?;
            }
            if let Some(head) = head.take_if(|head| filled >= head.end) {
                break head;
            }
        };
        if filled > end {
            return Err(format!("{} unexpected bytes after the reply", filled - end).into());
        }
        let body = &self.buffer[body..end];
        if status != 200 {
            return Err(format!("HTTP status {status}, body: {}", excerpt(body)).into());
        }
        find(body, expected)?;
        Ok(body)
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<ReplyHead>, Error> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(body) = response.parse(bytes)? else {
        return Ok(None);
    };
    let mut headers = response.headers.iter();
    let length: usize = headers
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| std::str::from_utf8(header.value).ok())
        .and_then(|value| value.trim().parse().ok())
        .ok_or("the reply has no valid content-length: it may be a stream")?;
    Ok(Some(ReplyHead {
        status: response.code.unwrap_or(0),
        body,
        end: body.checked_add(length).ok_or(TOO_LONG)?,
    }))
}

/// The bytes of a body after the expected text.
fn find<'b>(body: &'b [u8], expected: &'static str) -> Result<&'b [u8], Error> {
    match memmem::find(body, expected.as_bytes()) {
        Some(at) => Ok(&body[at + expected.len()..]),
        None => Err(unexpected(expected, body)),
    }
}

/// The token of an `input_required` reply.
pub(crate) fn token(body: &[u8]) -> Result<&str, Error> {
    const FIELD: &str = "\"requestState\":\"";
    let token = find(body, FIELD)?.split(|&byte| byte == b'"').next();
    let token = token.and_then(|token| std::str::from_utf8(token).ok());
    let token = token.filter(|token| !token.is_empty());
    token.ok_or_else(|| unexpected("a token", body))
}

fn unexpected(expected: &str, body: &[u8]) -> Error {
    format!("the reply does not contain {expected:?}: {}", excerpt(body)).into()
}

/// The start of a body, for an error message.
fn excerpt(body: &[u8]) -> String {
    const SHOWN: usize = 400;
    let mut text = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).into_owned();
    if body.len() > SHOWN {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn body(request: &str) -> Value {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let length = lines.find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(length.unwrap().parse::<usize>().unwrap(), body.len());
        serde_json::from_str(body).unwrap()
    }

    #[test]
    fn requests_are_complete() {
        let address = ([127, 0, 0, 1], 8080).into();
        let echo = echo(address);
        assert!(echo.contains("\r\nmcp-name: echo\r\n"));
        assert_eq!(body(&echo)["params"]["arguments"]["text"], ECHO_TEXT);
        assert_eq!(crate::load::ECHOED, format!("Echo: {ECHO_TEXT}"));

        let first = body(&round_1(address, "New York"));
        assert_eq!(first["params"]["arguments"]["location"], "New York");

        let second = body(&round_2(address, "abc"));
        let params = &second["params"];
        assert_eq!(params["requestState"], "abc");
        let answer = &params["inputResponses"]["github_login"];
        assert_eq!(answer["content"]["name"], "octocat");
        let capabilities = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert!(capabilities["elicitation"].is_object());
    }

    #[test]
    fn head_is_found_when_it_is_complete() {
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        let whole = ReplyHead {
            status: 200,
            body: 38,
            end: 40,
        };
        assert_eq!(parse_head(&reply[..20]).unwrap(), None);
        assert_eq!(parse_head(&reply[..38]).unwrap(), Some(whole));
    }

    #[test]
    fn stream_is_rejected() {
        let reply = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let error = parse_head(reply)
            .expect_err("a stream has no length")
            .to_string();
        assert!(error.contains("no valid content-length"), "{error}");
    }

    #[test]
    fn token_is_extracted() {
        assert_eq!(token(br#"{"requestState":"a-b_c"}"#).unwrap(), "a-b_c");
        assert!(token(br#"{"requestState":""}"#).is_err());
        assert!(token(b"{}").is_err());
    }

    #[test]
    fn wrong_body_is_shown() {
        let error = find(br#"{"error":1}"#, "Echo:").unwrap_err();
        assert!(error.to_string().contains(r#"{"error":1}"#));
    }
}
