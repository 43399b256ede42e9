//! Work and tokens that may be used once, and first requests that are sent again.

use crate::support::{Instance, Login, Request, result, start, text, token};
use refrain_core::{Cx, Error, KeyRing, MemoryReplayLog, Result, SystemSource};
use refrain_server::{BuildError, Server, ServerBuilder, State, Tool};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// What was done, by the keys it was done under.
type Ledger = Arc<Mutex<Vec<String>>>;

async fn pay(cx: Cx, ledger: State<Ledger>) -> Result<String> {
    let login: Login = cx.elicit("login", "Who pays?").await?;
    let count = cx
        .step_with_key("pay", |key| async {
            let mut ledger = ledger.lock().expect("no panic under the lock");
            ledger.push(key);
            Ok::<_, Error>(ledger.len())
        })
        .await?;
    Ok(format!("{} paid as number {count}", login.name))
}

async fn pay_once(cx: Cx, ledger: State<Ledger>) -> Result<String> {
    let login: Login = cx.elicit("login", "Who pays?").await?;
    let work = async {
        let mut ledger = ledger.lock().expect("no panic under the lock");
        ledger.push("once".into());
        Ok::<_, Error>(ledger.len())
    };
    let count = cx.once("pay", work).await?;
    Ok(format!("{} paid as number {count}", login.name))
}

/// Does its work at once, without asking.
async fn pay_now(cx: Cx, ledger: State<Ledger>) -> Result<String> {
    let work = |key: String| async {
        ledger.lock().expect("no panic under the lock").push(key);
        Ok::<_, Error>(())
    };
    cx.step_with_key("pay", work).await?;
    Ok("paid".into())
}

fn builder(ledger: &Ledger) -> ServerBuilder {
    Server::builder("log", "1").state(ledger.clone())
}

async fn instance(tool: Tool) -> (Instance, Ledger) {
    let ledger = Ledger::default();
    (
        start(builder(&ledger).tool(tool).single_instance()).await,
        ledger,
    )
}

fn answers(name: &str) -> Value {
    json!({"login": {"action": "accept", "content": {"name": name}}})
}

#[test]
fn what_is_to_happen_once_needs_a_log() {
    let ledger = Ledger::default();
    for tool in [
        || Tool::new("pay", pay_once).once(),
        || Tool::new("pay", pay).single_use(),
    ] {
        let error = builder(&ledger).tool(tool()).build().expect_err("no log");
        assert!(matches!(&error, BuildError::NeedsReplayLog { tool } if tool == "pay"));
        let shown = error.to_string();
        for word in ["\"pay\"", ".replay_log", ".single_instance"] {
            assert!(shown.contains(word), "{shown}");
        }
        assert!(
            builder(&ledger)
                .tool(tool())
                .single_instance()
                .build()
                .is_ok()
        );
        let log = Arc::new(MemoryReplayLog::new());
        assert!(
            builder(&ledger)
                .tool(tool())
                .replay_log(log)
                .build()
                .is_ok()
        );
    }
}

#[tokio::test]
async fn a_token_used_again_gets_the_recorded_reply() {
    let (instance, ledger) = instance(Tool::new("pay", pay).single_use()).await;
    let plain = || Request::tool("pay", json!({}));
    let state = token(&instance.send(&plain()).await.reply());
    let again = |id: u32, name: &str| plain().again(&state, answers(name)).id(json!(id));
    let first = instance.send(&again(1, "ann")).await.reply();
    assert_eq!(text(&first), "ann paid as number 1");
    for id in [2, 3] {
        // Whatever is answered this time: the token has had its use.
        let reply = instance.send(&again(id, "mallory")).await.reply();
        assert_eq!((&reply["id"], result(&reply)), (&json!(id), result(&first)));
    }
    assert_eq!(ledger.lock().expect("no panic under the lock").len(), 1);
    // Another call is another matter.
    let state = token(&instance.send(&plain()).await.reply());
    let reply = instance
        .send(&plain().again(&state, answers("bob")))
        .await
        .reply();
    assert_eq!(text(&reply), "bob paid as number 2");
}

#[tokio::test]
async fn a_token_that_may_be_used_again_repeats_the_work_under_the_same_key() {
    let (instance, ledger) = instance(Tool::new("pay", pay)).await;
    let plain = || Request::tool("pay", json!({}));
    let state = token(&instance.send(&plain()).await.reply());
    for number in 1..=2 {
        let reply = instance
            .send(&plain().again(&state, answers("ann")))
            .await
            .reply();
        assert_eq!(text(&reply), format!("ann paid as number {number}"));
    }
    let ledger = ledger.lock().expect("no panic under the lock");
    assert_eq!(ledger[0], ledger[1]);
}

#[tokio::test]
async fn once_is_once_however_often_a_token_is_used_and_wherever() {
    let (ledger, log) = (Ledger::default(), Arc::new(MemoryReplayLog::new()));
    let keys = KeyRing::generate(&SystemSource::new());
    let one = || {
        let tool = Tool::new("pay", pay_once).once();
        builder(&ledger)
            .tool(tool)
            .replay_log(log.clone())
            .keys(keys.clone())
    };
    let (first, second) = (start(one()).await, start(one()).await);
    let plain = || Request::tool("pay", json!({}));
    let state = token(&first.send(&plain()).await.reply());
    for instance in [&first, &second, &first] {
        let reply = instance
            .send(&plain().again(&state, answers("ann")))
            .await
            .reply();
        assert_eq!(text(&reply), "ann paid as number 1");
    }
    assert_eq!(ledger.lock().expect("no panic under the lock").len(), 1);
}

#[tokio::test]
async fn once_in_a_tool_that_did_not_say_so_is_a_fault() {
    let (instance, ledger) = instance(Tool::new("pay", pay_once)).await;
    let request = Request::tool("pay", json!({})).param("inputResponses", answers("ann"));
    let message = instance.send(&request).await.error(200, -32603);
    assert!(
        message.contains("once") && message.contains("replay_log.rs"),
        "{message}"
    );
    assert!(ledger.lock().expect("no panic under the lock").is_empty());
}

#[tokio::test]
async fn a_call_id_makes_a_repeated_first_request_the_same_flow() {
    let (instance, ledger) = instance(Tool::new("pay", pay_now)).await;
    let plain = || Request::tool("pay", json!({}));
    let with = |id: &str| plain().meta("refrain/callId", json!(id));
    for request in [with("c1"), with("c1"), with("c2"), plain(), plain()] {
        assert_eq!(text(&instance.send(&request).await.reply()), "paid");
    }
    let keys = std::mem::take(&mut *ledger.lock().expect("no panic under the lock"));
    assert_eq!(keys[0], keys[1]);
    let distinct: std::collections::HashSet<&String> = keys.iter().collect();
    assert_eq!(distinct.len(), 4, "{keys:?}");
}

#[tokio::test]
async fn with_a_call_id_and_single_use_a_repeated_first_request_is_not_run_again() {
    let (instance, ledger) = instance(Tool::new("pay", pay_now).single_use()).await;
    let request = Request::tool("pay", json!({})).meta("refrain/callId", json!("c1"));
    for id in 1..=3 {
        let reply = instance.send(&request.clone().id(json!(id))).await.reply();
        assert_eq!((text(&reply), &reply["id"]), ("paid", &json!(id)));
    }
    assert_eq!(ledger.lock().expect("no panic under the lock").len(), 1);
}

#[tokio::test]
async fn a_client_that_lacks_a_capability_has_not_used_its_request() {
    let (instance, _) = instance(Tool::new("pay", pay).single_use()).await;
    let call = Request::tool("pay", json!({})).meta("refrain/callId", json!("c1"));
    let bare = call
        .clone()
        .meta("io.modelcontextprotocol/clientCapabilities", json!({}));
    for _ in 0..2 {
        instance.send(&bare).await.error(400, -32021);
    }
    token(&instance.send(&call).await.reply());
}
