//! Protocol rules for completion, pings and subscriptions.

use crate::support::{FakeServer, Respond};
use refrain_client::wire::{Filter, Reference};
use refrain_client::{ChangeStream, Client, ErrorKind, ServerChange};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[tokio::test]
async fn completion_is_sent_and_ping_is_a_discover_request() {
    let server = FakeServer::start(|_| {
        let completion = json!({"values": ["Norwegian"], "total": 1, "hasMore": false});
        Respond::Result(json!({"resultType": "complete", "completion": completion}))
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let prompt = Reference::Prompt("translate".into());
    let context = BTreeMap::new();
    let completed = client.complete(&prompt, "language", "Nor", &context).await;
    assert_eq!(completed.unwrap().values, ["Norwegian"]);
    let sent = &server.requests("completion/complete")[0]["params"];
    assert_eq!(
        sent["ref"],
        json!({"type": "ref/prompt", "name": "translate"})
    );
    assert_eq!(
        sent["argument"],
        json!({"name": "language", "value": "Nor"})
    );
    assert_eq!(sent.get("context"), None);
    client.ping().await.unwrap();
    assert_eq!(server.count("server/discover"), 2);
    assert_eq!(server.count("ping"), 0, "2026-07-28 has no ping");
}

#[tokio::test]
async fn partial_completion_is_read_and_an_invalid_one_rejected() {
    for (completion, expected) in [
        (json!({"values": []}), Some(0)),
        (json!({"values": ["a"], "hasMore": true}), Some(1)),
        (json!({"values": "a"}), None),
        (json!(null), None),
    ] {
        let server = FakeServer::start(move |_| {
            Respond::Result(json!({"resultType": "complete", "completion": completion}))
        })
        .await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        let prompt = Reference::Prompt("p".into());
        match (
            client.complete(&prompt, "a", "", &BTreeMap::new()).await,
            expected,
        ) {
            (Ok(completed), Some(count)) => assert_eq!(completed.values.len(), count),
            (Err(error), None) => assert_matches!(error.kind, ErrorKind::InvalidResponse(_)),
            (result, _) => panic!("{result:?}"),
        }
    }
}

/// Subscribes at a server that grants only changes of the tool list, sends these messages, and closes the stream.
async fn subscribe(messages: Vec<Value>) -> (FakeServer, ChangeStream) {
    let server = FakeServer::start(move |request| {
        let meta = json!({"io.modelcontextprotocol/subscriptionId": request["id"]});
        let granted = json!({"_meta": meta, "notifications": {"toolsListChanged": true}});
        let method = "notifications/subscriptions/acknowledged";
        let mut all = vec![json!({"method": method, "params": granted})];
        all.extend(messages.iter().cloned());
        Respond::stream(request, &all)
    })
    .await;
    let wanted = Filter {
        tools: true,
        prompts: true,
        uris: vec!["file:///x".to_owned()],
        ..Filter::default()
    };
    let client = Client::builder()
        .connect(&server.url)
        .await
        .expect("a server");
    let changes = client.listen(&wanted).await.expect("a subscription");
    (server, changes)
}

#[tokio::test]
async fn granted_filter_is_reported_and_unknown_messages_ignored() {
    let updated = json!({"uri": "file:///x"});
    let (server, mut changes) = subscribe(vec![
        json!({"method": "notifications/dance"}),
        json!({"method": "roots/list", "id": 1}),
        json!({"method": "notifications/resources/updated", "params": updated}),
        json!({"result": {"resultType": "complete"}}),
    ])
    .await;
    let requested = &server.requests("subscriptions/listen")[0]["params"]["notifications"];
    let filter = json!({
        "toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": ["file:///x"],
    });
    assert_eq!(requested, &filter);
    let granted = changes.granted();
    assert!(granted.tools && !granted.prompts && granted.uris.is_empty());
    let change = changes.next().await.unwrap();
    assert_eq!(change, Some(ServerChange::Resource("file:///x".to_owned())));
    assert_eq!(changes.next().await.unwrap(), None);
    assert_eq!(server.all().len(), 2, "no response is sent");
}

#[tokio::test]
async fn ended_subscription_differs_from_a_lost_connection() {
    let ended = json!({"result": {"resultType": "complete"}});
    let cancelled = json!({"method": "notifications/cancelled", "params": {"requestId": 2}});
    for end in [ended, cancelled] {
        let (_server, mut changes) = subscribe(vec![end]).await;
        assert_eq!(changes.next().await.unwrap(), None);
    }
    let (_server, mut changes) = subscribe(Vec::new()).await;
    let error = changes.next().await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::ConnectionLost(_));
}

#[tokio::test]
async fn rejected_subscription_is_an_error() {
    let server = FakeServer::start(|_| Respond::Error(-32601, "no such method")).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let error = client.listen(&Filter::default()).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Rpc(_));
}
