//! Protocol rules for tasks.

use crate::support::{FakeServer, Respond, task_server, until};
use refrain_client::{Client, ErrorKind};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn working() -> Value {
    json!({"taskId": "t1", "status": "working", "pollIntervalMs": 20})
}

#[tokio::test]
async fn only_tools_can_become_tasks() {
    let server = task_server(|_| working()).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let prompt = client.get_prompt("p", json!({})).await.unwrap_err();
    let resource = client.read_resource("file:///x").await.unwrap_err();
    for (error, method) in [(prompt, "prompts/get"), (resource, "resources/read")] {
        assert_matches!(error.kind, ErrorKind::InvalidResponse(_));
        assert!(error.to_string().contains(method), "{error}");
    }
    let list = client.tools().await.unwrap_err();
    assert_matches!(&list.kind, ErrorKind::UnknownResultType(kind) if kind == "task");
    assert!(server.requests("tasks/get").is_empty());
}

#[tokio::test]
async fn task_result_of_another_type_is_rejected() {
    for kind in ["dance", "task", "input_required"] {
        let server = task_server(move |_| {
            let mut task = working();
            task["resultType"] = kind.into();
            task
        })
        .await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        let polled = client.task("t1").await.map(|_| ());
        let cancelled = client.cancel_task("t1").await;
        for outcome in [polled, cancelled] {
            let error = outcome.unwrap_err();
            assert_matches!(&error.kind, ErrorKind::UnknownResultType(found) if found == kind);
        }
    }
}

#[tokio::test]
async fn failed_tool_is_a_task_result() {
    let server = task_server(|_| {
        let result = json!({"content": [{"type": "text", "text": "out of sand"}], "isError": true});
        json!({"resultType": "complete", "taskId": "t1", "status": "completed", "result": result})
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let result = client.call_tool("t", json!({})).await.unwrap();
    assert!(result.is_error);
    assert_eq!(result.content[0].as_text(), Some("out of sand"));
}

#[tokio::test]
async fn dropped_task_is_cancelled_by_tasks_cancel() {
    let server = task_server(|_| working()).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    tokio::select! {
        _ = client.call_tool("t", json!({})) => panic!("the task never ends"),
        () = until("a poll", || !server.requests("tasks/get").is_empty()) => {}
    }
    until("the cancellation", || {
        !server.requests("tasks/cancel").is_empty()
    })
    .await;
    assert_eq!(server.requests("tasks/cancel")[0]["params"]["taskId"], "t1");
    assert!(server.requests("notifications/cancelled").is_empty());
}

#[tokio::test]
async fn state_of_another_task_is_an_error() {
    let server = task_server(|_| json!({"taskId": "t2", "status": "working"})).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::InvalidResponse(_));
    assert!(error.to_string().contains("t2"), "{error}");
}

#[tokio::test]
async fn malformed_task_times_do_not_lose_the_result() {
    for (time, read) in [
        (json!(-1), None),
        (json!("soon"), None),
        (json!(null), None),
        (json!(1000.0), Some(Duration::from_secs(1))),
        (json!(0.5), Some(Duration::from_micros(500))),
        (json!(1e300), Some(Duration::from_secs(100_000_000_000))),
    ] {
        let sent = time.clone();
        let server = task_server(move |_| {
            json!({
                "resultType": "complete", "taskId": "t1", "status": "completed", "result": {"content": []},
                "ttlMs": sent, "pollIntervalMs": sent, "inputRequests": null,
            })
        })
        .await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        client.call_tool("t", json!({})).await.unwrap();
        let task = client.task("t1").await.unwrap();
        assert_eq!((task.ttl, task.poll_interval), (read, read), "{time}");
    }
}

#[tokio::test]
async fn failed_poll_is_retried() {
    let polls = AtomicUsize::new(0);
    let server = FakeServer::start(move |request| match request["method"].as_str() {
        Some("tools/call") => Respond::Result(json!({"resultType": "task", "taskId": "t1"})),
        Some("tasks/get") => match polls.fetch_add(1, Ordering::SeqCst) {
            0 => Respond::Result(working()),
            1 | 2 => Respond::Raw(500, "text/plain", "oops".to_owned()),
            _ => {
                let result = json!({"content": []});
                Respond::Result(json!({"taskId": "t1", "status": "completed", "result": result}))
            }
        },
        Some("tools/list") => Respond::Raw(501, "text/plain", "never".to_owned()),
        _ => Respond::Error(-32601, "no such method"),
    })
    .await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    assert_eq!(server.requests("tasks/get").len(), 4);
    // 501 is permanent, so it is not retried.
    let error = client.tools().await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::HttpStatus { status: 501, .. });
    assert_eq!(server.requests("tools/list").len(), 1);
}
