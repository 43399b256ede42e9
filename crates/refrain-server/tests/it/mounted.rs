//! The endpoint mounted in an axum application.

use crate::support::{Connection, LOG_LEVEL_KEY, Request, asked, echo, greet, login, text, token};
use axum::Router;
use axum::routing::get;
use refrain_core::{Cx, Result};
use refrain_server::{AllowedHosts, HttpService, Server, Tool};
use refrain_wire::LogLevel;
use serde_json::json;
use std::net::SocketAddr;
use tokio::net::TcpListener;

async fn chatty(cx: Cx) -> Result<String> {
    cx.log(LogLevel::Info, "one");
    Ok("two".into())
}

/// An application with its own page and the endpoint at two paths.
async fn application() -> SocketAddr {
    let server = Server::builder("mounted", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("chatty", chatty))
        .build()
        .expect("a valid server");
    let service = HttpService::new(server, AllowedHosts::local());
    let app = Router::new()
        .route("/", get(|| async { "a page" }))
        .route_service("/mcp", service.clone())
        .nest("/v1", Router::new().route_service("/tools", service));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn rounds_work_in_an_axum_application() {
    let mut connection = Connection::open(application().await).await;
    let plain = || Request::tool("greet", json!({}));
    let first = connection.exchange(&plain()).await.reply();
    assert_eq!(asked(&first), ["login"]);
    let again = plain()
        .again(&token(&first), login("octocat"))
        .path("/v1/tools");
    assert_eq!(
        text(&connection.exchange(&again).await.reply()),
        "Hello, octocat!"
    );
}

#[tokio::test]
async fn streams_and_errors_work_in_an_axum_application() {
    let mut connection = Connection::open(application().await).await;
    let request = Request::tool("chatty", json!({})).meta(LOG_LEVEL_KEY, json!("info"));
    let events = connection.exchange(&request).await.events();
    assert_eq!(
        (events.len(), &events[0]["params"]["data"]),
        (2, &json!("one"))
    );
    assert_eq!(text(&events[1]), "two");

    connection
        .exchange(&Request::bytes("nope"))
        .await
        .error(400, -32700);
    let other_host = request.header("Host", "evil.example");
    connection.exchange(&other_host).await.error(403, -32600);
    connection
        .write(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    connection.response().await.error(405, -32600);
    connection
        .write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    assert_eq!(connection.response().await.body, b"a page");
}
