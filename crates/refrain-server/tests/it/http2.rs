//! HTTP/2 without TLS: calls, and the limits of connections, streams, heads and bodies.

use crate::connections::{IDLE, builder, connect_from, instance};
use crate::support::{
    Connection, Instance, LOG_LEVEL_KEY, MetricsPort, Request, Signals, echo_call, expect_signal,
    start, text, within,
};
use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::StatusCode;
use refrain_core::Principal;
use refrain_server::{AuthFuture, Authenticator, Server, ServerLimits};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that a client starts with HTTP/2.
struct Client {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    async fn open(address: SocketAddr) -> Self {
        // A stream that is not read must not use up the window of the others.
        Self::open_with(
            address,
            Builder::new().initial_connection_window_size(1 << 20),
        )
        .await
    }

    async fn open_with(address: SocketAddr, builder: &Builder) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        let opened = builder.handshake(stream);
        let (requests, connection) = opened.await.expect("HTTP/2");
        Self {
            requests,
            connection: tokio::spawn(connection),
        }
    }

    async fn try_begin(&mut self, request: &Request) -> Result<ResponseFuture, h2::Error> {
        let (head, body) = parts(request);
        self.requests = self.requests.clone().ready().await?;
        let (response, mut stream) = self.requests.send_request(head, false)?;
        stream.send_data(body, true)?;
        Ok(response)
    }

    async fn begin(&mut self, request: &Request) -> ResponseFuture {
        let begun = within("room for a stream", self.try_begin(request)).await;
        begun.expect("the connection is open")
    }

    async fn send(&mut self, request: &Request) -> (StatusCode, Value) {
        let response = self.begin(request).await;
        read(response).await
    }

    /// Waits for the end of the connection.
    async fn closed(self) -> Result<(), h2::Error> {
        drop(self.requests);
        within("the end of the connection", self.connection)
            .await
            .expect("no panic")
    }
}

/// The head and the body of a request.
pub(crate) fn parts(request: &Request) -> (http::Request<()>, Bytes) {
    let message = String::from_utf8(request.to_bytes("localhost")).expect("text");
    let (head, body) = message.split_once("\r\n\r\n").expect("a head");
    let mut request = http::Request::post("http://localhost/mcp");
    for line in head.lines().skip(1) {
        let (name, value) = line.split_once(": ").expect("a header");
        if line != "Host: localhost" {
            request = request.header(name, value);
        }
    }
    let body = Bytes::from(body.to_owned());
    (request.body(()).expect("a valid request"), body)
}

async fn read(response: ResponseFuture) -> (StatusCode, Value) {
    let response = within("a response", response).await.expect("a response");
    let (head, body) = response.into_parts();
    let bytes = within("a body", collect(body)).await;
    let message = serde_json::from_slice(&bytes).unwrap_or_default();
    (head.status, message)
}

async fn collect(mut body: RecvStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.expect("the stream is whole");
        let released = body.flow_control().release_capacity(data.len());
        released.expect("as much as was received");
        bytes.extend_from_slice(&data);
    }
    bytes
}

async fn echoes(client: &mut Client) {
    let (status, reply) = client.send(&echo_call()).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(text(&reply), "Echo: x");
}

/// Makes calls until the connection ends.
fn keep_busy(client: &Client) -> JoinHandle<()> {
    let (requests, connection) = (client.requests.clone(), tokio::spawn(async { Ok(()) }));
    let mut client = Client {
        requests,
        connection,
    };
    tokio::spawn(async move {
        while let Ok(response) = client.try_begin(&echo_call()).await {
            let _ = response.await;
            tokio::time::sleep(IDLE / 10).await;
        }
    })
}

fn short_idle_time() -> ServerLimits {
    ServerLimits {
        idle_time: IDLE,
        ..ServerLimits::default()
    }
}

#[tokio::test]
async fn calls_share_a_connection() {
    let (instance, signals, mut received) = instance(ServerLimits::default()).await;
    let mut client = Client::open(instance.address).await;
    let held = client.begin(&Request::tool("held", json!({}))).await;
    within("the handler", received.recv()).await;
    echoes(&mut client).await;
    signals.open();
    let (status, reply) = read(held).await;
    assert_eq!((status, text(&reply)), (StatusCode::OK, "let through"));
    let (status, _) = client
        .send(&echo_call().header("Host", "evil.example"))
        .await;
    assert_eq!(status, 403, "the Host header is checked");
    // A client of HTTP/1.1 uses the same port.
    instance.send(&echo_call()).await.reply();
}

#[tokio::test]
async fn start_of_a_connection_may_arrive_in_pieces() {
    let (instance, ..) = instance(ServerLimits::default()).await;
    let mut http1 = instance.connect().await;
    http1.write(b"P").await;
    let mut http2 = TcpStream::connect(instance.address).await.expect("open");
    http2.write_all(&PREFACE[..2]).await.expect("written");
    tokio::time::sleep(Duration::from_millis(50)).await;
    http1.write(&echo_call().to_bytes("localhost")[1..]).await;
    assert_eq!(text(&http1.response().await.reply()), "Echo: x");
    http2.write_all(&PREFACE[2..]).await.expect("written");
    http2.write_all(&frame(4, 0, &[])).await.expect("written");
    let mut head = [0; 9];
    let settings = within("settings", http2.read_exact(&mut head)).await;
    settings.expect("a frame");
    assert_eq!(head[3], 4, "the first frame has settings");
}

#[tokio::test]
async fn metrics_port_speaks_only_http1() {
    let server = Server::builder("metrics", "1").build().expect("valid");
    let port = MetricsPort::start(&server).await;
    let mut connection = Connection::open(port.address).await;
    connection.write(PREFACE).await;
    connection.closed().await;
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let (instance, ..) = instance(short_idle_time()).await;
    let mut client = Client::open(instance.address).await;
    echoes(&mut client).await;
    let ended = within("the end", &mut client.connection).await;
    drop(ended);
    let mut silent = TcpStream::connect(instance.address).await.expect("open");
    silent.write_all(PREFACE).await.expect("written");
    let mut rest = Vec::new();
    let _ = within("the end", silent.read_to_end(&mut rest)).await;
}

#[tokio::test]
async fn connection_is_busy_until_its_last_call_ends() {
    let (instance, signals, mut received) = instance(short_idle_time()).await;
    let mut client = Client::open(instance.address).await;
    let held = client.begin(&Request::tool("held", json!({}))).await;
    within("the handler", received.recv()).await;
    // The end of another call does not make the connection idle.
    echoes(&mut client).await;
    tokio::time::sleep(4 * IDLE).await;
    signals.open();
    assert_eq!(text(&read(held).await.1), "let through");
}

#[tokio::test]
async fn stream_counts_as_a_connection() {
    let limits = ServerLimits {
        connections_each: 3,
        ..ServerLimits::default()
    };
    let (instance, signals, mut received) = instance(limits).await;
    let mut client = Client::open(instance.address).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(client.begin(&Request::tool("held", json!({}))).await);
        within("the handler", received.recv()).await;
    }
    let rejected = client.begin(&echo_call()).await;
    let rejected = within("a response", rejected).await.expect("a response");
    assert_eq!(rejected.status(), 503);
    assert_eq!(rejected.headers()["retry-after"], "1");
    // A body would stay in memory until the client reads it.
    assert!(rejected.body().is_end_stream());
    for held in held {
        signals.open();
        assert_eq!(text(&read(held).await.1), "let through");
    }
    let again = async { while client.send(&echo_call()).await.0 != 200 {} };
    within("a stream to be accepted", again).await;
}

#[tokio::test]
async fn streams_of_a_connection_are_limited() {
    let (instance, ..) = instance(ServerLimits::default()).await;
    let mut client = Client::open(instance.address).await;
    echoes(&mut client).await;
    assert_eq!(client.requests.current_max_send_streams(), 100);
}

#[tokio::test]
async fn unread_responses_of_a_caller_are_limited() {
    let limits = ServerLimits {
        body: 100_000,
        body_each: 100_000,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    let mut client =
        Client::open_with(instance.address, Builder::new().initial_window_size(0)).await;
    let request = Request::tool("echo", json!({"text": "x".repeat(20_000)}));
    let mut unread = Vec::new();
    for _ in 0..10 {
        let response = client.begin(&request).await;
        let response = within("a response", response).await;
        unread.push(response.expect("a response"));
    }
    let accepted = unread.iter().filter(|response| response.status() == 200);
    // 100 KB have room for about five responses of 20 KB.
    assert!((1..=6).contains(&accepted.count()), "{unread:?}");
}

/// A call protects its connection only if most streams of the connection are calls.
#[tokio::test]
async fn connection_with_stalled_streams_is_closed_for_a_client_at_another_address() {
    let limits = ServerLimits {
        connections: 10,
        connections_each: 10,
        ..ServerLimits::default()
    };
    let (instance, _signals, mut received) = instance(limits).await;
    let mut client = Client::open(instance.address).await;
    let _held = client.begin(&Request::tool("held", json!({}))).await;
    within("the handler", received.recv()).await;
    let mut incomplete = Vec::new();
    for _ in 0..9 {
        let (head, _) = parts(&echo_call());
        let begun = client.requests.send_request(head, false);
        incomplete.push(begun.expect("room for a stream"));
    }
    // Now the port is full.
    let (rejected, _) = incomplete.pop().expect("nine streams");
    assert_eq!(read(rejected).await.0, 503);
    let other = async {
        while connect_from(&instance, 2).await.is_none() {
            tokio::task::yield_now().await;
        }
    };
    within("a connection of the other client", other).await;
    let _ = client.closed().await;
}

/// Waits at the gate if the request has the header `X-Wait`.
struct Slow(Arc<Signals>);

impl Authenticator for Slow {
    fn authenticate<'a>(&'a self, headers: &'a http::HeaderMap) -> AuthFuture<'a> {
        let waits = headers.contains_key("x-wait");
        Box::pin(async move {
            if waits {
                self.0.say("authenticates");
                self.0.pass().await;
            }
            Ok(Principal::anonymous().into())
        })
    }
}

/// A request does not wait for its client while the server authenticates it.
#[tokio::test]
async fn connection_with_requests_in_authentication_is_kept() {
    let limits = ServerLimits {
        connections: 10,
        connections_each: 10,
        ..ServerLimits::default()
    };
    let (builder, signals, mut received) = builder(limits);
    let instance = start(builder.authenticator(Slow(signals.clone()))).await;
    let mut client = Client::open(instance.address).await;
    let mut slow = Vec::new();
    for _ in 0..9 {
        slow.push(client.begin(&echo_call().header("X-Wait", "1")).await);
        expect_signal(&mut received, "authenticates").await;
    }
    // Now the port is full.
    assert!(connect_from(&instance, 2).await.is_none());
    for response in slow {
        signals.open();
        assert_eq!(read(response).await.0, 200);
    }
}

/// Sends a ping a million times, unless the server closes the connection, and returns how often it was sent.
async fn send_pings(address: SocketAddr) -> usize {
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (mut from, mut to) = stream.into_split();
    let reading =
        tokio::spawn(async move { while let Ok(1..) = from.read(&mut [0; 65536]).await {} });
    to.write_all(PREFACE).await.expect("an open connection");
    to.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
        .await
        .expect("an open connection");
    let pings = PING.repeat(1000);
    let mut sent = 0;
    while sent < 1_000_000 && to.write_all(&pings).await.is_ok() {
        sent += 1000;
    }
    reading.abort();
    sent
}

#[tokio::test]
async fn connection_with_too_many_control_frames_is_closed() {
    let (instance, ..) = instance(ServerLimits::default()).await;
    let mut other = Client::open(instance.address).await;
    let sent = within("the end of the connection", send_pings(instance.address)).await;
    // The buffers of the sockets have room for many.
    assert!((1_000..500_000).contains(&sent), "{sent}");
    echoes(&mut other).await;
}

#[tokio::test]
async fn oversized_head_is_rejected() {
    let limits = ServerLimits {
        head: 20_000,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    let mut client = Client::open(instance.address).await;
    let filled = |length: usize| echo_call().header("X-Filler", &"x".repeat(length));
    assert_eq!(client.send(&filled(15_000)).await.0, 200);
    assert_eq!(client.send(&filled(25_000)).await.0, 431);
    echoes(&mut client).await;
}

/// The idle check does not end it, because other calls keep the connection active.
#[tokio::test]
async fn slow_body_ends_its_stream() {
    let limits = ServerLimits {
        body_time: IDLE,
        ..short_idle_time()
    };
    let (instance, ..) = instance(limits).await;
    let mut client = Client::open(instance.address).await;
    let busy = keep_busy(&client);
    let (head, body) = parts(&echo_call());
    let (silent, _silent_body) = client.requests.send_request(head.clone(), false).unwrap();
    let (slow, mut slow_body) = client.requests.send_request(head, false).unwrap();
    slow_body.send_data(body.slice(..10), false).unwrap();
    for response in [silent, slow] {
        assert_eq!(read(response).await.0, 408);
    }
    echoes(&mut client).await;
    busy.abort();
}

#[tokio::test]
async fn call_of_a_stream_that_is_not_read_is_cancelled() {
    let (instance, _signals, mut received) = instance(short_idle_time()).await;
    let mut client = Client::open(instance.address).await;
    let busy = keep_busy(&client);
    let request = Request::tool("flood", json!({})).meta(LOG_LEVEL_KEY, json!("info"));
    let unread = client.begin(&request).await;
    let unread = within("a response", unread).await.expect("a response");
    expect_signal(&mut received, "dropped").await;
    // The other streams of the connection continue.
    echoes(&mut client).await;
    busy.abort();
    drop(unread);
}

#[tokio::test]
async fn draining_finishes_calls_and_closes_the_connection() {
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        ..ServerLimits::default()
    };
    let (builder, signals, mut received) = builder(limits);
    let mut instance: Instance = start(builder).await;
    let mut client = Client::open(instance.address).await;
    let held = client.begin(&Request::tool("held", json!({}))).await;
    within("the handler", received.recv()).await;
    instance.stop();
    signals.open();
    assert_eq!(text(&read(held).await.1), "let through");
    client.closed().await.expect("an orderly end");
    instance.stopped().await;
}

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    // The flags END_HEADERS and END_STREAM have no meaning for other frames.
    let flags = if kind == 1 { 0x5 } else { 0 };
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Opening and resetting streams costs the client less than the server.
#[tokio::test]
async fn flood_of_resets_closes_the_connection() {
    let (instance, ..) = instance(ServerLimits::default()).await;
    let mut bytes = [PREFACE, &frame(4, 0, &[])].concat();
    // POST, http, / and the authority `localhost`, compressed.
    let head = [b"\x83\x86\x84\x41\x09".as_slice(), b"localhost"].concat();
    let cancel = u32::from(Reason::CANCEL).to_be_bytes();
    for stream in (1..2000).step_by(2) {
        bytes.extend(frame(1, stream, &head));
        bytes.extend(frame(3, stream, &cancel));
    }
    let mut connection = TcpStream::connect(instance.address).await.expect("open");
    // The server may close the connection before it has read all frames.
    let _ = connection.write_all(&bytes).await;
    let mut received = Vec::new();
    let _ = within("the end", connection.read_to_end(&mut received)).await;
    let calm = u32::from(Reason::ENHANCE_YOUR_CALM).to_be_bytes();
    let mut rest = &received[..];
    let mut reasons = Vec::new();
    while rest.len() >= 9 {
        let length = usize::from(rest[1]) << 8 | usize::from(rest[2]);
        if rest[3] == 7 && rest.len() >= 17 {
            reasons.push(rest[13..17].to_vec());
        }
        rest = rest.get(9 + length..).unwrap_or_default();
    }
    assert!(reasons.contains(&calm.to_vec()), "{reasons:?}");
    instance.send(&echo_call()).await.reply();
}
