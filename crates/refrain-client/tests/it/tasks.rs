//! Calls that become tasks: polling, asks, notifications, cancellation.

use crate::support::{FakeServer, Respond, form, serve_forever, until, within};
use refrain::prelude::*;
use refrain::store::MemoryStore;
use refrain::task::TaskOptions;
use refrain_client::wire::AskKind;
use refrain_client::{
    AskAnswer, AskRefusal, CallSpec, Client, ErrorKind, PendingCall, RoundOutcome, TaskStatus,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Deserialize, Elicit)]
struct Size {
    size: u8,
}

async fn build(cx: Cx) -> Result<String> {
    cx.sleep(Duration::from_millis(20)).await;
    let (first, second) = tokio::try_join!(
        cx.elicit::<Size>("first", "How large is the first?"),
        cx.elicit::<Size>("second", "How large is the second?"),
    )?;
    Ok(format!("{} and {}", first.size, second.size))
}

async fn model(cx: Cx) -> Result<String> {
    Ok(cx
        .sample("advice", SamplingParams::new(5).user("Well?"))
        .await?
        .text())
}

async fn start_server() -> String {
    let store = Arc::new(MemoryStore::new());
    let options = TaskOptions {
        store_poll: Duration::from_millis(10),
        ..TaskOptions::default()
    };
    let builder = Server::builder("works", "1")
        .tool(
            Tool::new("build", build)
                .task()
                .poll_interval(Duration::from_millis(50)),
        )
        .tool(Tool::new("model", model).task())
        .tasks(store, options);
    serve_forever(builder).await
}

#[tokio::test]
async fn call_that_becomes_a_task_returns_its_result() {
    let url = start_server().await;
    let client = Client::builder()
        .on_form(|ask| async move {
            let size = if ask.key == "first" { 1 } else { 2 };
            Ok(AskAnswer::accept(json!({"size": size}))?)
        })
        .connect(&url)
        .await
        .unwrap();
    let result = within("the task", client.call_tool("build", json!({})))
        .await
        .unwrap();
    assert_eq!(result.content[0].as_text(), Some("1 and 2"));
}

#[tokio::test]
async fn task_can_be_driven_manually_and_resumed_by_id() {
    let url = start_server().await;
    let connect = || async {
        let client = Client::builder()
            .answer_manually([AskKind::Form])
            .connect(&url);
        client.await.unwrap()
    };
    let client = connect().await;
    let RoundOutcome::Pending(pending) = client.start(CallSpec::tool("build")).await.unwrap()
    else {
        panic!("expected a task")
    };
    let id = pending.task_id().unwrap().to_owned();
    within("the asks", async {
        while client.task(&id).await.unwrap().asks().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(
        client.task(&id).await.unwrap().status,
        TaskStatus::InputRequired
    );

    // Like another process that has only the id.
    let client = connect().await;
    let RoundOutcome::Pending(mut pending) =
        client.resume(PendingCall::of_task(&id)).await.unwrap()
    else {
        panic!("expected a pending task")
    };
    let size = |size| AskAnswer::accept(json!({"size": size})).unwrap();
    pending.answer("first", size(3)).unwrap();
    let RoundOutcome::Pending(pending) = client.resume(pending).await.unwrap() else {
        panic!("expected a pending task")
    };
    let open: Vec<_> = pending
        .asks()
        .iter()
        .map(|ask| ask.key().to_owned())
        .collect();
    assert_eq!(open, ["second"], "answered asks are not listed again");
    // The call can be stored in between.
    let text = serde_json::to_string(&pending).unwrap();
    let mut pending: PendingCall = serde_json::from_str(&text).unwrap();
    pending.answer("second", size(4)).unwrap();
    let result = within("the end", client.finish(pending)).await.unwrap();
    assert_eq!(result["content"][0]["text"], "3 and 4");
}

#[tokio::test]
async fn permanent_refusal_cancels_the_task() {
    let url = start_server().await;
    for is_refused in [true, false] {
        let mut builder = Client::builder();
        if is_refused {
            builder = builder.on_sampling(|_| async {
                Err(AskRefusal("models are forbidden".to_owned()).into())
            });
        } else {
            // Declared without a handler, so the ask waits for a manual answer.
            builder = builder.answer_manually([AskKind::Sampling]);
        }
        let client = builder.connect(&url).await.unwrap();
        let RoundOutcome::Pending(pending) = client.start(CallSpec::tool("model")).await.unwrap()
        else {
            panic!("expected a task")
        };
        let id = pending.task_id().unwrap().to_owned();
        let error = within("the end", client.finish(pending)).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::Unanswered(_));
        let status = client.task(&id).await.unwrap().status;
        if is_refused {
            assert_eq!(status, TaskStatus::Cancelled);
            assert!(error.pending.is_none(), "nothing can be resumed");
        } else {
            assert_eq!(status, TaskStatus::InputRequired);
            assert_eq!(error.pending.unwrap().task_id(), Some(id.as_str()));
        }
    }
}

#[tokio::test]
async fn dropped_call_cancels_its_task_but_stopped_call_does_not() {
    let url = start_server().await;
    let client = Client::builder()
        .on_form(|_| std::future::pending())
        .connect(&url)
        .await
        .unwrap();
    for is_stopped in [true, false] {
        let RoundOutcome::Pending(pending) = client.start(CallSpec::tool("build")).await.unwrap()
        else {
            panic!("expected a task")
        };
        let id = pending.task_id().unwrap().to_owned();
        let pause = || tokio::time::sleep(Duration::from_millis(200));
        if is_stopped {
            let error = client.finish_unless(pending, pause()).await.unwrap_err();
            assert_eq!(error.pending.unwrap().task_id(), Some(id.as_str()));
            assert_ne!(
                client.task(&id).await.unwrap().status,
                TaskStatus::Cancelled
            );
        } else {
            tokio::select! {
                _ = client.finish(pending) => panic!("the handler never answers"),
                () = pause() => {}
            }
            within("the end of the task", async {
                while client.task(&id).await.unwrap().status != TaskStatus::Cancelled {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
            .await;
        }
    }
}

/// A server whose task has these states, one per poll; the last state stays. Also returns the times of the polls.
async fn task_server(states: Vec<Value>) -> (FakeServer, Arc<Mutex<Vec<std::time::Instant>>>) {
    let polls = Arc::new(AtomicUsize::new(0));
    let times: Arc<Mutex<Vec<std::time::Instant>>> = Arc::default();
    let seen = Arc::clone(&times);
    let server = FakeServer::start(move |request| match request["method"].as_str() {
        Some("tools/call") => Respond::Result(json!({
            "resultType": "task", "taskId": "t1", "status": "working",
            "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z", "ttlMs": null,
        })),
        Some("tasks/get") => {
            seen.lock().expect("no panic").push(std::time::Instant::now());
            let poll = polls.fetch_add(1, Ordering::SeqCst).min(states.len() - 1);
            let mut task = json!({
                "resultType": "complete", "taskId": "t1",
                "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z", "ttlMs": null,
            });
            for (name, value) in states[poll].as_object().expect("members") {
                task[name] = value.clone();
            }
            Respond::Result(task)
        }
        Some("subscriptions/listen") => Respond::Error(-32601, "method not found"),
        _ => Respond::Result(json!({"resultType": "complete"})),
    })
    .await;
    (server, times)
}

#[tokio::test]
async fn task_ask_is_handled_once() {
    let asks = json!({"a": form("?", json!({}))});
    let asking = json!({"status": "input_required", "inputRequests": asks, "pollIntervalMs": 20});
    let end = json!({"status": "completed", "result": {"content": []}});
    let (server, _) = task_server(vec![
        asking.clone(),
        asking.clone(),
        asking.clone(),
        asking,
        end,
    ])
    .await;
    let handled = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&handled);
    let client = Client::builder()
        .on_form(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(AskAnswer::accept(json!({}))?) }
        })
        .connect(&server.url)
        .await
        .unwrap();
    within("the task", client.call_tool("t", json!({})))
        .await
        .unwrap();
    assert_eq!(handled.load(Ordering::SeqCst), 1);
    let updates = server.requests("tasks/update");
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0]["params"]["taskId"], "t1");
    let sent = json!({"a": {"action": "accept", "content": {}}});
    assert_eq!(updates[0]["params"]["inputResponses"], sent);
}

#[tokio::test]
async fn reused_ask_key_is_rejected() {
    let asking = |message| {
        let asks = json!({"a": form(message, json!({}))});
        json!({"status": "input_required", "inputRequests": asks, "pollIntervalMs": 20})
    };
    let (server, _) = task_server(vec![asking("?"), asking("?"), asking("And now?")]).await;
    let client = Client::builder()
        .on_form(|_| async { Ok(AskAnswer::accept(json!({}))?) })
        .connect(&server.url)
        .await
        .unwrap();
    let called = within("the task", client.call_tool("t", json!({}))).await;
    let error = called.unwrap_err();
    assert_matches!(error.kind, ErrorKind::InvalidResponse(_));
    assert!(error.to_string().contains("the key \"a\""), "{error}");
    let pending = error.pending.expect("the task can be resumed");
    assert_eq!(pending.task_id(), Some("t1"));
    assert!(server.requests("tasks/cancel").is_empty());
}

#[tokio::test]
async fn panicking_handler_does_not_cancel_the_task() {
    let asks = json!({"a": form("?", json!({}))});
    let asking = json!({"status": "input_required", "inputRequests": asks, "pollIntervalMs": 20});
    let (server, _) = task_server(vec![asking]).await;
    let client = Client::builder()
        .on_form(|_| async { panic!("handler panics") })
        .connect(&server.url)
        .await
        .unwrap();
    let called = within("the task", client.call_tool("t", json!({}))).await;
    let error = called.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Unanswered(_));
    let pending = error.pending.expect("the task can be resumed");
    assert_eq!(pending.unanswered().len(), 1);
    assert!(server.requests("tasks/cancel").is_empty());
}

#[tokio::test]
async fn poll_interval_of_the_server_is_respected() {
    let work = json!({"status": "working", "pollIntervalMs": 150});
    let end = json!({"status": "completed", "result": {"content": []}});
    let (server, times) = task_server(vec![work.clone(), work, end]).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    within("the task", client.call_tool("t", json!({})))
        .await
        .unwrap();
    let times = times.lock().unwrap();
    for pair in times.windows(2) {
        assert!(pair[1] - pair[0] >= Duration::from_millis(150), "{times:?}");
    }
}

#[tokio::test]
async fn task_notification_triggers_a_poll() {
    let polls = AtomicUsize::new(0);
    let server = FakeServer::start(move |request| {
        let id = &request["id"];
        // Without the notification, the next poll would be in an hour.
        let task = |status: &str| {
            json!({
                "taskId": "t1", "status": status, "pollIntervalMs": 3_600_000, "ttlMs": null,
                "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z",
            })
        };
        match request["method"].as_str() {
            Some("tools/call") => {
                let mut created = task("working");
                created["resultType"] = "task".into();
                Respond::Result(created)
            }
            Some("subscriptions/listen") => {
                let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
                let notification = |method: &str, mut params: Value| {
                    params["_meta"] = meta.clone();
                    let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
                    format!("data: {message}\n\n")
                };
                let wanted = &request["params"]["notifications"];
                let granted = json!({"notifications": wanted});
                let first = notification("notifications/subscriptions/acknowledged", granted);
                let then = notification("notifications/tasks", task("working"));
                Respond::Raw(200, "text/event-stream", first + &then)
            }
            Some("tasks/get") => {
                let mut task = match polls.fetch_add(1, Ordering::SeqCst) {
                    // The first poll, and the one after the acknowledgement.
                    0 | 1 => task("working"),
                    _ => task("completed"),
                };
                task["resultType"] = "complete".into();
                if task["status"] == "completed" {
                    task["result"] = json!({"content": []});
                }
                Respond::Result(task)
            }
            other => panic!("unexpected method {other:?}"),
        }
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    within("the result", client.call_tool("t", json!({})))
        .await
        .unwrap();
    assert_eq!(server.requests("tasks/get").len(), 3);
}

#[tokio::test]
async fn failed_or_cancelled_task_reports_the_reason() {
    let failed = json!({"status": "failed", "error": {"code": -32603, "message": "out of sand"}});
    let (server, _) = task_server(vec![failed]).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert!(error.to_string().contains("out of sand"), "{error}");
    assert!(error.pending.is_none());

    let cancelled = json!({"status": "cancelled", "statusMessage": "by the operator"});
    let (server, _) = task_server(vec![cancelled]).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::TaskCancelled(_));
    assert!(error.to_string().contains("by the operator"), "{error}");
}

#[tokio::test]
async fn withdrawn_task_ask_aborts_its_handler() {
    struct DropCounter(Arc<AtomicUsize>);
    impl Drop for DropCounter {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let asks = json!({"a": form("?", json!({}))});
    let asking = json!({"status": "input_required", "inputRequests": asks, "pollIntervalMs": 20});
    let work = json!({"status": "working", "pollIntervalMs": 20});
    let (server, _) = task_server(vec![asking, work]).await;
    let dropped = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&dropped);
    let client = Client::builder()
        .on_form(move |_| {
            let guard = DropCounter(Arc::clone(&counter));
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        })
        .connect(&server.url)
        .await
        .unwrap();
    tokio::select! {
        _ = client.call_tool("t", json!({})) => panic!("the task never ends"),
        () = until("the handler's end", || dropped.load(Ordering::SeqCst) == 1) => {}
    }
    assert!(server.requests("tasks/update").is_empty());
}
