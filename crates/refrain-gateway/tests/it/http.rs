//! Backends over HTTP: sessions, effects, and questions that do not name their call.

use crate::backends::repeat_until;
use crate::http_backend;
use crate::support::{Ledger, Running, asked, authenticator, completed, text, text_of};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use refrain::client::{AskAnswer, CallSpec, Client, PendingCall, RoundOutcome};
use refrain::prelude::*;
use refrain::server::{ServerBuilder, Tool};
use refrain::store::MemoryStore;
use refrain::task::TaskOptions;
use refrain_gateway::{BackendTable, GatewayConfig, Sessions};
use refrain_testkit::net::instance::{Instance, start};
use refrain_testkit::net::sdk_programs::{FASTMCP, LEGACY_NPM};
use refrain_testkit::net::wait::{success, within};
use refrain_testkit::net::{FakeServer, Respond};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;

/// A server over HTTP that counts its effects.
struct Counting {
    instance: Instance,
    effects: Arc<AtomicUsize>,
}

impl Counting {
    async fn start() -> Self {
        let effects = Arc::new(AtomicUsize::new(0));
        let counted = effects.clone();
        let effect = Tool::new("effect", move |_: Cx| {
            let counted = counted.clone();
            async move { ok(format!("effect {}", counted.fetch_add(1, Ordering::SeqCst))) }
        });
        let begun = effects.clone();
        let endless = Tool::new("endless", move |_: Cx| {
            let begun = begun.clone();
            async move {
                begun.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<Result<String>>().await
            }
        });
        let builder = Server::builder("counting", "1").tool(effect).tool(endless);
        Self {
            instance: start(builder).await,
            effects,
        }
    }

    fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }

    fn table(&self) -> BackendTable {
        BackendTable {
            url: Some(self.instance.url().parse().expect("a URL")),
            ..BackendTable::default()
        }
    }
}

#[tokio::test]
async fn repeated_call_id_reaches_a_modern_backend_once() {
    let backend = Counting::start().await;
    let config = GatewayConfig::single("counting", backend.table());
    let running = Running::start_with(&config, ServerBuilder::single_instance).await;
    let client = running.client().await;
    for _ in 0..2 {
        let call = client.prepare_with_id(CallSpec::tool("effect"), "call-1");
        let result = success("the call", client.finish(call.expect("a valid id"))).await;
        assert_eq!(result["content"][0]["text"], "effect 0");
    }
    assert_eq!(backend.effects(), 1);
    running.stop().await;
}

#[tokio::test]
async fn task_of_a_lost_gateway_is_not_sent_to_the_backend_again() {
    let backend = Counting::start().await;
    let table = BackendTable {
        task_after_seconds: 1,
        ..backend.table()
    };
    let config = GatewayConfig::single("counting", table);
    let store = Arc::new(MemoryStore::new());
    let keys = crate::support::keys();
    let shared = |builder: ServerBuilder| {
        let options = TaskOptions {
            lease: Duration::from_secs(2),
            ..TaskOptions::default()
        };
        let builder = builder.keys(keys.clone()).store(store.clone());
        builder.task_options(options)
    };
    let first = Running::start_with(&config, shared).await;
    let started = success(
        "the call",
        first.client().await.start(CallSpec::tool("endless")),
    )
    .await;
    let RoundOutcome::Pending(task) = started else {
        panic!("the call did not become a task");
    };
    assert!(task.task_id().is_some());
    first.instance.stopped_now().await;
    let second = Running::start_with(&config, shared).await;
    let client = second.client().await;
    let result = success("the task", client.finish(task)).await;
    assert_eq!(result["isError"], true);
    let why = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(why.starts_with("outcome unknown"), "{result}");
    assert_eq!(backend.effects(), 1);
    second.stop().await;
}

/// Counts the end of a handler.
struct CountOnDrop(Arc<AtomicUsize>);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn cancelled_task_cancels_the_task_of_a_modern_backend() {
    let (begun, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let counters = (begun.clone(), ended.clone());
    let endless = Tool::new("endless", move |cx: Cx| {
        let (begun, ended) = counters.clone();
        async move {
            cx.detach().await?;
            let _end = CountOnDrop(ended);
            begun.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<String>>().await
        }
    });
    let tasks = |builder: ServerBuilder| {
        builder.tasks(Arc::new(MemoryStore::new()), TaskOptions::default())
    };
    let backend = start(tasks(Server::builder("endless", "1").tool(endless))).await;
    let table = BackendTable {
        url: Some(backend.url().parse().expect("a URL")),
        ..BackendTable::default()
    };
    let config = GatewayConfig::single("endless", table);
    let with_store = |builder: ServerBuilder| tasks(builder).single_instance();
    let running = Running::start_with(&config, with_store).await;
    let client = running.client().await;
    let started = success("the call", client.start(CallSpec::tool("endless"))).await;
    let RoundOutcome::Pending(task) = started else {
        panic!("the call did not become a task");
    };
    let id = task.task_id().expect("a task");
    within(
        "the start",
        repeat_until(async || begun.load(Ordering::SeqCst), &1),
    )
    .await;
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    success("the cancellation", client.cancel_task(id)).await;
    within(
        "the end",
        repeat_until(async || ended.load(Ordering::SeqCst), &1),
    )
    .await;
    running.stop().await;
}

/// One session to list the backend, and one for each caller.
#[tokio::test]
async fn callers_keep_their_sessions() {
    let backend = Counting::start().await;
    let table = BackendTable {
        revision: Some("2025-11-25".to_owned()),
        ..backend.table()
    };
    let config = GatewayConfig::single("counting", table);
    let callers = authenticator(&["alice", "bob"]);
    let running = Running::start_with(&config, |builder| builder.authenticator(callers)).await;
    let (alice, bob) = (
        running.client_of("alice").await,
        running.client_of("bob").await,
    );
    for _ in 0..5 {
        text(&alice, "effect", json!({})).await;
        text(&bob, "effect", json!({})).await;
    }
    assert_eq!(backend.effects(), 10);
    assert_eq!(running.metric("refrain_gateway_starts_total"), 3);
    running.stop().await;
}

#[tokio::test]
async fn handle_of_an_http_backend_has_its_own_session() {
    let backend = Counting::start().await;
    let table = BackendTable {
        revision: Some("2025-11-25".to_owned()),
        sessions: Sessions::Handle,
        ..backend.table()
    };
    let running = Running::start(&GatewayConfig::single("counting", table)).await;
    let client = running.client().await;
    for opened in 1..=2 {
        let handle = text(&client, "open_session", json!({})).await;
        let handle: Value = serde_json::from_str(&handle).expect("JSON");
        for _ in 0..2 {
            text(&client, "effect", handle.clone()).await;
        }
        let sessions = running.metric("refrain_gateway_connections");
        assert_eq!(sessions, 1 + opened, "one lists the backend");
    }
    running.stop().await;
}

/// A backend that does not respond any more is noticed, although it announces no changes.
#[tokio::test]
async fn lost_http_backend_is_noticed() {
    let ledger = Ledger::new();
    let mut backend = crate::support::backend(&ledger);
    backend.prefix = "other_".to_owned();
    let counting = Counting::start().await;
    let mut config = GatewayConfig::single("counting", counting.table());
    config.backends.insert("other".to_owned(), backend);
    let running = Running::start_with(&config, ServerBuilder::single_instance).await;
    let client = running.client().await;
    counting.instance.stopped_now().await;
    let is_marked = async || {
        let tools = success("the list", client.tools()).await;
        let effect = tools.iter().find(|tool| tool.name == "effect");
        let description = effect.and_then(|tool| tool.description.as_deref());
        description.is_some_and(|text| text.starts_with("(unavailable)"))
    };
    within("the mark", repeat_until(is_marked, &true)).await;
    assert_eq!(
        text(&client, "other_echo", json!({"text": "hi"})).await,
        "hi"
    );
    running.stop().await;
}

/// On a modern connection FastMCP has no inline questions.
#[tokio::test]
async fn inline_question_of_fastmcp_is_asked_on_a_legacy_revision() {
    let (_server, url) = FASTMCP.listen("--http").await;
    let table = BackendTable {
        url: Some(url.parse().expect("a URL")),
        revision: Some("2025-11-25".to_owned()),
        ..BackendTable::default()
    };
    let running = Running::start(&GatewayConfig::single("fastmcp", table)).await;
    let client = running.client().await;
    let pending = asked(&client, "book_table_inline", json!({})).await;
    assert_eq!(
        completed(book(&client, pending, 5).await),
        "a table for 5 on 2026-12-01, inside"
    );
    running.stop().await;
}

/// Answers the form of a booking.
async fn book(client: &Client, mut pending: PendingCall, guests: u8) -> RoundOutcome {
    let asks = pending.unanswered();
    let answer = AskAnswer::accept(json!({"date": "2026-12-01", "guests": guests}));
    let answer = answer.expect("an object");
    pending
        .answer(asks[0].key(), answer)
        .expect("a fitting answer");
    success("the next round", client.resume(pending)).await
}

/// The TypeScript SDK 1.x sends a question that names no call on the stream of the session.
#[tokio::test]
async fn unassociated_question_reaches_the_only_call_of_an_exclusive_session() {
    let (_server, url) = LEGACY_NPM.listen("--http").await;
    let table = BackendTable {
        url: Some(url.parse().expect("a URL")),
        exclusive: true,
        ..BackendTable::default()
    };
    let running = Running::start(&GatewayConfig::single("npm", table)).await;
    let client = running.client().await;
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(asked(&client, "book_table_unassociated", json!({})).await);
    }
    for (guests, pending) in [3, 4].into_iter().zip(open).rev() {
        let done = completed(book(&client, pending, guests).await);
        assert_eq!(done, format!("a table for {guests} on 2026-12-01, inside"));
    }
    running.stop().await;
}

/// A backend can send the start of a large result and then nothing, so that it stays in memory.
#[tokio::test]
async fn unfinished_responses_of_one_caller_do_not_use_all_memory() {
    let open = Mutex::new(Vec::new());
    let backend = FakeServer::start(move |request| {
        if request.method() == "tools/list" {
            let tool = json!({"name": "large", "inputSchema": {"type": "object"}});
            return Respond::Result(json!({"resultType": "complete", "tools": [tool]}));
        }
        let (events, stream) = unbounded_channel();
        let _ = events.send(Ok(format!("data: {}", "x".repeat(15 << 20))));
        open.lock().push(events);
        Respond::Events(stream)
    });
    let backend = backend.await;
    let config = GatewayConfig::single("large", http_backend::at(&backend));
    let running = Running::start_with(&config, ServerBuilder::single_instance).await;
    let client = running.client().await;
    // Eight responses of 15 MiB fit into the limit of 128 MiB.
    let calls = (0..12).map(|_| client.call_tool("large", json!({})));
    let ended: FuturesUnordered<_> = calls.collect();
    let failed: Vec<_> = within("the failed calls", ended.take(4).collect()).await;
    for result in failed {
        let why = text_of(&result.expect("a result"));
        assert!(why.contains("its response is too large"), "{why}");
    }
    running.stop().await;
}

/// Large states are stored, and count towards the quota of the caller for calls of all backends.
#[tokio::test]
async fn large_request_state_of_a_backend_is_rejected() {
    let backend = FakeServer::start(|request| match request.method() {
        "tools/list" => {
            let tool = json!({"name": "ask", "inputSchema": {"type": "object"}});
            Respond::Result(json!({"resultType": "complete", "tools": [tool]}))
        }
        _ => {
            let bytes = request["params"]["arguments"]["bytes"].as_u64();
            let state = "s".repeat(bytes.expect("a size") as usize);
            Respond::asks(json!({"roots": {"method": "roots/list"}}), Some(&state))
        }
    });
    let backend = backend.await;
    let config = GatewayConfig::single("large", http_backend::at(&backend));
    let running = Running::start_with(&config, ServerBuilder::single_instance).await;
    let client = running.client().await;
    let pending = asked(&client, "ask", json!({"bytes": 32 << 10})).await;
    assert_eq!(pending.unanswered().len(), 1);
    let rejected = client.call_tool("ask", json!({"bytes": (256 << 10) + 1}));
    let why = text_of(&rejected.await.expect("a result"));
    assert!(why.contains("its response is too large"), "{why}");
    running.stop().await;
}
