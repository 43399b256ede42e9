//! Tokens that are too large to send and are kept in the store.

use crate::support::tasks::{FaultyStore, eager};
use crate::support::{
    Instance, Login, Request, asked, assert_contains, keys, login, result, start, text, token,
    within,
};
use refrain_core::{Cx, KeyRing, Principal, Result, ok};
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
    let again = Request::tool("work", json!({})).again(&token, login("Ada"));
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
    let call = || Request::tool("work", json!({}));
    let reply = instance.send(&call().bearer(ALICE)).await.reply();
    let reference = token(&reply);
    let unknown = format!("s.{}", "0".repeat(48));
    let rejected = [
        call().again(&reference, login("Ada")).bearer(BOB),
        call().again(&unknown, login("Ada")).bearer(ALICE),
        call().again("s.../../etc", login("Ada")).bearer(ALICE),
        call().again("s.", login("Ada")).bearer(ALICE),
    ];
    for request in rejected {
        let error = instance.send(&request).await.error(200, -32602);
        assert_contains(&error, &["requestState is not valid for this request"]);
    }
    let again = call().again(&reference, login("Ada")).bearer(ALICE);
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
        assert_contains(&reply.error(200, -32603), &[limit, "hoard"]);
    }
}

#[tokio::test]
async fn token_reference_stays_valid_while_the_store_is_unavailable() {
    let (store, keys) = (MemoryStore::new(), keys());
    let faulty = FaultyStore::new(&store);
    let instance = start(builder(&keys).tasks(faulty.clone(), eager())).await;
    let reference = first(&instance).await;
    let again = Request::tool("work", json!({})).again(&reference, login("Ada"));
    faulty.fail(Some(StoreError::Unavailable("failover".into())));
    let error = instance.send(&again).await.error(200, -32603);
    assert_contains(&error, &["task store is unavailable", "try again"]);
    faulty.fail(None);
    let reply = instance.send(&again).await.reply();
    assert_eq!(text(&reply), "3000 characters for Ada");
}
