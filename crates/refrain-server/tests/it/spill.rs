//! Tokens that are too large to send and are kept in the store.

use crate::support::tasks::{FaultyStore, eager};
use crate::support::{Instance, Login, Request, asked, names, result, start, text, token, within};
use refrain_core::{Cx, KeyRing, Principal, Result, SystemSource, ok};
use refrain_server::{BearerTokens, Server, ServerBuilder, TaskOptions, Tool};
use refrain_store::{MemoryStore, StoreError};
use serde_json::{Value, json};
use std::sync::Arc;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

async fn large_journal(cx: Cx) -> Result<String> {
    let hoard = cx.step("hoard", async { ok("x".repeat(3000)) }).await?;
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(format!("{} characters for {}", hoard.len(), login.name))
}

fn builder(keys: &KeyRing) -> ServerBuilder {
    Server::builder("spill", "1")
        .keys(keys.clone())
        .max_token(1000)
        .tool(Tool::new("work", large_journal))
}

fn keys() -> KeyRing {
    KeyRing::generate(&SystemSource::new())
}

fn answers() -> Value {
    json!({"login": {"action": "accept", "content": {"name": "Ada"}}})
}

async fn first(instance: &Instance) -> String {
    let reply = instance
        .send(&Request::tool("work", json!({})))
        .await
        .reply();
    assert_eq!(asked(&reply), ["login"]);
    token(&reply)
}

#[tokio::test]
async fn large_token_is_replaced_by_a_reference_for_any_instance() {
    let (store, keys) = (MemoryStore::new(), keys());
    let with_store = || builder(&keys).tasks(Arc::new(store.clone()), eager());
    let one = start(with_store()).await;
    let token = first(&one).await;
    assert!(token.len() < 100, "{token}");
    let two = start(with_store()).await;
    let again = Request::tool("work", json!({})).again(&token, answers());
    let reply = two.send(&again).await.reply();
    assert_eq!(text(&reply), "3000 characters for Ada");
    // The same without a transport, as over stdio.
    let message = again.message();
    let handling = two.server.handle(&message, Principal::anonymous());
    let mut out = within("a response", handling).await;
    let reply = within("the reply", out.next())
        .await
        .expect("there is a reply");
    let reply: Value = serde_json::from_slice(&reply).expect("replies are JSON");
    assert_eq!(text(&reply), "3000 characters for Ada");
    assert_eq!(within("the end", out.next()).await, None);
}

#[tokio::test]
async fn token_reference_is_rejected_for_other_callers() {
    let (store, keys) = (MemoryStore::new(), keys());
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let server = builder(&keys).tasks(Arc::new(store), eager());
    let instance = start(server.authenticator(tokens)).await;
    let as_one = |request: Request, bearer: &str| {
        request.header("Authorization", &format!("Bearer {bearer}"))
    };
    let call = || Request::tool("work", json!({}));
    let reply = instance.send(&as_one(call(), ALICE)).await.reply();
    let reference = token(&reply);
    let unknown = format!("s.{}", "0".repeat(48));
    let rejected = [
        as_one(call().again(&reference, answers()), BOB),
        as_one(call().again(&unknown, answers()), ALICE),
        as_one(call().again("s.../../etc", answers()), ALICE),
        as_one(call().again("s.", answers()), ALICE),
    ];
    for request in rejected {
        let error = instance.send(&request).await.error(200, -32602);
        names(&error, &["requestState is not valid for this request"]);
    }
    let again = as_one(call().again(&reference, answers()), ALICE);
    let reply = instance.send(&again).await.reply();
    assert_eq!(result(&reply)["isError"], false);
}

#[tokio::test]
async fn token_above_the_limit_fails_and_names_the_largest_entry() {
    let keys = keys();
    let store = Arc::new(MemoryStore::new());
    let options = TaskOptions {
        journal: 2000,
        ..eager()
    };
    let small_store = start(builder(&keys).tasks(store, options)).await;
    let no_store = start(builder(&keys)).await;
    for (instance, limit) in [(&small_store, "2000"), (&no_store, "1000")] {
        let reply = instance.send(&Request::tool("work", json!({}))).await;
        names(&reply.error(200, -32603), &[limit, "hoard"]);
    }
}

#[tokio::test]
async fn token_reference_stays_valid_while_the_store_is_unavailable() {
    let (store, keys) = (MemoryStore::new(), keys());
    let faulty = FaultyStore::new(&store);
    let instance = start(builder(&keys).tasks(faulty.clone(), eager())).await;
    let reference = first(&instance).await;
    let again = Request::tool("work", json!({})).again(&reference, answers());
    faulty.fail(Some(StoreError::Unavailable("failover".into())));
    let error = instance.send(&again).await.error(200, -32603);
    names(&error, &["task store is unavailable", "try again"]);
    faulty.fail(None);
    let reply = instance.send(&again).await.reply();
    assert_eq!(text(&reply), "3000 characters for Ada");
}
