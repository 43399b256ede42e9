//! The limit on the number of JSON values in a message, on every transport.

use crate::support::legacy::{Session, call, initialize, request};
use crate::support::{
    CLIENT_INFO_KEY, Instance, Request, StdioClient, assert_contains, echo, echo_call, greet,
    handle, start, text, token,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use refrain_core::Principal;
use refrain_server::{AllowedHosts, HttpService, Server, ServerBuilder, ServerLimits, Tool};
use refrain_wire::drafts::Draft;
use serde_json::{Value, json};

/// The limit of these tests.
const VALUES: usize = 200;
/// The words of the error message.
const ERROR: [&str; 2] = ["more than 200 JSON values", "json_values"];

fn builder() -> ServerBuilder {
    Server::builder("values", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
        .limits(ServerLimits {
            json_values: VALUES,
            ..ServerLimits::default()
        })
}

async fn instance() -> Instance {
    start(builder()).await
}

/// More values than allowed.
fn many() -> Value {
    vec![json!({"": 0}); VALUES].into()
}

fn over() -> Request {
    Request::tool("echo", json!({"text": "x", "more": many()}))
}

#[tokio::test]
async fn request_over_http_is_rejected() {
    let instance = instance().await;
    let first = instance.send(&Request::tool("greet", json!({}))).await;
    let answer = json!({"login": {"action": "accept", "content": {"name": "x", "more": many()}}});
    for request in [
        over(),
        echo_call().meta(CLIENT_INFO_KEY, json!({"more": many()})),
        echo_call().param("more", many()),
        Request::tool("greet", json!({})).again(&token(&first.reply()), answer),
    ] {
        let response = instance.send(&request.id(json!("seven"))).await;
        assert_contains(&response.error(413, -32600), &ERROR);
        assert_eq!(response.json()["id"], "seven");
    }
    let fits = Request::tool("echo", json!({"text": "x", "more": vec![0; VALUES / 2]}));
    assert_eq!(text(&instance.send(&fits).await.reply()), "Echo: x");
}

#[tokio::test]
async fn default_is_a_hundred_thousand_values() {
    let instance = start(Server::builder("values", "1").tool(Tool::new("echo", echo))).await;
    let of = |more: usize| Request::tool("echo", json!({"text": "x", "more": vec![0; more]}));
    let fits = instance.send(&of(99_900)).await.reply();
    assert_eq!(text(&fits), "Echo: x");
    let response = instance.send(&of(100_000)).await;
    assert_contains(&response.error(413, -32600), &["100000", "json_values"]);
}

#[tokio::test]
async fn message_without_transport_is_rejected() {
    let server = builder().build().expect("a server");
    let reply = handle(&server, &over(), Principal::anonymous()).await;
    assert_eq!(reply["error"]["code"], -32600);
}

#[tokio::test]
async fn message_of_a_legacy_session_is_rejected() {
    let instance = instance().await;
    let opening = initialize("2025-11-25", &json!({"experimental": {"more": many()}}));
    let opening = Request::post("/mcp", opening.to_string());
    assert_contains(&instance.send(&opening).await.error(413, -32600), &ERROR);

    let session = Session::open(&instance).await;
    let rejected = session
        .post(&call(7, "echo", json!({"text": many()})))
        .await;
    assert_contains(&rejected.error(413, -32600), &ERROR);
    assert_eq!(rejected.json()["id"], 7);
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    let result = json!({"action": "accept", "content": {"name": "Ann", "more": many()}});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
    let rejected = session.post(&answer).await;
    assert_contains(&rejected.error(413, -32600), &ERROR);
    assert_eq!(rejected.json().get("id"), None);
}

/// The limit is that of the batch, not of its messages.
#[tokio::test]
async fn batch_of_a_legacy_session_is_rejected() {
    let instance = instance().await;
    let session = Session::open_with(instance.address, "2025-03-26", &json!({}), &[]).await;
    let batch: Vec<Value> = (0..50).map(|id| request(id, "ping", json!({}))).collect();
    let rejected = session.post(&json!(batch)).await;
    assert_contains(&rejected.error(413, -32600), &ERROR);
    let fits = session.stream(&json!(batch[..10])).await.rest().await;
    assert_eq!(fits.len(), 10);
}

#[tokio::test]
async fn line_over_stdio_is_rejected() {
    let mut client = StdioClient::start(builder());
    let rejected = client.call(&over().id(json!(7))).await;
    assert_eq!(rejected["id"], 7);
    assert_eq!(rejected["error"]["code"], -32600);
    assert_contains(rejected["error"]["message"].as_str().unwrap(), &ERROR);
    let next = client.call(&echo_call()).await;
    assert_eq!(text(&next), "Echo: x");

    client.message(&initialize("2025-03-26", &json!({}))).await;
    client.read().await;
    let batch: Vec<Value> = (0..50).map(|id| request(id, "ping", json!({}))).collect();
    client.message(&json!(batch)).await;
    let rejected = client.read().await;
    assert_contains(rejected["error"]["message"].as_str().unwrap(), &ERROR);
    assert_eq!(rejected.get("id"), None);
}

#[tokio::test]
async fn message_to_a_draft_endpoint_is_rejected() {
    for draft in [Draft::Sketch, Draft::First, Draft::Second] {
        let server = builder().draft(draft).build().expect("a server");
        let service = HttpService::for_draft(draft, server, AllowedHosts::local());
        let message = call(7, "echo", json!({"text": "x", "more": many()}));
        let request = http::Request::post("/")
            .header("Host", "localhost")
            .header("Content-Type", "application/json")
            .body(Full::new(Bytes::from(message.to_string())))
            .expect("a request");
        let response = service.handle(request).await;
        assert_eq!(response.status(), 413, "{draft}");
        let body = response.into_body().collect().await.expect("a body");
        let reply: Value = serde_json::from_slice(&body.to_bytes()).expect("JSON");
        assert_eq!(reply["id"], 7);
        assert_contains(reply["error"]["message"].as_str().unwrap(), &ERROR);
    }
}
