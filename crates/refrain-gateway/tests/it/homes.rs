//! The homes of calls: where they wait, and what they survive.

use crate::support::{
    Ledger, Running, answer, asked, backend, backend_with, completed, keys, text,
};
use refrain::client::{AskAnswer, CallSpec, ErrorKind, RoundOutcome};
use refrain::server::ServerBuilder;
use refrain::store::MemoryStore;
use refrain::task::TaskOptions;
use refrain_gateway::{BackendTable, Gateway, GatewayConfig, ToolHome};
use refrain_testkit::net::wait::success;
use serde_json::json;
use std::sync::Arc;

#[tokio::test]
async fn live_call_is_answered_through_any_gateway() {
    let (ledger, keys) = (Ledger::new(), keys());
    let config = GatewayConfig::single("tested", backend(&ledger));
    let first = Running::start_advertised(&config, &keys).await;
    let second = Running::start_advertised(&config, &keys).await;
    let pending = asked(&first.client().await, "ask_twice", json!({})).await;
    let second_round = answer(&second.client().await, pending, "Ada").await;
    let RoundOutcome::Pending(pending) = second_round else {
        panic!("expected the second question");
    };
    let done = answer(&first.client().await, pending, "Bob").await;
    assert_eq!(completed(done), "Ada, Bob");
    assert_eq!(ledger.count("ask"), 1, "the backend ran the call once");
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn live_call_of_a_lost_gateway_is_reported() {
    let (ledger, keys) = (Ledger::new(), keys());
    let config = GatewayConfig::single("tested", backend(&ledger));
    let first = Running::start_advertised(&config, &keys).await;
    let second = Running::start_advertised(&config, &keys).await;
    let mut pending = asked(&first.client().await, "ask", json!({"subject": "tea"})).await;
    first.gateway.stop().await;
    first.instance.stopped_now().await;
    let key = pending.unanswered()[0].key().to_owned();
    let name = AskAnswer::accept(json!({"name": "Ada"})).expect("an object");
    pending.answer(&key, name).expect("a fitting answer");
    let resumed = second.client().await.resume(pending).await;
    let error = resumed.expect_err("the call is lost");
    assert!(matches!(error.kind, ErrorKind::Rpc(_)), "{error}");
    assert_eq!(ledger.count("ask"), 1, "the call was not repeated");
    second.stop().await;
}

#[tokio::test]
async fn replayed_call_survives_every_gateway() {
    let (ledger, keys) = (Ledger::new(), keys());
    let backend = BackendTable {
        home: ToolHome::Replay,
        ..backend(&ledger)
    };
    let config = GatewayConfig::single("tested", backend);
    let with_keys = |builder: ServerBuilder| builder.keys(keys.clone()).single_instance();
    let first = Running::start_with(&config, with_keys).await;
    let pending = asked(&first.client().await, "ask_twice", json!({})).await;
    first.gateway.stop().await;
    first.instance.stopped_now().await;
    let second = Running::start_with(&config, with_keys).await;
    let second_round = answer(&second.client().await, pending, "Ada").await;
    let RoundOutcome::Pending(pending) = second_round else {
        panic!("expected the second question");
    };
    second.gateway.stop().await;
    second.instance.stopped_now().await;
    let third = Running::start_with(&config, with_keys).await;
    let done = answer(&third.client().await, pending, "Bob").await;
    assert_eq!(completed(done), "Ada, Bob");
    assert_eq!(ledger.count("ask"), 3, "each round ran the backend's call");
    third.stop().await;
    // The question at which a round ends is not answered, not even with an error.
    assert_eq!(ledger.count("answered"), 3);
}

#[tokio::test]
async fn different_question_is_asked_anew() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        home: ToolHome::Replay,
        ..backend_with(&ledger, &["--changing"])
    };
    let config = GatewayConfig::single("tested", backend);
    let running = Running::start_with(&config, ServerBuilder::single_instance).await;
    let client = running.client().await;
    let pending = asked(&client, "ask", json!({"subject": "tea"})).await;
    let RoundOutcome::Pending(mut pending) = answer(&client, pending, "Ada").await else {
        panic!("the answer to another question was used");
    };
    let asks = pending.unanswered();
    let nickname = AskAnswer::accept(json!({"nickname": "Countess"})).expect("an object");
    pending
        .answer(asks[0].key(), nickname)
        .expect("a fitting answer");
    let done = success("the next round", client.resume(pending)).await;
    assert_eq!(completed(done), "tea for Countess");
    running.stop().await;
}

#[tokio::test]
async fn read_only_tools_are_replayed_only_if_hints_are_trusted() {
    let ledger = Ledger::new();
    for (trust_hints, expected) in [(true, "replay"), (false, "live")] {
        let backend = BackendTable {
            trust_hints,
            ..backend_with(&ledger, &["--read-only"])
        };
        let config = GatewayConfig::single("tested", backend);
        let gateway = Gateway::new(config.check().expect("a valid configuration"));
        let reports = gateway.check().await;
        let home = |name: &str| {
            let tool = reports[0].tools.iter().find(|tool| tool.tool == name);
            tool.expect("the tool").home
        };
        assert_eq!((home("ask"), home("echo")), (expected, "live"));
        gateway.stop().await;
    }
}

#[tokio::test]
async fn repeated_call_id_has_one_effect() {
    let ledger = Ledger::new();
    let config = GatewayConfig::single("tested", backend(&ledger));
    let running = Running::start_with(&config, ServerBuilder::single_instance).await;
    let client = running.client().await;
    for _ in 0..2 {
        let call = client.prepare_with_id(CallSpec::tool("effect"), "call-1");
        let call = call.expect("a valid id");
        let result = success("the call", client.finish(call)).await;
        assert_eq!(result["content"][0]["text"], "done");
    }
    assert_eq!(ledger.count("effect"), 1);
    running.stop().await;
}

#[tokio::test]
async fn long_call_becomes_a_task() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        task_after_seconds: 1,
        ..backend(&ledger)
    };
    let config = GatewayConfig::single("tested", backend);
    let running = Running::start_with(&config, |builder| {
        builder.tasks(Arc::new(MemoryStore::new()), TaskOptions::default())
    })
    .await;
    let client = running.client().await;
    let call = CallSpec::tool("slow").argument("seconds", 3);
    let started = success("the first round", client.start(call)).await;
    let RoundOutcome::Pending(pending) = started else {
        panic!("the call did not become a task");
    };
    assert!(pending.task_id().is_some());
    let result = success("the task", client.finish(pending)).await;
    assert_eq!(result["content"][0]["text"], "served");
    assert_eq!(ledger.count("slow"), 1);
    assert_eq!(
        text(&client, "echo", json!({"text": "quick"})).await,
        "quick"
    );
    running.stop().await;
}
