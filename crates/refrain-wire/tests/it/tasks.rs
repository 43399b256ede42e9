//! The tasks extension: decoding requests and serializing tasks.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use refrain_wire::ratified::{
    decode_listen, decode_meta, decode_task, write_acknowledged, write_reply, write_task_change,
};
use refrain_wire::{
    Ask, AskKind, Capabilities, Capability, Id, Reply, ResultBody, RpcError, SamplingParams,
    TASKS_EXTENSION, TaskInfo, TaskMethod, TaskState, ToolResult, stored_error, stored_result,
};
use serde_json::json;

use crate::support::{members, raw, rejection_text, to_raw, with_meta};

fn info(state: TaskState) -> TaskInfo {
    TaskInfo {
        id: "abc".into(),
        state,
        status_message: None,
        created_at: UNIX_EPOCH + Duration::from_millis(1_785_196_800_007),
        updated_at: UNIX_EPOCH + Duration::from_millis(1_785_196_801_000),
        ttl: Duration::from_secs(60),
        poll_interval: Duration::from_millis(1500),
    }
}

#[test]
fn update_is_decoded_without_copies() {
    let params = with_meta(
        r#""taskId":"t1","later":[1],"inputResponses":{"b":{"action":"accept"},"a":{"roots":[]}}"#,
    );
    let update = decode_task(TaskMethod::Update, Some(&params)).unwrap();
    assert_eq!(update.method, TaskMethod::Update);
    assert!(matches!(update.id, Cow::Borrowed("t1")));
    let keys: Vec<&str> = update.answers.iter().map(|(key, _)| &**key).collect();
    assert_eq!(keys, ["b", "a"]);
    assert_eq!(update.answers.get("a").unwrap().get(), r#"{"roots":[]}"#);
}

#[test]
fn other_requests_ignore_answers() {
    for method in [TaskMethod::Get, TaskMethod::Cancel] {
        let params = with_meta(r#""inputResponses":7,"taskId":"t1""#);
        let params = decode_task(method, Some(&params)).unwrap();
        assert_eq!(params.id, "t1");
        assert!(params.answers.iter().next().is_none());
        assert_eq!(TaskMethod::from_method(method.as_str()), Some(method));
    }
    assert_eq!(TaskMethod::from_method("tasks/list"), None);
    assert_eq!(TaskMethod::from_method("tasks/result"), None);
}

#[test]
fn invalid_request_error_names_the_member() {
    let (get, update) = (TaskMethod::Get, TaskMethod::Update);
    for (method, text, expected) in [
        (get, r#""x":1"#, "taskId is missing; tasks/get needs it"),
        (
            TaskMethod::Cancel,
            r#""x":1"#,
            "taskId is missing; tasks/cancel needs it",
        ),
        (get, r#""taskId":7"#, "taskId must be a string"),
        (get, r#""taskId":null"#, "taskId must be a string"),
        (
            get,
            r#""taskId":"a","taskId":"a""#,
            "taskId is given twice; send it once",
        ),
        (
            update,
            r#""taskId":"a""#,
            "inputResponses is missing; tasks/update needs it",
        ),
        (
            update,
            r#""taskId":"a","inputResponses":{"k":7}"#,
            r#"inputResponses["k"] must be an object"#,
        ),
        (
            update,
            r#""taskId":"a","inputResponses":{"k":{},"k":{}}"#,
            r#"inputResponses["k"] is given twice; send it once"#,
        ),
    ] {
        let params = with_meta(text);
        assert_eq!(rejection_text(decode_task(method, Some(&params))), expected);
    }
    let params = raw(r#"{"taskId":"a"}"#);
    assert!(rejection_text(decode_task(get, Some(&params))).contains("_meta is missing"));
    assert!(rejection_text(decode_task(get, None)).contains("taskId"));
    assert!(rejection_text(decode_task(get, Some(&raw("[]")))).contains("must be an object"));
}

#[test]
fn tasks_capability_requires_the_extension() {
    let meta = |capabilities: &str| {
        raw(&format!(
            r#"{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"v","io.modelcontextprotocol/clientCapabilities":{capabilities}}}}}"#
        ))
    };
    for (capabilities, expected) in [
        ("{}", false),
        (r#"{"extensions":{}}"#, false),
        (
            r#"{"extensions":{"a/b":{"io.modelcontextprotocol/tasks":{}}}}"#,
            false,
        ),
        // The capability of a legacy revision does not declare the extension.
        (r#"{"tasks":{"list":{}}}"#, false),
        (
            r#"{"extensions":{"a/b":7,"io.modelcontextprotocol/tasks":{}}}"#,
            true,
        ),
        (
            r#"{"extensions":{"io.modelcontextprotocol\/tasks":{"later":1}}}"#,
            true,
        ),
    ] {
        let params = meta(capabilities);
        let read = decode_meta(Some(&params)).unwrap();
        assert_eq!(read.capabilities.tasks, expected, "{capabilities}");
        assert_eq!(read.capabilities.has(Capability::Tasks), expected);
    }
    assert!(!Capabilities::default().tasks);
    for (capabilities, expected) in [
        (
            r#"{"extensions":{"io.modelcontextprotocol/tasks":true}}"#,
            "_meta.io.modelcontextprotocol/clientCapabilities.extensions.io.modelcontextprotocol/tasks must be an object",
        ),
        (
            r#"{"extensions":{"io.modelcontextprotocol/tasks":{},"io.modelcontextprotocol/tasks":{}}}"#,
            "_meta.io.modelcontextprotocol/clientCapabilities.extensions.io.modelcontextprotocol/tasks is given twice; send it once",
        ),
    ] {
        assert_eq!(
            rejection_text(decode_meta(Some(&meta(capabilities)))),
            expected
        );
    }
}

#[test]
fn missing_extension_error_names_the_extension() {
    let error = RpcError::missing_capability(&[Capability::Tasks]);
    assert!(error.message.contains(TASKS_EXTENSION));
    assert_eq!(
        error.data.unwrap().get(),
        r#"{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#
    );
}

#[test]
fn task_reply_matches_exact_bytes() {
    let mut task = info(TaskState::Completed(raw(r#"{"content":[]}"#)));
    task.status_message = Some("all \"done\"".into());
    let mut out = Vec::new();
    let id = raw("7");
    write_reply(
        &mut out,
        Id::from_raw(&id),
        &Reply::Task(task.to_created()),
        &raw("{}"),
    );
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"task","taskId":"abc","status":"completed","statusMessage":"all \"done\"","createdAt":"2026-07-28T00:00:00.007Z","lastUpdatedAt":"2026-07-28T00:00:01.000Z","ttlMs":60000,"pollIntervalMs":1500,"_meta":{"io.modelcontextprotocol/serverInfo":{}}}}"#
    );
}

#[test]
fn detailed_task_has_the_members_of_its_status() {
    let asks = || {
        vec![
            ("b".to_owned(), raw(r#"{"method":"roots/list"}"#)),
            ("a".to_owned(), raw("{\"method\":\r\n\"x\"}")),
        ]
    };
    for (state, status, more) in [
        (TaskState::Working, "working", ""),
        (TaskState::Cancelled, "cancelled", ""),
        (
            TaskState::InputRequired(asks()),
            "input_required",
            r#","inputRequests":{"b":{"method":"roots/list"},"a":{"method":  "x"}}"#,
        ),
        (
            TaskState::Completed(raw(r#"{"content":[],"isError":true}"#)),
            "completed",
            r#","result":{"content":[],"isError":true}"#,
        ),
        (
            TaskState::Failed(raw(r#"{"code":-32603,"message":"no"}"#)),
            "failed",
            r#","error":{"code":-32603,"message":"no"}"#,
        ),
    ] {
        assert_eq!(state.as_str(), status);
        let text = info(state).to_detailed().members().into_owned();
        assert_eq!(
            text,
            format!(
                r#""taskId":"abc","status":"{status}","createdAt":"2026-07-28T00:00:00.007Z","lastUpdatedAt":"2026-07-28T00:00:01.000Z","ttlMs":60000,"pollIntervalMs":1500{more}"#
            )
        );
    }
}

#[test]
fn durations_are_clamped_to_exact_milliseconds() {
    let mut task = info(TaskState::Working);
    task.ttl = Duration::MAX;
    task.poll_interval = Duration::from_micros(10);
    let shown = members(&task.to_created());
    assert_eq!(shown["ttlMs"], 9_007_199_254_740_991_u64);
    assert_eq!(shown["pollIntervalMs"], 1);
}

#[test]
fn stored_results_and_errors_match_the_reply() {
    let plain = ResultBody::from_members(ToolResult::text("done")).unwrap();
    assert_eq!(
        stored_result(&plain),
        r#"{"content":[{"type":"text","text":"done"}],"isError":false}"#
    );
    let with_meta = plain.with_meta(json!({"a/b": 1})).unwrap();
    assert_eq!(
        stored_result(&with_meta),
        r#"{"content":[{"type":"text","text":"done"}],"isError":false,"_meta":{"a/b":1}}"#
    );
    let empty = ResultBody::from_members(json!({})).unwrap();
    assert_eq!(stored_result(&empty), "{}");
    let only_meta = empty.with_meta(json!({"a/b": 1})).unwrap();
    assert_eq!(stored_result(&only_meta), r#"{"_meta":{"a/b":1}}"#);

    let error = RpcError::internal("it \"broke\"");
    assert_eq!(
        stored_error(&error),
        r#"{"code":-32603,"message":"it \"broke\""}"#
    );
    let error = error.with_data(&json!({"at": 3}));
    assert_eq!(
        stored_error(&error),
        r#"{"code":-32603,"message":"it \"broke\"","data":{"at":3}}"#
    );
}

#[test]
fn stored_ask_has_its_kind() {
    let asks = [
        Ask::Form {
            message: "Who?".into(),
            schema: Arc::from(to_raw(json!({"type": "object"}))),
        },
        Ask::Url {
            message: "Go".into(),
            url: "https://a.example".into(),
        },
        Ask::Sampling(Box::new(SamplingParams::new(10).user("Which?"))),
        Ask::Roots,
    ];
    for ask in asks {
        let kept = serde_json::to_string(&ask).unwrap();
        assert_eq!(AskKind::of_request(&kept), Some(ask.kind()), "{kept}");
    }
    let old = r#"{"method":"elicitation/create","params":{"message":"Who?"}}"#;
    assert_eq!(AskKind::of_request(old), Some(AskKind::Form));
    for none in ["", "{}", r#"{"method":"tools/call"}"#] {
        assert_eq!(AskKind::of_request(none), None, "{none}");
    }
    let other = r#"{"method":"elicitation/create","params":{"mode":"dance"}}"#;
    assert_eq!(AskKind::of_request(other), None);
}

#[test]
fn subscription_filter_accepts_tasks() {
    let params = with_meta(r#""notifications":{"taskIds":["b","a","b"]}"#);
    let listen = decode_listen(Some(&params)).unwrap();
    assert_eq!(listen.filter.tasks, ["a", "b"]);
    let id = raw("\"s\"");
    let id = Id::from_raw(&id).unwrap();
    let mut out = Vec::new();
    write_acknowledged(&mut out, id, &listen.filter);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"},"notifications":{"taskIds":["a","b"]}}}"#
    );
    let params = with_meta(r#""notifications":{"taskIds":"a"}"#);
    assert_eq!(
        rejection_text(decode_listen(Some(&params))),
        "notifications.taskIds must be an array of strings"
    );

    let mut out = Vec::new();
    write_task_change(&mut out, id, &info(TaskState::Working).to_detailed());
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"jsonrpc":"2.0","method":"notifications/tasks","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"},"taskId":"abc","status":"working","createdAt":"2026-07-28T00:00:00.007Z","lastUpdatedAt":"2026-07-28T00:00:01.000Z","ttlMs":60000,"pollIntervalMs":1500}}"#
    );
}
