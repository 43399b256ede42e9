//! The client in a legacy revision against Refrain servers, through a proxy that cuts streams.

use super::support::{called, until, within};
use refrain::prelude::*;
use refrain::runtime::SystemSource;
use refrain::server::KeyRing;
use refrain_client::wire::legacy::Revision;
use refrain_client::{AskAnswer, Client, ErrorKind};
use refrain_testkit::net::proxy::{CALL, Fault, GET, Plan, RESUME};
use refrain_testkit::net::{FaultProxy, Instance, start};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// An answer is a message without a method.
const ANSWER: &str = "";

#[derive(Deserialize, Elicit)]
struct Sure {
    sure: bool,
}

/// Reports progress, and asks.
#[tool]
async fn pay(cx: Cx) -> Result<String> {
    cx.progress(1.0, Some(2.0), "begun");
    let Sure { sure } = cx.elicit("sure", "Are you sure?").await?;
    Ok(format!("paid: {sure}"))
}

/// Reports progress for a while.
#[tool]
async fn count(cx: Cx) -> Result<String> {
    for number in 1..=20 {
        cx.progress(f64::from(number), Some(20.0), "counting");
        cx.sleep(Duration::from_millis(50)).await;
    }
    Ok("counted".to_owned())
}

/// Refrain servers that share a key.
async fn fleet_of(size: usize) -> Vec<Instance> {
    let keys = KeyRing::generate(&SystemSource::new());
    let mut fleet = Vec::new();
    for _ in 0..size {
        let server = Server::builder("shop", "1").keys(keys.clone());
        fleet.push(start(server.tool(pay()).tool(count())).await);
    }
    fleet
}

/// A proxy that cuts the first call stream after its first event, and sends these status lines (and headers) to the first GETs.
async fn proxy_to(fleet: &[Instance], statuses: &[&'static str]) -> FaultProxy {
    let mut plan = Plan::default().fault(CALL, 1, Fault::CutUnfinished);
    for (index, status) in statuses.iter().enumerate() {
        for method in [GET, RESUME] {
            plan = plan.fault(method, index + 1, Fault::Status(status));
        }
    }
    FaultProxy::start(fleet.iter().map(|one| one.address).collect(), plan).await
}

/// A 2025-11-25 client that accepts forms, and the number of forms.
async fn client(proxy: &FaultProxy) -> (Client, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let builder = Client::builder()
        .dialect(Revision::V2025_11_25)
        .on_progress(|_| {})
        .on_form(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok(AskAnswer::accept(json!({"sure": true}))?) }
        });
    let client = within("a connection", builder.connect(&proxy.url)).await;
    (client.expect("a connection"), asked)
}

#[tokio::test]
async fn stream_resumes_after_busy_instances() {
    let fleet = fleet_of(1).await;
    let proxy = proxy_to(
        &fleet,
        &[
            "503 Service Unavailable\r\nretry-after: 1",
            "502 Bad Gateway",
            "429 Too Many Requests",
        ],
    )
    .await;
    let (client, asked) = client(&proxy).await;
    assert_eq!(called(&client, "pay").await.unwrap(), "paid: true");
    assert_eq!(proxy.count(RESUME).0, 4);
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the ask is made once");
}

/// As if an instance were killed while it relays an answer to the holder of the call.
#[tokio::test]
async fn call_completes_if_its_answer_or_the_acknowledgement_is_lost() {
    for fault in [Fault::LoseRequest, Fault::LoseResponse] {
        let fleet = fleet_of(1).await;
        let plan = Plan::default().fault(ANSWER, 1, fault);
        let proxy = FaultProxy::start(vec![fleet[0].address], plan).await;
        let (client, asked) = client(&proxy).await;
        assert_eq!(called(&client, "pay").await.unwrap(), "paid: true");
        assert_eq!(asked.load(Ordering::SeqCst), 1, "the ask is made once");
    }
}

#[tokio::test]
async fn stream_resumes_at_the_instance_that_has_it() {
    let fleet = fleet_of(2).await;
    let proxy = proxy_to(&fleet, &[]).await;
    let (client, _) = client(&proxy).await;
    assert_eq!(called(&client, "count").await.unwrap(), "counted");
    // The proxy alternates: the instance without the stream comes first.
    assert_eq!(proxy.count(RESUME).0, 2);
}

#[tokio::test]
async fn rejected_resumption_loses_the_connection() {
    let fleet = fleet_of(1).await;
    let proxy = proxy_to(&fleet, &["404 Not Found", "404 Not Found"]).await;
    let (client, _) = client(&proxy).await;
    let error = called(&client, "pay").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::ConnectionLost(_));
    assert_eq!(proxy.count(RESUME).0, 1);
}

#[tokio::test]
async fn session_stream_is_retried_while_instances_are_busy() {
    let fleet = fleet_of(1).await;
    let proxy = proxy_to(&fleet, &["503 Service Unavailable", "500 No"]).await;
    let (_client, _) = client(&proxy).await;
    until("the session stream", || proxy.count(GET).0 == 3).await;
    for status in [&["405 Method Not Allowed"], &["501 Not Implemented"]] {
        let fleet = fleet_of(1).await;
        let proxy = proxy_to(&fleet, status).await;
        let (client, _) = client(&proxy).await;
        within("a list", client.tools()).await.unwrap();
        within("the end", client.close()).await;
        assert_eq!(
            proxy.count(GET).0,
            1,
            "the server offers no session stream: {status:?}"
        );
    }
}
