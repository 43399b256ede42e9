//! Protocol rules for caching and pagination.

use crate::support::{FakeServer, HeaderAuth, Respond, connect, within};
use futures_util::FutureExt;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use refrain_client::Client;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const LONG: u64 = 600_000;

fn read(text: &str, ttl: u64) -> Respond {
    let contents = json!([{"uri": "file:///x", "text": text}]);
    Respond::Result(json!({"contents": contents, "ttlMs": ttl, "cacheScope": "private"}))
}

fn page(name: &str, next: Option<&str>, ttl: u64) -> Respond {
    let mut page = json!({"prompts": [{"name": name}], "ttlMs": ttl, "cacheScope": "public"});
    if let Some(next) = next {
        page["nextCursor"] = next.into();
    }
    Respond::Result(page)
}

async fn prompts(client: &Client) -> Vec<String> {
    let prompts = client.prompts().await.expect("prompts");
    prompts
        .into_iter()
        .map(|prompt| prompt.name.clone())
        .collect()
}

fn cursors(server: &FakeServer) -> Vec<Value> {
    let requests = server.requests("prompts/list").into_iter();
    requests
        .map(|request| request["params"]["cursor"].clone())
        .collect()
}

#[tokio::test]
async fn resources_are_cached_by_uri() {
    let server =
        FakeServer::start(|request| read(request["params"]["uri"].as_str().unwrap(), LONG)).await;
    let client = connect(&server).await;
    for uri in ["file:///a", "file:///b", "file:///a", "file:///b"] {
        let result = client.read_resource(uri).await.unwrap();
        assert_eq!(json!(result.contents)[0]["text"], uri);
    }
    assert_eq!(server.requests("resources/read").len(), 2);
}

#[tokio::test]
async fn results_of_several_rounds_are_not_cached() {
    let server = FakeServer::start(|request| match request["params"].get("requestState") {
        None => Respond::Result(json!({"resultType": "input_required", "requestState": "s"})),
        Some(_) => read("secret", LONG),
    })
    .await;
    let client = connect(&server).await;
    for _ in 0..2 {
        client.read_resource("file:///x").await.unwrap();
    }
    assert_eq!(server.requests("resources/read").len(), 4);
}

#[tokio::test]
async fn clients_do_not_share_a_cache() {
    let server = FakeServer::start(|_| read("mine", LONG)).await;
    for clients in 1..=2 {
        let client = connect(&server).await;
        for _ in 0..2 {
            client.read_resource("file:///x").await.unwrap();
        }
        assert_eq!(server.requests("resources/read").len(), clients);
    }
}

#[tokio::test]
async fn new_access_token_invalidates_the_cache() {
    let server = FakeServer::start(|_| read("mine", LONG)).await;
    let token = Arc::new(AtomicU64::new(1));
    let current = Arc::clone(&token);
    let authorize = HeaderAuth(move || {
        let token = format!("Bearer {}", current.load(Ordering::SeqCst));
        let token = HeaderValue::try_from(token).expect("a token");
        async { HeaderMap::from_iter([(AUTHORIZATION, token)]) }.boxed()
    });
    let client = Client::builder()
        .authorize(authorize)
        .connect(&server.url)
        .await
        .unwrap();
    let reads = || server.requests("resources/read").len();
    for uri in ["file:///x", "file:///x", "file:///y"] {
        client.read_resource(uri).await.unwrap();
    }
    assert_eq!(reads(), 2);
    token.store(2, Ordering::SeqCst);
    for uri in ["file:///z", "file:///x", "file:///y", "file:///x"] {
        client.read_resource(uri).await.unwrap();
    }
    assert_eq!(
        reads(),
        5,
        "each once more, except the request that changed the token"
    );
    client.read_resource("file:///z").await.unwrap();
    assert_eq!(
        reads(),
        6,
        "the result during the token change was not cached"
    );
}

#[tokio::test]
async fn expired_result_is_requested_again() {
    let server = FakeServer::start(|_| read("new", 30)).await;
    let client = connect(&server).await;
    within("the expiry", async {
        while server.requests("resources/read").len() < 3 {
            client.read_resource("file:///x").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn only_the_expired_page_is_requested_again() {
    let server = FakeServer::start(|request| match request["params"]["cursor"].as_str() {
        None => page("a", Some("2"), LONG),
        Some(_) => page("b", None, 0),
    })
    .await;
    let client = connect(&server).await;
    for _ in 0..2 {
        assert_eq!(prompts(&client).await, ["a", "b"]);
    }
    assert_eq!(cursors(&server), [json!(null), json!("2"), json!("2")]);
}

#[tokio::test]
async fn rejected_cursor_restarts_the_list() {
    let changed = Arc::new(AtomicBool::new(false));
    let has_changed = Arc::clone(&changed);
    let server = FakeServer::start(move |request| {
        let new = has_changed.load(Ordering::SeqCst);
        match request["params"]["cursor"].as_str() {
            None if new => page("a", Some("new"), LONG),
            None => page("a", Some("old"), LONG),
            Some("new") => page("c", None, 0),
            Some("old") if !new => page("b", None, 0),
            Some(_) => Respond::Error(-32602, "no such page"),
        }
    })
    .await;
    let client = connect(&server).await;
    assert_eq!(prompts(&client).await, ["a", "b"]);
    changed.store(true, Ordering::SeqCst);
    assert_eq!(prompts(&client).await, ["a", "c"]);
    let all = ["", "old", "old", "", "new"];
    let seen = cursors(&server);
    let seen: Vec<_> = seen.iter().map(|at| at.as_str().unwrap_or("")).collect();
    assert_eq!(seen, all);
}

#[tokio::test]
async fn list_is_restarted_only_once() {
    let server = FakeServer::start(|request| match request["params"].get("cursor") {
        None => page("a", Some("2"), 0),
        Some(_) => Respond::Error(-32602, "no such page"),
    })
    .await;
    let error = connect(&server).await.prompts().await.unwrap_err();
    assert!(error.to_string().contains("no such page"), "{error}");
    assert_eq!(cursors(&server).len(), 4);
}

#[tokio::test]
async fn empty_cursor_is_a_valid_cursor() {
    let server = FakeServer::start(|request| match request["params"].get("cursor") {
        None => page("a", Some(""), 0),
        Some(cursor) if cursor == "" => page("b", Some(" {\"page\": 3} "), 0),
        Some(_) => page("c", None, 0),
    })
    .await;
    assert_eq!(prompts(&connect(&server).await).await, ["a", "b", "c"]);
    let sent = [json!(null), json!(""), json!(" {\"page\": 3} ")];
    assert_eq!(cursors(&server), sent);
}
