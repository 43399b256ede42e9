//! Tests of the limits of connections.

use super::*;
use crate::limits::ServerLimits;
use crate::{AllowedHosts, HttpService, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A port of a server, and its address.
async fn port(limits: ServerLimits) -> (OpenConnections, Listener, std::net::SocketAddr) {
    let builder = Server::builder("connections", "1").limits(limits);
    let server = builder.build().expect("a valid server");
    let service = HttpService::new(server, AllowedHosts::local());
    let routes = PortRoutes::Endpoint(service, [].into());
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = socket.local_addr().expect("an address");
    (OpenConnections::new(routes), socket.into(), address)
}

/// Serves a port until the test ends.
fn serve(mut connections: OpenConnections, listener: Listener) {
    tokio::spawn(async move {
        loop {
            connections.step(&listener).await;
        }
    });
}

/// A request whose head has this many bytes.
fn request(head: usize) -> Vec<u8> {
    let start = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Filler: ";
    let filler = "x".repeat(head - start.len() - 4);
    format!("{start}{filler}\r\n\r\n").into_bytes()
}

/// Reads a response up to these characters.
async fn read_until(client: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        text.push(client.read_u8().await.expect("a response").into());
    }
    text
}

#[tokio::test]
async fn head_over_the_limit_is_rejected_even_if_it_arrives_at_once() {
    let limits = ServerLimits::default();
    let most = limits.head;
    let (connections, listener, address) = port(limits).await;
    serve(connections, listener);
    for (head, status) in [(most, "200"), (most + 1, "431"), (90_000, "431")] {
        let mut client = TcpStream::connect(address).await.expect("a connection");
        client
            .write_all(&request(head))
            .await
            .expect("an open connection");
        let line = read_until(&mut client, "\r\n").await;
        assert!(line.contains(status), "{head}: {line}");
    }
}

#[tokio::test]
async fn failed_accept_closes_an_idle_connection_before_the_next_attempt() {
    let (mut connections, listener, address) = port(ServerLimits::default()).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(TcpStream::connect(address).await.expect("a connection"));
    }
    while connections.open.len() < clients.len() {
        connections.step(&listener).await;
    }
    let no_files = io::Error::other("too many open files");
    for left in [2, 1] {
        connections.accept_failed(&no_files).await;
        assert_eq!(connections.tasks.len(), left, "the task has ended");
    }
    connections.accept_failed(&no_files).await;
    assert_eq!(connections.tasks.len(), 1, "each address keeps one");
}

#[tokio::test]
async fn pipelined_request_waits_for_its_turn() {
    let (connections, listener, address) = port(ServerLimits::default()).await;
    let limits = &connections.routes.server().0.services.limits;
    let queue = limits.pipelined_requests.clone();
    serve(connections, listener);
    let turn = queue.acquire(LimitKey::Anonymous).await;
    let mut pipelining = TcpStream::connect(address).await.expect("a connection");
    let two = request(100).repeat(2);
    pipelining
        .write_all(&two)
        .await
        .expect("an open connection");
    read_until(&mut pipelining, "\nok\n").await;
    // Requests that are sent after the response do not wait.
    let mut other = TcpStream::connect(address).await.expect("a connection");
    for _ in 0..3 {
        let sent = other.write_all(&request(100)).await;
        sent.expect("an open connection");
        read_until(&mut other, "\nok\n").await;
    }
    let second = pipelining.try_read(&mut [0; 1]);
    let waits = second.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    assert!(waits, "the second request was answered out of turn");
    drop(turn);
    read_until(&mut pipelining, "\nok\n").await;
}
