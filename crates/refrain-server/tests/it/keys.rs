//! Key rotation while instances run.

use crate::support::{Request, greet, login, start, text, token};
use refrain_core::{KeyRing, SystemSource};
use refrain_server::{Server, ServerBuilder, Tool};
use serde_json::json;

fn builder() -> ServerBuilder {
    Server::builder("keys", "1").tool(Tool::new("greet", greet))
}

fn plain() -> Request {
    Request::tool("greet", json!({}))
}

fn again(token: &str) -> Request {
    plain().again(token, login("x"))
}

#[tokio::test]
async fn key_rotation_keeps_all_tokens_valid() {
    let source = SystemSource::new();
    let mut ring = KeyRing::generate(&source);
    let old = ring.list().next().unwrap().0.to_string();
    let first = start(builder().keys(ring.clone())).await;
    let second = start(builder().keys(ring.clone())).await;
    let under_old = token(&first.send(&plain()).await.reply());

    // Staged on one instance: it is not used to seal yet, so the other need not have it.
    let new = ring.stage(&source).to_string();
    first.server.reload_keys(ring.clone());
    let staged = token(&first.send(&plain()).await.reply());
    assert_eq!(
        text(&second.send(&again(&staged)).await.reply()),
        "Hello, x!"
    );
    second.server.reload_keys(ring.clone());

    // Promoted on one instance: the other opens tokens of the new key, and the old key still opens.
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

    // Retired: its tokens are rejected with the usual error.
    ring.retire(&old).unwrap();
    first.server.reload_keys(ring);
    let nonsense = first.send(&again("nonsense")).await.json();
    for state in [&under_old, &staged] {
        let rejected = first.send(&again(state)).await;
        rejected.error(200, -32602);
        assert_eq!(rejected.json(), nonsense);
    }
    assert_eq!(
        text(&first.send(&again(&under_new)).await.reply()),
        "Hello, x!"
    );
}

#[tokio::test]
async fn instances_with_ephemeral_keys_reject_each_others_tokens() {
    let (first, second) = (start(builder()).await, start(builder()).await);
    let state = token(&first.send(&plain()).await.reply());
    second.send(&again(&state)).await.error(200, -32602);
    assert_eq!(text(&first.send(&again(&state)).await.reply()), "Hello, x!");
}
