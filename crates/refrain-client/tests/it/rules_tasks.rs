//! What may become a task, and what is said of one.

use crate::support::{Say, Told, until};
use refrain_client::{Client, ErrorKind};
use serde_json::{Value, json};

/// A call becomes a task, of which this is said.
async fn told(say: impl Fn(&str) -> Value + Send + Sync + 'static) -> Told {
    Told::start(move |request| {
        let method = request["method"].as_str().expect("a method");
        match method {
            "subscriptions/listen" => Say::Error(-32601, "no such method"),
            "tasks/get" | "tasks/update" | "tasks/cancel" => Say::Result(say(method)),
            _ => Say::Result(json!({"resultType": "task", "taskId": "t1", "status": "working"})),
        }
    })
    .await
}

fn working() -> Value {
    json!({"taskId": "t1", "status": "working", "pollIntervalMs": 20})
}

#[tokio::test]
async fn only_a_tool_becomes_a_task() {
    let server = told(|_| working()).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    let prompt = client.get_prompt("p", json!({})).await.unwrap_err();
    let resource = client.read_resource("file:///x").await.unwrap_err();
    for (error, method) in [(prompt, "prompts/get"), (resource, "resources/read")] {
        assert!(matches!(error.kind, ErrorKind::BadAnswer(_)), "{error}");
        assert!(error.to_string().contains(method), "{error}");
    }
    let list = client.tools().await.unwrap_err();
    assert!(
        matches!(&list.kind, ErrorKind::UnknownResultType(kind) if kind == "task"),
        "{list}"
    );
    assert!(server.requests("tasks/get").is_empty());
}

#[tokio::test]
async fn what_is_said_of_a_task_is_complete_or_not_taken() {
    for kind in ["dance", "task", "input_required"] {
        let server = told(move |_| {
            let mut said = working();
            said["resultType"] = kind.into();
            said
        })
        .await;
        let client = Client::builder().connect(&server.url).await.unwrap();
        let looked = client.task("t1").await.map(|_| ());
        let cancelled = client.cancel_task("t1").await;
        for said in [looked, cancelled] {
            let error = said.unwrap_err();
            assert!(
                matches!(&error.kind, ErrorKind::UnknownResultType(found) if found == kind),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn a_tool_that_failed_is_a_result_of_its_task() {
    let server = told(|_| {
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
async fn a_task_is_called_off_by_its_own_request() {
    let server = told(|_| working()).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    tokio::select! {
        _ = client.call_tool("t", json!({})) => panic!("it goes on working"),
        () = until("a look", || !server.requests("tasks/get").is_empty()) => {}
    }
    until("its end", || !server.requests("tasks/cancel").is_empty()).await;
    assert_eq!(server.requests("tasks/cancel")[0]["params"]["taskId"], "t1");
    assert!(server.requests("notifications/cancelled").is_empty());
}
