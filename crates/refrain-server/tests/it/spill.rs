//! Tokens that are too large to travel wait in the store.

use crate::support::tasks::{FaultyStore, eager};
use crate::support::{Instance, Login, Request, asked, names, result, start, text, token, within};
use refrain_core::{Cx, KeyRing, Principal, Result, SystemSource, ok};
use refrain_server::{BearerTokens, Server, ServerBuilder, TaskOptions, Tool};
use refrain_store::{MemoryStore, StoreError};
use serde_json::{Value, json};
use std::sync::Arc;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

async fn hoards(cx: Cx) -> Result<String> {
    let hoard = cx.step("hoard", async { ok("x".repeat(3000)) }).await?;
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(format!("{} characters for {}", hoard.len(), login.name))
}

fn builder(keys: &KeyRing) -> ServerBuilder {
    Server::builder("spill", "1")
        .keys(keys.clone())
        .max_token(1000)
        .tool(Tool::new("work", hoards))
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
async fn what_travels_is_short_and_any_instance_takes_it_from_there() {
    let (store, keys) = (MemoryStore::new(), keys());
    let with_store = || builder(&keys).tasks(Arc::new(store.clone()), eager());
    let one = start(with_store()).await;
    let token = first(&one).await;
    assert!(token.len() < 100, "{token}");
    let two = start(with_store()).await;
    let again = Request::tool("work", json!({})).again(&token, answers());
    let reply = two.send(&again).await.reply();
    assert_eq!(text(&reply), "3000 characters for Ada");
    // Without a transport, as over stdio.
    let message = again.message();
    let handling = two.server.handle(&message, Principal::anonymous());
    let mut out = within("a response", handling).await;
    let reply = within("the reply", out.next()).await.expect("a reply");
    let reply: Value = serde_json::from_slice(&reply).expect("JSON");
    assert_eq!(text(&reply), "3000 characters for Ada");
    assert_eq!(within("the end", out.next()).await, None);
}

#[tokio::test]
async fn the_name_of_a_token_is_of_no_use_to_others() {
    let (store, keys) = (MemoryStore::new(), keys());
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let server = builder(&keys).tasks(Arc::new(store), eager());
    let instance = start(server.authenticator(tokens)).await;
    let as_one = |request: Request, bearer: &str| {
        request.header("Authorization", &format!("Bearer {bearer}"))
    };
    let call = || Request::tool("work", json!({}));
    let reply = instance.send(&as_one(call(), ALICE)).await.reply();
    let name = token(&reply);
    let unknown = format!("s.{}", "0".repeat(48));
    let refused = [
        as_one(call().again(&name, answers()), BOB),
        as_one(call().again(&unknown, answers()), ALICE),
        as_one(call().again("s.../../etc", answers()), ALICE),
        as_one(call().again("s.", answers()), ALICE),
    ];
    for request in refused {
        let error = instance.send(&request).await.error(200, -32602);
        names(&error, &["requestState is not valid for this request"]);
    }
    let again = as_one(call().again(&name, answers()), ALICE);
    let reply = instance.send(&again).await.reply();
    assert_eq!(result(&reply)["isError"], false);
}

#[tokio::test]
async fn what_is_too_large_for_the_store_or_has_none_is_an_error_that_names_the_largest_entry() {
    let keys = keys();
    let store = Arc::new(MemoryStore::new());
    let options = TaskOptions {
        journal: 2000,
        ..eager()
    };
    let small = start(builder(&keys).tasks(store, options)).await;
    let none = start(builder(&keys)).await;
    for (instance, limit) in [(&small, "2000"), (&none, "1000")] {
        let reply = instance.send(&Request::tool("work", json!({}))).await;
        names(&reply.error(200, -32603), &[limit, "hoard"]);
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_told_and_the_token_stays_good() {
    let (store, keys) = (MemoryStore::new(), keys());
    let shaky = FaultyStore::new(&store);
    let instance = start(builder(&keys).tasks(shaky.clone(), eager())).await;
    let name = first(&instance).await;
    let again = Request::tool("work", json!({})).again(&name, answers());
    shaky.fail(Some(StoreError::Unavailable("it is being moved".into())));
    let error = instance.send(&again).await.error(200, -32603);
    names(&error, &["task store cannot be reached", "try again"]);
    shaky.fail(None);
    let reply = instance.send(&again).await.reply();
    assert_eq!(text(&reply), "3000 characters for Ada");
}
