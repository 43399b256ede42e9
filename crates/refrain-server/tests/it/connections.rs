//! Limits of connections, idle connections, oversized heads and bodies, and clients that do not read.

use crate::http2::parts;
use crate::support::legacy::{Session, request};
use crate::support::{
    Connection, Guard, Instance, LOG_LEVEL_KEY, OptionalBearer, Request, SignalReceiver, Signals,
    assert_contains, echo, echo_call, expect_signal, forwarded_for, signals, start, text, within,
};
use http_body_util::{BodyExt, Full};
use refrain_core::{Cx, Result};
use refrain_server::{
    AllowedHosts, BearerTokens, BuildError, HttpService, Server, ServerBuilder, ServerLimits,
    State, Tool,
};
use refrain_wire::LogLevel;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Longer than a loaded machine needs to send a request on a new connection.
pub(crate) const IDLE: Duration = Duration::from_millis(500);

async fn held(_: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    signals.say("started");
    signals.pass().await;
    Ok("let through".into())
}

/// Logs without end.
async fn flood(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    let line = "x".repeat(50_000);
    loop {
        cx.log(LogLevel::Info, line.as_str());
        tokio::task::yield_now().await;
    }
}

pub(crate) fn builder(limits: ServerLimits) -> (ServerBuilder, Arc<Signals>, SignalReceiver) {
    let (signals, received) = signals();
    let builder = Server::builder("connections", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("held", held))
        .tool(Tool::new("flood", flood))
        .state(signals.clone())
        .limits(limits);
    (builder, signals, received)
}

pub(crate) async fn instance(limits: ServerLimits) -> (Instance, Arc<Signals>, SignalReceiver) {
    let (builder, signals, received) = builder(limits);
    (start(builder).await, signals, received)
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let limits = ServerLimits {
        idle_time: IDLE,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    let mut done = instance.connect().await;
    assert_eq!(text(&done.exchange(&echo_call()).await.reply()), "Echo: x");
    let mut slow = instance.connect().await;
    slow.write(b"POST /mcp HTTP/1.1\r\nHost: loc").await;
    let mut silent = instance.connect().await;
    for connection in [&mut done, &mut slow, &mut silent] {
        connection.closed().await;
    }
}

#[tokio::test]
async fn connection_with_a_running_call_is_not_idle() {
    let limits = ServerLimits {
        idle_time: IDLE,
        ..ServerLimits::default()
    };
    let (instance, signals, mut received) = instance(limits).await;
    let mut busy = instance.connect().await;
    busy.send(&Request::tool("held", json!({}))).await;
    expect_signal(&mut received, "started").await;
    tokio::time::sleep(4 * IDLE).await;
    signals.open();
    assert_eq!(text(&busy.response().await.reply()), "let through");
}

#[tokio::test]
async fn idle_time_of_zero_does_not_panic() {
    let limits = ServerLimits {
        idle_time: Duration::ZERO,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    instance.connect().await.closed().await;
}

#[tokio::test]
async fn body_far_over_the_limit_closes_the_connection() {
    let limits = ServerLimits {
        body: 1000,
        discard: 4000,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    // A body up to the discard limit is discarded, and the connection stays open.
    let mut connection = instance.connect().await;
    let over = Request::tool("echo", json!({"text": "x".repeat(2000)}));
    connection.exchange(&over).await.error(413, -32600);
    assert_eq!(
        text(&connection.exchange(&echo_call()).await.reply()),
        "Echo: x"
    );
    // A larger Content-Length is rejected before the body is read, and the connection is closed.
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4001\r\n\r\n";
    connection.write(head.as_bytes()).await;
    connection.response().await.error(413, -32600);
    connection.closed().await;
}

/// Opens a connection from 127.0.0.`host` and makes a call, if the server does not close it.
pub(crate) async fn connect_from(instance: &Instance, host: u8) -> Option<Connection> {
    let local = IpAddr::V4(Ipv4Addr::new(127, 0, 0, host));
    let mut connection = Connection::open_from(local, instance.address).await;
    let response = connection.try_exchange(&echo_call()).await.ok()?;
    assert_eq!(text(&response.reply()), "Echo: x");
    Some(connection)
}

#[tokio::test]
async fn connections_are_limited_per_address() {
    let limits = ServerLimits {
        connections_each: 2,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    let first = connect_from(&instance, 1).await.expect("a connection");
    let _second = connect_from(&instance, 1).await.expect("a connection");
    assert!(connect_from(&instance, 1).await.is_none());
    connect_from(&instance, 2)
        .await
        .expect("another address is not affected");
    drop(first);
    let again = async { while connect_from(&instance, 1).await.is_none() {} };
    within("a connection to be accepted", again).await;
}

#[tokio::test]
async fn address_with_few_connections_is_accepted_on_a_full_port() {
    let limits = ServerLimits {
        connections: 4,
        ..ServerLimits::default()
    };
    let (instance, signals, mut received) = instance(limits).await;
    let mut busy = connect_from(&instance, 1).await.expect("a connection");
    busy.send(&Request::tool("held", json!({}))).await;
    within("the handler", received.recv()).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(connect_from(&instance, 1).await.expect("a connection"));
    }
    assert!(
        connect_from(&instance, 1).await.is_none(),
        "its own connections are not closed"
    );
    let mut others = Vec::new();
    for host in [2, 3] {
        others.push(connect_from(&instance, host).await.expect("a connection"));
    }
    assert!(
        connect_from(&instance, 2).await.is_none(),
        "as many connections as any other address"
    );
    let mut closed = 0;
    for connection in &mut idle {
        closed += usize::from(connection.try_exchange(&echo_call()).await.is_err());
    }
    assert_eq!(closed, 2);
    for connection in &mut others {
        connection.exchange(&echo_call()).await.reply();
    }
    signals.open();
    let reply = busy.response().await.reply();
    assert_eq!(text(&reply), "let through", "a busy connection stays");
}

#[tokio::test]
async fn oversized_head_is_rejected() {
    let limits = ServerLimits {
        head: 20_000,
        ..ServerLimits::default()
    };
    let (instance, ..) = instance(limits).await;
    let filled = |length: usize| echo_call().header("X-Filler", &"x".repeat(length));
    instance.send(&filled(15_000)).await.reply();
    assert_eq!(instance.send(&filled(25_000)).await.status, 431);
}

#[tokio::test]
async fn call_of_a_client_that_does_not_read_is_cancelled() {
    let limits = ServerLimits {
        idle_time: IDLE,
        ..ServerLimits::default()
    };
    let (instance, _signals, mut received) = instance(limits).await;
    let mut connection = instance.connect().await;
    let request = Request::tool("flood", json!({})).meta(LOG_LEVEL_KEY, json!("info"));
    connection.send(&request).await;
    expect_signal(&mut received, "dropped").await;
    instance.at_rest().await;
}

#[tokio::test]
async fn caller_at_its_limit_of_calls_gets_no_lists_either() {
    let limits = ServerLimits {
        concurrent_calls_each: 1,
        ..ServerLimits::default()
    };
    let (instance, signals, mut received) = instance(limits).await;
    let session = Session::open(&instance).await;
    let mut first = instance.connect().await;
    first.send(&Request::tool("held", json!({}))).await;
    within("the handler", received.recv()).await;
    for method in ["tools/list", "server/discover"] {
        let rejected = instance.send(&Request::rpc(method, json!({}))).await;
        assert_eq!(rejected.header("retry-after"), Some("1"));
        assert_contains(&rejected.error(503, -32603), &["limit of 1 calls"]);
    }
    for method in ["tools/list", "ping"] {
        let rejected = session.post(&request(1, method, json!({}))).await;
        assert_eq!(rejected.status, 503, "{rejected:?}");
    }
    signals.open();
    first.response().await.reply();
    instance.at_rest().await;
    instance
        .send(&Request::rpc("tools/list", json!({})))
        .await
        .reply();
    session.result(&request(2, "ping", json!({}))).await;
}

#[tokio::test]
async fn authenticated_caller_is_served_despite_many_anonymous_callers() {
    let limits = ServerLimits {
        concurrent_calls: 8,
        concurrent_calls_each: 4,
        ..ServerLimits::default()
    };
    let token = "alice-0123456789abcdef";
    let tokens = BearerTokens::new().with("alice", token);
    let (builder, signals, mut received) = builder(limits);
    let builder = builder.authenticator(OptionalBearer(tokens));
    let instance = start(builder.client_address_header("X-Forwarded-For")).await;
    let mut connections = Vec::new();
    for address in 1..=6 {
        let mut connection = instance.connect().await;
        let held = Request::tool("held", json!({}));
        connection.send(&forwarded_for(held, address)).await;
        within("the handler", received.recv()).await;
        connections.push(connection);
    }
    let rejected = instance.send(&forwarded_for(echo_call(), 7)).await;
    let message = rejected.error(503, -32603);
    assert_contains(&message, &["limit of 6 calls for anonymous callers"]);
    instance.send(&echo_call().bearer(token)).await.reply();
    for mut connection in connections {
        signals.open();
        connection.response().await.reply();
    }
}

/// A caller with a call leaves the last quarter to callers without one.
#[tokio::test]
async fn new_caller_is_served_despite_callers_with_several_calls_each() {
    let limits = ServerLimits {
        concurrent_calls: 8,
        concurrent_calls_each: 4,
        ..ServerLimits::default()
    };
    let (builder, signals, mut received) = builder(limits);
    let instance = start(builder.client_address_header("X-Forwarded-For")).await;
    let mut connections = Vec::new();
    for address in [1, 2, 3, 4, 1, 2, 3, 4] {
        let held = forwarded_for(Request::tool("held", json!({})), address);
        let mut connection = instance.connect().await;
        connection.send(&held).await;
        if connections.len() < 6 {
            within("the handler", received.recv()).await;
            connections.push(connection);
        } else {
            let message = connection.response().await.error(503, -32603);
            assert_contains(&message, &["has 1 calls", "reserved for other callers"]);
        }
    }
    instance.send(&forwarded_for(echo_call(), 5)).await.reply();
    for mut connection in connections {
        signals.open();
        connection.response().await.reply();
    }
}

#[tokio::test]
async fn anonymous_clients_behind_a_proxy_are_limited_by_their_own_address() {
    let limits = || ServerLimits {
        concurrent_calls_each: 1,
        ..ServerLimits::default()
    };
    let held = |address: &str| {
        Request::tool("held", json!({})).header("X-Forwarded-For", &format!("10.9.9.9, {address}"))
    };
    for (header, status) in [(Some("X-Forwarded-For"), 200), (None, 503)] {
        let (mut builder, signals, mut received) = builder(limits());
        if let Some(header) = header {
            builder = builder.client_address_header(header);
        }
        let instance = start(builder).await;
        let mut first = instance.connect().await;
        first.send(&held("192.0.2.1")).await;
        within("the handler", received.recv()).await;
        instance.send(&held("192.0.2.1")).await.error(503, -32603);
        let other = echo_call().header("X-Forwarded-For", "192.0.2.2");
        assert_eq!(instance.send(&other).await.status, status);
        signals.open();
        first.response().await.reply();
    }
    let builder = builder(limits()).0.client_address_header("not a header");
    let error = builder.build().expect_err("an invalid header");
    assert!(matches!(error, BuildError::HeaderName(name) if name == "not a header"));
}

#[tokio::test]
async fn mounted_service_takes_the_address_from_a_request_extension() {
    let limits = ServerLimits {
        concurrent_calls_each: 1,
        ..ServerLimits::default()
    };
    let (builder, signals, mut received) = builder(limits);
    let server = builder.build().expect("a valid server");
    let service = HttpService::new(server, AllowedHosts::local());
    let send = |request: &Request, address: [u8; 4]| {
        let (head, body) = parts(request);
        let mut request = head.map(|()| Full::new(body));
        let address = SocketAddr::from((address, 4711));
        request.extensions_mut().insert(address);
        let service = service.clone();
        async move { service.handle(request).await }
    };
    let first = tokio::spawn(send(&Request::tool("held", json!({})), [192, 0, 2, 1]));
    within("the handler", received.recv()).await;
    assert_eq!(send(&echo_call(), [192, 0, 2, 1]).await.status(), 503);
    assert_eq!(send(&echo_call(), [192, 0, 2, 2]).await.status(), 200);
    signals.open();
    let first = first.await.expect("a response").collect().await;
    assert!(first.is_ok());
}
