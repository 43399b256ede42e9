//! A plain HTTP/1.1 client that sends what it is told and shows what came back.

use super::{Request, within};
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection to an instance.
pub(crate) struct Connection {
    stream: TcpStream,
    host: String,
    /// Read and not used yet.
    read: Vec<u8>,
    /// Text of events, taken out of its chunks.
    events: String,
}

/// A response, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = within("a connection", TcpStream::connect(address)).await;
        Self {
            stream: stream.expect("a connection"),
            host: address.to_string(),
            read: Vec::new(),
            events: String::new(),
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let written = within("the request to be taken", self.stream.write_all(bytes)).await;
        written.expect("the request is taken");
    }

    /// Sends a request.
    pub(crate) async fn send(&mut self, request: &Request) {
        let bytes = request.to_bytes(&self.host);
        self.write(&bytes).await;
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn exchange(&mut self, request: &Request) -> Response {
        self.send(request).await;
        self.response().await
    }

    /// Reads a whole response, which has to come to an end.
    pub(crate) async fn response(&mut self) -> Response {
        within("the end of a response", self.whole()).await
    }

    async fn whole(&mut self) -> Response {
        let mut response = self.head().await;
        if let Some(length) = response.header("content-length") {
            let length: usize = length.parse().expect("a length");
            response.body = self.take(length).await;
        } else if response.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk().await {
                response.body.extend_from_slice(&chunk);
            }
        }
        response
    }

    /// Reads the head of a response, and nothing after it.
    pub(crate) async fn head(&mut self) -> Response {
        let head = self.until(b"\r\n\r\n").await;
        let head = String::from_utf8(head).expect("a head is text");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers = lines.filter_map(|line| line.split_once(':'));
        Response {
            status: status.and_then(|code| code.parse().ok()).expect("a status"),
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect(),
            body: Vec::new(),
        }
    }

    /// Reads the next event of a stream whose head was read. `None` at its end.
    pub(crate) async fn event(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.events.find("\n\n") {
                let event: String = self.events.drain(..end + 2).collect();
                return Some(read_event(event.trim_end()));
            }
            let chunk = self.chunk().await?;
            self.events
                .push_str(std::str::from_utf8(&chunk).expect("events are text"));
        }
    }

    /// Reads the next piece of a stream whose head was read, a comment or an event, as it stands.
    pub(crate) async fn comment(&mut self) -> String {
        loop {
            if let Some(end) = self.events.find("\n\n") {
                let piece: String = self.events.drain(..end + 2).collect();
                return piece.trim_end().to_owned();
            }
            let chunk = self.chunk().await.expect("a stream that goes on");
            self.events
                .push_str(std::str::from_utf8(&chunk).expect("events are text"));
        }
    }

    /// The same, or `None` at the end of the stream.
    pub(crate) async fn piece(&mut self) -> Option<String> {
        while !self.events.contains("\n\n") {
            let chunk = self.chunk().await?;
            self.events
                .push_str(std::str::from_utf8(&chunk).expect("events are text"));
        }
        let end = self.events.find("\n\n")?;
        let piece: String = self.events.drain(..end + 2).collect();
        Some(piece.trim_end().to_owned())
    }

    /// Reads until the server closes the connection; anything it sends first is a failure.
    pub(crate) async fn closed(&mut self) {
        let mut rest = Vec::new();
        let read = within("the end", self.stream.read_to_end(&mut rest)).await;
        read.expect("an orderly end");
        assert!(rest.is_empty() && self.read.is_empty(), "more was sent");
    }

    async fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = self.until(b"\r\n").await;
        let size = String::from_utf8(size).expect("a chunk's size");
        let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
        let mut chunk = self.take(size + 2).await;
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            let found = self
                .read
                .windows(end.len())
                .position(|window| window == end);
            if let Some(at) = found {
                return self.read.drain(..at + end.len()).collect();
            }
            self.more().await;
        }
    }

    async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.read.len() < length {
            self.more().await;
        }
        self.read.drain(..length).collect()
    }

    async fn more(&mut self) {
        let count = within("a response", self.stream.read_buf(&mut self.read)).await;
        let count = count.expect("a response");
        assert!(count > 0, "the server closed the connection early");
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The one JSON message of a response that is no stream.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(
            self.header("content-type"),
            Some("application/json"),
            "{body}"
        );
        let value: Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {body}"));
        assert_eq!(value["jsonrpc"], "2.0", "{body}");
        value
    }

    /// The messages of a response that is a stream.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(
            self.header("content-type"),
            Some("text/event-stream"),
            "{body}"
        );
        body.split_terminator("\n\n").map(read_event).collect()
    }

    /// The message of an error with this status and code.
    #[track_caller]
    pub(crate) fn error(&self, status: u16, code: i64) -> String {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{body}");
        let reply = self.json();
        assert_eq!(reply["error"]["code"], code, "{body}");
        assert!(reply.get("result").is_none(), "{body}");
        let message = reply["error"]["message"].as_str();
        message
            .unwrap_or_else(|| panic!("no message: {body}"))
            .to_owned()
    }

    /// The reply of a call that was served.
    #[track_caller]
    pub(crate) fn reply(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }
}

#[track_caller]
fn read_event(event: &str) -> Value {
    let mut lines = event.lines();
    assert_eq!(lines.next(), Some("event: message"), "{event}");
    let data = lines.next().and_then(|line| line.strip_prefix("data: "));
    let data = data.unwrap_or_else(|| panic!("an event without data: {event}"));
    assert_eq!(lines.next(), None, "one line of data: {event}");
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
}
