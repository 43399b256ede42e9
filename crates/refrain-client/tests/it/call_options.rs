//! Options of a call: additional metadata and the call id.

use crate::legacy::support::spawn;
use crate::support::{FakeServer, Respond, form, serve_forever, server_asking};
use refrain::prelude::*;
use refrain_client::wire::client::RequestMeta;
use refrain_client::{AskAnswer, CallSpec, Client, ErrorKind, PendingCall};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn call_with_meta() -> CallSpec {
    CallSpec::tool("meta")
        .meta("com.example/tenant", "blue")
        .meta("traceparent", "00-1-2-01")
}

#[tokio::test]
async fn additional_metadata_is_sent_in_each_round() {
    let server = server_asking(json!({"it": form("?", json!({}))})).await;
    let client = Client::builder()
        .on_form(|_| async { Ok(AskAnswer::accept(json!({}))?) })
        .connect(&server.url)
        .await
        .unwrap();
    let stored = serde_json::to_string(&client.prepare(call_with_meta())).unwrap();
    let pending: PendingCall = serde_json::from_str(&stored).unwrap();
    client.finish(pending).await.unwrap();
    let rounds = server.requests("tools/call");
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        let meta = &round["params"]["_meta"];
        assert_eq!(meta["com.example/tenant"], "blue");
        assert_eq!(meta["traceparent"], "00-1-2-01");
        let version = "io.modelcontextprotocol/protocolVersion";
        assert_eq!(meta[version], "2026-07-28");
    }
}

#[tokio::test]
async fn additional_metadata_is_sent_to_legacy_servers() {
    let client = Client::builder().on_progress(|_| {});
    let client = spawn(client, &[]).await.unwrap();
    let result = client.call(call_with_meta()).await.unwrap();
    let meta: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(meta["com.example/tenant"], "blue");
    assert!(meta["progressToken"].is_number(), "{meta}");
}

#[tokio::test]
async fn metadata_of_the_client_cannot_be_replaced() {
    let server = FakeServer::start(|_| Respond::text("done")).await;
    let modern = Client::builder().connect(&server.url).await.unwrap();
    let legacy = FakeServer::legacy(|_, _| Respond::Status(500)).await;
    let of_session = Client::builder().connect(&legacy.url).await.unwrap();
    for key in RequestMeta::KEYS {
        for client in [&modern, &of_session] {
            let called = client.call(CallSpec::tool("t").meta(key, "x"));
            let error = called.await.expect_err("a reserved key");
            assert_matches!(error.kind, ErrorKind::InvalidArgument(_));
            assert!(error.to_string().contains(key), "{error}");
            assert!(error.pending.is_none(), "nothing was sent");
        }
    }
    assert_eq!(server.count("tools/call") + legacy.count("tools/call"), 0);
}

#[tokio::test]
async fn read_with_additional_metadata_is_not_cached() {
    let server = FakeServer::start(|request| {
        let text = request["params"]["_meta"]["com.example/tenant"].to_string();
        let contents = json!([{"uri": "file:///x", "text": text}]);
        Respond::Result(json!({
            "resultType": "complete", "contents": contents, "ttlMs": 60000, "cacheScope": "public",
        }))
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    for tenant in ["null", "\"blue\"", "\"red\""] {
        let mut call = CallSpec::resource("file:///x");
        if tenant != "null" {
            call = call.meta("com.example/tenant", tenant.trim_matches('"'));
        }
        let result = client.call(call).await.unwrap();
        assert_eq!(result["contents"][0]["text"], tenant);
    }
    assert_eq!(server.count("resources/read"), 3);
}

#[tokio::test]
async fn calls_with_the_same_id_are_executed_once() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let tool = Tool::new("count", move |cx: Cx| {
        let counter = Arc::clone(&counter);
        async move {
            let work = async move { ok(counter.fetch_add(1, Ordering::SeqCst)) };
            let run: usize = cx.once("run", work).await?;
            ok(run.to_string())
        }
    });
    let server = Server::builder("counter", "1").tool(tool.once());
    let url = serve_forever(server.single_instance()).await;
    let client = Client::builder().connect(&url).await.unwrap();
    for (id, expected) in [("one", "0"), ("one", "0"), ("two", "1")] {
        let pending = client.prepare_with_id(CallSpec::tool("count"), id).unwrap();
        assert_eq!(pending.call_id(), id);
        let result = client.finish(pending).await.unwrap();
        assert_eq!(result["content"][0]["text"], expected, "call {id}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn call_id_of_invalid_length_is_rejected() {
    let server = FakeServer::start(|_| Respond::text("done")).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let prepare = |id: &str| client.prepare_with_id(CallSpec::tool("t"), id);
    assert!(prepare(&"x".repeat(128)).is_ok());
    for id in [String::new(), "x".repeat(129)] {
        let error = prepare(&id).expect_err("an invalid length");
        assert_matches!(error.kind, ErrorKind::InvalidArgument(_));
    }
}
