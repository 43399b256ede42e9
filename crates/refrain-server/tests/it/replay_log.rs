//! The replay log: `once`, single-use tokens and repeated first requests.

use crate::support::{
    Instance, Login, Request, assert_contains, keys, login, result, start, text, token,
};
use refrain_core::{Cx, Error, KeyRing, MemoryReplayLog, Result};
use refrain_server::{BearerTokens, BuildError, Server, ServerBuilder, State, TaskOptions, Tool};
use refrain_store::{MemoryStore, SqliteStore, Store};
use refrain_testkit::net::until;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sqlx::{Connection, SqliteConnection};
use std::sync::{Arc, Mutex};

/// Idempotency keys of the effects, in order.
type Ledger = Arc<Mutex<Vec<String>>>;

async fn pay(cx: Cx, ledger: State<Ledger>) -> Result<String> {
    let login: Login = cx.elicit("login", "Who pays?").await?;
    let count = cx
        .step_with_key("pay", |key| async {
            let mut ledger = ledger.lock().expect("no panic while locked");
            ledger.push(key);
            Ok::<_, Error>(ledger.len())
        })
        .await?;
    Ok(format!("{} paid as number {count}", login.name))
}

async fn pay_once(cx: Cx, ledger: State<Ledger>) -> Result<String> {
    let login: Login = cx.elicit("login", "Who pays?").await?;
    let work = async {
        let mut ledger = ledger.lock().expect("no panic while locked");
        ledger.push("once".into());
        Ok::<_, Error>(ledger.len())
    };
    let count = cx.once("pay", work).await?;
    Ok(format!("{} paid as number {count}", login.name))
}

/// Runs its step without an ask.
async fn pay_now(cx: Cx, ledger: State<Ledger>) -> Result<String> {
    let work = |key: String| async {
        ledger.lock().expect("no panic while locked").push(key);
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

#[test]
fn once_and_single_use_require_a_replay_log() {
    let ledger = Ledger::default();
    for tool in [
        || Tool::new("pay", pay_once).once(),
        || Tool::new("pay", pay).single_use(),
    ] {
        let error = builder(&ledger)
            .tool(tool())
            .build()
            .expect_err("the log is missing");
        assert!(matches!(&error, BuildError::NeedsReplayLog { tool } if tool == "pay"));
        let text = error.to_string();
        for expected in ["\"pay\"", ".store(..)", ".single_instance"] {
            assert!(text.contains(expected), "{text}");
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
async fn reused_single_use_token_gets_the_recorded_reply() {
    let (instance, ledger) = instance(Tool::new("pay", pay).single_use()).await;
    let plain = || Request::tool("pay", json!({}));
    let state = token(&instance.send(&plain()).await.reply());
    let again = |id: u32, name: &str| plain().again(&state, login(name)).id(json!(id));
    let first = instance.send(&again(1, "ann")).await.reply();
    assert_eq!(text(&first), "ann paid as number 1");
    for id in [2, 3] {
        // The new answers are ignored.
        let reply = instance.send(&again(id, "mallory")).await.reply();
        assert_eq!((&reply["id"], result(&reply)), (&json!(id), result(&first)));
    }
    assert_eq!(ledger.lock().expect("no panic while locked").len(), 1);
    // Another call is not affected.
    let state = token(&instance.send(&plain()).await.reply());
    let reply = instance
        .send(&plain().again(&state, login("bob")))
        .await
        .reply();
    assert_eq!(text(&reply), "bob paid as number 2");
}

#[tokio::test]
async fn reused_token_repeats_steps_with_the_same_key() {
    let (instance, ledger) = instance(Tool::new("pay", pay)).await;
    let plain = || Request::tool("pay", json!({}));
    let state = token(&instance.send(&plain()).await.reply());
    for number in 1..=2 {
        let reply = instance
            .send(&plain().again(&state, login("ann")))
            .await
            .reply();
        assert_eq!(text(&reply), format!("ann paid as number {number}"));
    }
    let ledger = ledger.lock().expect("no panic while locked");
    assert_eq!(ledger[0], ledger[1]);
}

#[tokio::test]
async fn once_runs_once_for_all_uses_of_a_token_on_all_instances() {
    let (ledger, log) = (Ledger::default(), Arc::new(MemoryReplayLog::new()));
    let keys = keys();
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
            .send(&plain().again(&state, login("ann")))
            .await
            .reply();
        assert_eq!(text(&reply), "ann paid as number 1");
    }
    assert_eq!(ledger.lock().expect("no panic while locked").len(), 1);
}

#[tokio::test]
async fn once_of_a_first_round_is_recorded_only_if_the_call_can_be_repeated() {
    let (ledger, log) = (Ledger::default(), MemoryReplayLog::new());
    let tool = Tool::new("pay", pay_once).once();
    let instance = start(
        builder(&ledger)
            .tool(tool)
            .replay_log(Arc::new(log.clone())),
    )
    .await;
    let plain = || Request::tool("pay", json!({})).param("inputResponses", login("ann"));
    let with_id = || plain().meta("refrain/callId", json!("c1"));
    for (request, number, records) in [(plain(), 1, 0), (with_id(), 2, 1), (with_id(), 2, 1)] {
        let reply = instance.send(&request).await.reply();
        assert_eq!(text(&reply), format!("ann paid as number {number}"));
        until("the records", || log.len() == records).await;
    }
}

#[tokio::test]
async fn once_in_undeclared_tool_is_a_fault() {
    let (instance, ledger) = instance(Tool::new("pay", pay_once)).await;
    let request = Request::tool("pay", json!({})).param("inputResponses", login("ann"));
    let message = instance.send(&request).await.error(200, -32603);
    assert!(
        message.contains("once") && !message.contains(".rs"),
        "{message}"
    );
    assert!(ledger.lock().expect("no panic while locked").is_empty());
}

#[tokio::test]
async fn repeated_call_id_is_the_same_flow() {
    let (instance, ledger) = instance(Tool::new("pay", pay_now)).await;
    let plain = || Request::tool("pay", json!({}));
    let with = |id: &str| plain().meta("refrain/callId", json!(id));
    for request in [with("c1"), with("c1"), with("c2"), plain(), plain()] {
        assert_eq!(text(&instance.send(&request).await.reply()), "paid");
    }
    let keys = std::mem::take(&mut *ledger.lock().expect("no panic while locked"));
    assert_eq!(keys[0], keys[1]);
    let distinct: std::collections::HashSet<&String> = keys.iter().collect();
    assert_eq!(distinct.len(), 4, "{keys:?}");
}

#[tokio::test]
async fn repeated_call_id_of_single_use_tool_does_not_run_again() {
    let (instance, ledger) = instance(Tool::new("pay", pay_now).single_use()).await;
    let request = Request::tool("pay", json!({})).meta("refrain/callId", json!("c1"));
    for id in 1..=3 {
        let reply = instance.send(&request.clone().id(json!(id))).await.reply();
        assert_eq!((text(&reply), &reply["id"]), ("paid", &json!(id)));
    }
    assert_eq!(ledger.lock().expect("no panic while locked").len(), 1);
}

#[tokio::test]
async fn missing_capability_does_not_consume_the_request() {
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

#[derive(Deserialize, JsonSchema)]
struct EchoedText {
    text: String,
}

async fn echo(_: Cx, ledger: State<Ledger>, args: EchoedText) -> Result<String> {
    let mut ledger = ledger.lock().expect("no panic while locked");
    ledger.push("echo".into());
    Ok(args.text)
}

/// A server on this store, where a caller has 100,000 bytes.
async fn limited_instance(store: Arc<dyn Store>, ledger: &Ledger) -> Instance {
    let options = TaskOptions {
        bytes_each: 100_000,
        ..TaskOptions::default()
    };
    let tokens = BearerTokens::new()
        .with("ada", "secret-of-ada")
        .with("bob", "secret-of-bob");
    let server = builder(ledger)
        .store(store)
        .task_options(options)
        .authenticator(tokens)
        .tool(Tool::new("echo", echo).live())
        .tool(Tool::new("pay", pay_once).once());
    start(server).await
}

#[tokio::test]
async fn recorded_bytes_of_one_caller_are_limited() {
    let dir = tempfile::TempDir::new().expect("a directory is created");
    let sqlite = SqliteStore::open(dir.path().join("refrain.db")).await;
    let sqlite = Arc::new(sqlite.expect("the store opens"));
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), sqlite];
    for store in stores {
        let ledger = Ledger::default();
        let instance = limited_instance(store, &ledger).await;
        let large = json!({"text": "x".repeat(60_000)});
        let echo = || Request::tool("echo", large.clone());
        let by = |request: Request, who: &str| request.bearer(&format!("secret-of-{who}"));
        let identified = |id: &str| echo().meta("refrain/callId", json!(id));
        for id in ["c1", "c2"] {
            let reply = instance.send(&by(identified(id), "ada")).await.reply();
            assert_eq!(text(&reply).len(), 60_000);
        }
        let limit = "this caller is at its limit of 100000 bytes in the store; try again";
        let rejected = instance.send(&by(identified("c3"), "ada")).await;
        assert_contains(&rejected.error(200, -32603), &[limit]);
        let pay = Request::tool("pay", json!({})).param("inputResponses", login("ann"));
        let reply = instance.send(&by(pay.clone(), "ada")).await.reply();
        assert_eq!(result(&reply)["isError"], true);
        assert_contains(text(&reply), &["this work was not started", limit]);
        // A repeated request gets its recorded reply.
        let reply = instance.send(&by(identified("c1"), "ada")).await.reply();
        assert_eq!(text(&reply).len(), 60_000);
        let lines = |ledger: &Ledger| ledger.lock().expect("no panic while locked").len();
        assert_eq!(lines(&ledger), 2, "rejected work did not run");
        // Calls without a record and other callers are not affected.
        for request in [
            by(echo(), "ada"),
            by(identified("c3"), "bob"),
            by(pay, "bob"),
        ] {
            let reply = instance.send(&request).await.reply();
            assert_eq!(result(&reply)["isError"], false, "{reply}");
        }
        assert_eq!(lines(&ledger), 5);
    }
}

/// A server that seals its stored data in this file.
async fn sealing(path: &std::path::Path, keys: &KeyRing, ledger: &Ledger) -> Instance {
    let store = SqliteStore::open(path).await.expect("the store opens");
    let store = Arc::new(store);
    let options = TaskOptions {
        seal: true,
        ..TaskOptions::default()
    };
    let server = builder(ledger)
        .keys(keys.clone())
        .store(store)
        .task_options(options)
        .tool(Tool::new("pay", pay).single_use())
        .tool(Tool::new("pay_once", pay_once).once());
    start(server).await
}

/// Changes records of the log with an SQL statement.
async fn edit_log(path: &std::path::Path, statement: &'static str) {
    let url = format!("sqlite:{}", path.display());
    let mut connection = SqliteConnection::connect(&url).await.expect("it opens");
    let edit = sqlx::raw_sql(statement).execute(&mut connection).await;
    let edited = edit.expect("the log is edited").rows_affected();
    assert!(edited > 0, "there is a record");
}

#[tokio::test]
async fn sealed_log_contains_no_plain_text() {
    let dir = tempfile::TempDir::new().expect("a directory is created");
    let (path, ledger) = (dir.path().join("refrain.db"), Ledger::default());
    let keys = keys();
    let instance = sealing(&path, &keys, &ledger).await;
    for tool in ["pay", "pay_once"] {
        let plain = || Request::tool(tool, json!({}));
        let state = token(&instance.send(&plain()).await.reply());
        let again = || plain().again(&state, login("marker-of-the-payer"));
        let first = instance.send(&again()).await.reply();
        let second = instance.send(&again()).await.reply();
        assert_eq!(result(&first), result(&second));
    }
    for file in ["refrain.db", "refrain.db-wal"] {
        let bytes = std::fs::read(dir.path().join(file)).expect("the file is read");
        assert!(bytes.len() > 1000, "{file}");
        for marker in [&b"marker-of"[..], b"paid as number", b"[false,"] {
            let found = bytes.windows(marker.len()).any(|window| window == marker);
            assert!(!found, "{} in {file}", String::from_utf8_lossy(marker));
        }
    }
}

#[tokio::test]
async fn edited_record_of_a_sealed_log_is_rejected() {
    let dir = tempfile::TempDir::new().expect("a directory is created");
    let keys = keys();
    let plain_reply = r#"UPDATE refrain_log SET value = '{"result":{"content":[{"type":"text","text":"forged"}]}}'"#;
    let plain_value = r#"UPDATE refrain_log SET value = '[false,"7"]'"#;
    let other_record = "UPDATE refrain_log SET value = (SELECT value FROM refrain_log ORDER BY flow LIMIT 1) \
        WHERE flow = (SELECT max(flow) FROM refrain_log)";
    let cases = [
        ("pay", plain_reply, "recorded reply"),
        ("pay", other_record, "recorded reply"),
        ("pay_once", plain_value, "recorded outcome"),
        ("pay_once", other_record, "recorded outcome"),
    ];
    for (number, (tool, edit, error)) in cases.into_iter().enumerate() {
        let path = dir.path().join(format!("{number}.db"));
        let ledger = Ledger::default();
        let instance = sealing(&path, &keys, &ledger).await;
        let plain = || Request::tool(tool, json!({}));
        let mut states = Vec::new();
        for _ in 0..2 {
            let state = token(&instance.send(&plain()).await.reply());
            let again = plain().again(&state, login("ann"));
            instance.send(&again).await.reply();
            states.push(state);
        }
        edit_log(&path, edit).await;
        let mut errors = 0;
        for state in states {
            let again = plain().again(&state, login("ann"));
            let reply = instance.send(&again).await.json().to_string();
            assert!(
                !reply.contains("forged") && !reply.contains("number 7"),
                "{reply}"
            );
            errors += usize::from(reply.contains(error));
        }
        let expected = if edit == other_record { 1 } else { 2 };
        assert_eq!(errors, expected, "{tool}: {edit}");
        assert_eq!(
            ledger.lock().expect("no panic while locked").len(),
            2,
            "not repeated"
        );
    }
}
