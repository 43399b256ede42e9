//! Our client as one of an earlier revision, at a server of ours, through a gateway that cuts streams.

use crate::gateway::Gateway;
use crate::support::{called, until, within};
use refrain::prelude::*;
use refrain::{AllowedHosts, KeyRing, SystemSource, serve};
use refrain_client::wire::Revision;
use refrain_client::{Answer, Client, ErrorKind};
use serde_json::json;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

#[derive(Deserialize, Elicit)]
struct Sure {
    sure: bool,
}

/// Tells something, and asks.
#[tool]
async fn pay(cx: Cx) -> Result<String> {
    cx.progress(1.0, Some(2.0), "begun");
    let Sure { sure } = cx.elicit("sure", "Are you sure?").await?;
    Ok(format!("paid: {sure}"))
}

/// Tells something, and goes on for a while.
#[tool]
async fn count(cx: Cx) -> Result<String> {
    for number in 1..=20 {
        cx.progress(f64::from(number), Some(20.0), "counting");
        cx.sleep(Duration::from_millis(50)).await;
    }
    Ok("counted".to_owned())
}

/// Servers of ours that share a key. They stop when what it gives is dropped.
async fn fleet(size: usize) -> (Vec<SocketAddr>, JoinSet<std::io::Result<()>>) {
    let keys = KeyRing::generate(&SystemSource::new());
    let mut addresses = Vec::new();
    let mut serving = JoinSet::new();
    for _ in 0..size {
        let server = Server::builder("shop", "1")
            .keys(keys.clone())
            .tool(pay())
            .tool(count());
        let server = server.build().expect("a usable server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        addresses.push(listener.local_addr().expect("an address"));
        serving.spawn(serve(listener, server, AllowedHosts::local(), pending()));
    }
    (addresses, serving)
}

/// One server of ours.
async fn ours() -> (Vec<SocketAddr>, JoinSet<std::io::Result<()>>) {
    fleet(1).await
}

/// A client of 2025-11-25 that says yes, and counts how often it does.
async fn client(gateway: &Gateway) -> (Client, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let builder = Client::builder()
        .dialect(Revision::V2025_11_25)
        .on_progress(|_| {})
        .on_form(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok(Answer::accept(json!({"sure": true}))?) }
        });
    let client = within("a connection", builder.connect(&gateway.url)).await;
    (client.expect("a connection"), asked)
}

#[tokio::test]
async fn a_stream_goes_on_though_other_instances_do_not_have_it() {
    let (server, _serving) = ours().await;
    let gateway = Gateway::start(
        server,
        &[
            "503 Service Unavailable\r\nretry-after: 1",
            "502 Bad Gateway",
            "429 Too Many Requests",
        ],
    )
    .await;
    let (client, asked) = client(&gateway).await;
    assert_eq!(called(&client, "pay").await.unwrap(), "paid: true");
    assert_eq!(gateway.resumed(), 4);
    assert_eq!(asked.load(Ordering::SeqCst), 1, "nobody is asked twice");
}

#[tokio::test]
async fn a_stream_is_found_at_the_instance_that_has_it() {
    let (servers, _serving) = fleet(2).await;
    let gateway = Gateway::start(servers, &[]).await;
    let (client, _) = client(&gateway).await;
    assert_eq!(called(&client, "count").await.unwrap(), "counted");
    // The first one who was asked for the rest of it is the other one.
    assert_eq!(gateway.resumed(), 2);
}

#[tokio::test]
async fn a_stream_that_is_refused_is_lost() {
    let (server, _serving) = ours().await;
    let gateway = Gateway::start(server, &["404 Not Found", "404 Not Found"]).await;
    let (client, _) = client(&gateway).await;
    let error = called(&client, "pay").await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Broken(_)), "{error}");
    assert_eq!(gateway.resumed(), 1);
}

#[tokio::test]
async fn the_session_is_listened_to_again_though_other_instances_are_busy() {
    let (server, _serving) = ours().await;
    let gateway = Gateway::start(server, &["503 Service Unavailable", "500 No"]).await;
    let (_client, _) = client(&gateway).await;
    until("it listens", || gateway.listened() == 3).await;
    for refusal in [&["405 Method Not Allowed"], &["501 Not Implemented"]] {
        let (server, _serving) = ours().await;
        let gateway = Gateway::start(server, refusal).await;
        let (client, _) = client(&gateway).await;
        within("a list", client.tools()).await.unwrap();
        within("the end", client.close()).await;
        assert_eq!(gateway.listened(), 1, "it has no such stream: {refusal:?}");
    }
}
