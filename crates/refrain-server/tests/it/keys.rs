//! Keys that are rotated while an instance runs.

use crate::support::{Request, greet, start, text, token};
use refrain_core::{KeyRing, SystemSource};
use refrain_server::{Server, ServerBuilder, Tool};
use serde_json::{Value, json};

fn builder() -> ServerBuilder {
    Server::builder("keys", "1").tool(Tool::new("greet", greet))
}

fn plain() -> Request {
    Request::tool("greet", json!({}))
}

fn again(token: &str) -> Request {
    let answers: Value = json!({"login": {"action": "accept", "content": {"name": "x"}}});
    plain().again(token, answers)
}

#[tokio::test]
async fn a_fleet_rotates_its_keys_without_refusing_a_token() {
    let source = SystemSource::new();
    let mut ring = KeyRing::generate(&source);
    let old = ring.list().next().unwrap().0.to_string();
    let first = start(builder().keys(ring.clone())).await;
    let second = start(builder().keys(ring.clone())).await;
    let under_old = token(&first.send(&plain()).await.reply());

    // Staged on one instance: what it does not mint yet, the other need not know yet.
    let new = ring.stage(&source).to_string();
    first.server.reload_keys(ring.clone());
    let staged = token(&first.send(&plain()).await.reply());
    assert_eq!(
        text(&second.send(&again(&staged)).await.reply()),
        "Hello, x!"
    );
    second.server.reload_keys(ring.clone());

    // Promoted on one instance: the other opens what it mints, and the old key still opens.
    ring.promote(&new).unwrap();
    first.server.reload_keys(ring.clone());
    let under_new = token(&first.send(&plain()).await.reply());
    for instance in [&first, &second] {
        for state in [&under_old, &staged, &under_new] {
            assert_eq!(
                text(&instance.send(&again(state)).await.reply()),
                "Hello, x!"
            );
        }
    }
    second.server.reload_keys(ring.clone());

    // Retired: its tokens are refused from now on, with the one error.
    ring.retire(&old).unwrap();
    first.server.reload_keys(ring);
    let nonsense = first.send(&again("nonsense")).await.json();
    for state in [&under_old, &staged] {
        let refused = first.send(&again(state)).await;
        refused.error(200, -32602);
        assert_eq!(refused.json(), nonsense);
    }
    assert_eq!(
        text(&first.send(&again(&under_new)).await.reply()),
        "Hello, x!"
    );
}

#[tokio::test]
async fn instances_without_keys_do_not_open_each_others_tokens() {
    let (first, second) = (start(builder()).await, start(builder()).await);
    let state = token(&first.send(&plain()).await.reply());
    second.send(&again(&state)).await.error(200, -32602);
    assert_eq!(text(&first.send(&again(&state)).await.reply()), "Hello, x!");
}
