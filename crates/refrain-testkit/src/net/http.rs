//! A raw HTTP/1.1 client: it sends exactly the bytes of a request and returns the response as received.

use super::Request;
use super::wait::{success, within};
use serde_json::Value;
use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Sends a request on a new connection and returns the response, or an error if the connection fails.
pub async fn try_send(address: SocketAddr, request: &Request) -> io::Result<Response> {
    let mut connection = Connection::begin(address, request).await?;
    connection.read_response().await
}

/// Sends a request on a new connection and returns it with the head of the response.
pub async fn try_begin(
    address: SocketAddr,
    request: &Request,
) -> io::Result<(Connection, Response)> {
    let mut connection = Connection::begin(address, request).await?;
    let head = connection.try_head().await?;
    Ok((connection, head))
}

pub async fn send(address: SocketAddr, request: &Request) -> Response {
    success("a response", try_send(address, request)).await
}

pub async fn status_of(address: SocketAddr, path: &str) -> io::Result<u16> {
    Ok(try_send(address, &Request::get(path)).await?.status)
}

/// The body of a GET that is answered with 200, or an error if the connection fails.
pub async fn page_of(address: SocketAddr, path: &str) -> io::Result<String> {
    let response = try_send(address, &Request::get(path)).await?;
    assert_eq!(response.status, 200, "{path}");
    Ok(response.text())
}

/// The body of a GET that is answered with 200.
pub async fn text_of(address: SocketAddr, path: &str) -> String {
    success("a page", page_of(address, path)).await
}

/// A connection to a server or, in a proxy, to a client.
pub struct Connection {
    pub(super) stream: TcpStream,
    host: String,
    /// Bytes that were received and not consumed yet.
    read: Vec<u8>,
    /// Text of an event stream that was received and not consumed yet.
    events: String,
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, host: String) -> Self {
        Self {
            stream,
            host,
            read: Vec::new(),
            events: String::new(),
        }
    }

    /// Connects from this loopback address, so that the server sees another client.
    pub async fn open_from(local: IpAddr, address: SocketAddr) -> Self {
        let connect = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind((local, 0).into())?;
            let stream = socket.connect(address).await?;
            Ok::<_, io::Error>(Self::new(stream, address.to_string()))
        };
        success("a connection", connect).await
    }

    async fn try_open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        Ok(Self::new(stream, address.to_string()))
    }

    async fn begin(address: SocketAddr, request: &Request) -> io::Result<Self> {
        let mut connection = Self::try_open(address).await?;
        let bytes = request.to_bytes(&connection.host);
        connection.stream.write_all(&bytes).await?;
        Ok(connection)
    }

    pub async fn open(address: SocketAddr) -> Self {
        success("a connection", Self::try_open(address)).await
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        success("writing a request", self.stream.write_all(bytes)).await;
    }

    pub async fn send(&mut self, request: &Request) {
        let bytes = request.to_bytes(&self.host);
        self.write(&bytes).await;
    }

    pub async fn exchange(&mut self, request: &Request) -> Response {
        self.send(request).await;
        self.response().await
    }

    /// Sends a request and returns the response, or an error if the server closes the connection.
    pub async fn try_exchange(&mut self, request: &Request) -> io::Result<Response> {
        let bytes = request.to_bytes(&self.host);
        within("an exchange", async {
            self.stream.write_all(&bytes).await?;
            self.read_response().await
        })
        .await
    }

    pub async fn response(&mut self) -> Response {
        success("the end of a response", self.read_response()).await
    }

    /// Reads the head of a response. Its body is left for [`Self::event`].
    pub async fn head(&mut self) -> Response {
        success("the head of a response", self.try_head()).await
    }

    /// The next message of an event stream whose head was read; `None` at its end.
    pub async fn event(&mut self) -> Option<Value> {
        Some(parse_event(&self.block().await?))
    }

    /// The next block of an event stream, an event or a comment, as text; `None` at the end of the stream.
    pub async fn block(&mut self) -> Option<String> {
        success("the next event", self.try_block()).await
    }

    /// Waits for the server to close the connection. Panics if it sends something first.
    pub async fn closed(&mut self) {
        let mut rest = Vec::new();
        success("an orderly end", self.stream.read_to_end(&mut rest)).await;
        assert!(rest.is_empty() && self.read.is_empty(), "more was sent");
    }

    /// The rest of a body in chunks whose head was read, or an error if it is cut.
    pub async fn rest(&mut self) -> io::Result<String> {
        let mut rest = std::mem::take(&mut self.events);
        while let Some(chunk) = self.chunk().await? {
            rest.push_str(&String::from_utf8_lossy(&chunk));
        }
        Ok(rest)
    }

    async fn try_head(&mut self) -> io::Result<Response> {
        let head = self.until(b"\r\n\r\n").await?;
        let head = String::from_utf8(head).expect("the head of a response is text");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers = lines.filter_map(|line| line.split_once(':'));
        Ok(Response {
            status: status.and_then(|code| code.parse().ok()).expect("a status"),
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect(),
            body: Vec::new(),
        })
    }

    async fn read_response(&mut self) -> io::Result<Response> {
        let mut response = self.try_head().await?;
        if let Some(length) = response.header("content-length") {
            let length: usize = length.parse().expect("a length");
            response.body = self.take(length).await?;
        } else if response.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk().await? {
                response.body.extend_from_slice(&chunk);
            }
        }
        Ok(response)
    }

    /// The next block of an event stream, or an error if the stream is cut.
    pub async fn try_block(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.events.find("\n\n") {
                let block: String = self.events.drain(..end + 2).collect();
                return Ok(Some(block.trim_end().to_owned()));
            }
            let Some(chunk) = self.chunk().await? else {
                return Ok(None);
            };
            let text = std::str::from_utf8(&chunk).expect("events are text");
            self.events.push_str(text);
        }
    }

    /// The next chunk of a body; `None` for the last one, which is empty.
    async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let size = String::from_utf8(self.until(b"\r\n").await?).expect("a chunk's size");
        let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
        let mut chunk = self.take(size + 2).await?;
        chunk.truncate(size);
        Ok((size > 0).then_some(chunk))
    }

    pub(super) async fn until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = end_of(&self.read, end) {
                return self.take(end).await;
            }
            self.read_more().await?;
        }
    }

    pub(super) async fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < length {
            self.read_more().await?;
        }
        Ok(self.read.drain(..length).collect())
    }

    async fn read_more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(header, _)| header == name);
        header.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    fn body_of_type(&self, kind: &str) -> String {
        let body = self.text();
        assert_eq!(self.header("content-type"), Some(kind), "{body}");
        body
    }

    /// The JSON-RPC message in the body.
    #[track_caller]
    pub fn json(&self) -> Value {
        let body = self.body_of_type("application/json");
        let value: Value =
            serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        assert_eq!(value["jsonrpc"], "2.0", "{body}");
        value
    }

    /// The messages of an event stream.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let body = self.body_of_type("text/event-stream");
        body.split_terminator("\n\n").map(parse_event).collect()
    }

    /// The message of an error with this status and code.
    #[track_caller]
    pub fn error(&self, status: u16, code: i64) -> String {
        let body = self.text();
        assert_eq!(self.status, status, "{body}");
        let reply = self.json();
        assert_eq!(reply["error"]["code"], code, "{body}");
        assert!(reply.get("result").is_none(), "{body}");
        let message = reply["error"]["message"].as_str();
        message.expect("a message").to_owned()
    }

    /// The message in the body of a response with status 200.
    #[track_caller]
    pub fn reply(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }
}

/// The offset after the first occurrence of a byte string.
pub(super) fn end_of(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let mut windows = bytes.windows(pattern.len());
    let start = windows.position(|window| window == pattern)?;
    Some(start + pattern.len())
}

#[track_caller]
fn parse_event(event: &str) -> Value {
    let lines: Vec<&str> = event.lines().collect();
    let ["event: message", data] = lines[..] else {
        panic!("an event with one line of data is expected: {event}")
    };
    let data = data.strip_prefix("data: ").expect("data");
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
}
