//! Drafts: random messages survive a round trip through the translation, and random input does not panic.
//!
//! The strategies leave out the information that drafts cannot carry; `drafts_losses.rs` tests those losses.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use refrain_wire::drafts::{Draft, TASK_RESULT};
use refrain_wire::ratified::{read_call, write_reply};
use refrain_wire::{
    Ask, CallKind, ErrorCode, Id, Incomplete, PROTOCOL_VERSION, Reply, ResultBody, RpcError,
    SamplingParams, TASKS_EXTENSION, TaskInfo, TaskState, ToolResult, stored_error, stored_result,
};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::drafts::{reply_round_trip, round_trip};

fn drafts() -> impl Strategy<Value = Draft> {
    prop_oneof![Just(Draft::Sketch), Just(Draft::First), Just(Draft::Second)]
}

/// JSON values of any kind.
pub(crate) fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("\\PC{0,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn objects() -> impl Strategy<Value = Value> {
    btree_map("\\PC{0,6}", values(), 0..4).prop_map(|map| Value::Object(map.into_iter().collect()))
}

fn ids() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from)
    ]
}

/// Request `_meta`, with or without the tasks extension.
fn metas(tasks: bool) -> impl Strategy<Value = Value> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let others = (
        option::of("[a-z]{1,9}"),
        option::of(ids()),
        option::of(1..u64::MAX),
        option::of(objects()),
        option::of(prop_oneof![Just("debug"), Just("error")]),
        objects(),
    );
    (flags, others, option::of(objects())).prop_map(move |(flags, others, extension)| {
        let (form, url, sampling, roots) = flags;
        let mut can = Map::new();
        let mut elicitation = Map::new();
        for (has, name) in [(form, "form"), (url, "url")] {
            if has {
                elicitation.insert(name.into(), json!({}));
            }
        }
        if !elicitation.is_empty() {
            can.insert("elicitation".into(), elicitation.into());
        }
        for (has, name) in [(sampling, "sampling"), (roots, "roots")] {
            if has {
                can.insert(name.into(), json!({}));
            }
        }
        let mut extensions = Map::new();
        if let Some(settings) = extension {
            extensions.insert("com.example/x".into(), settings);
        }
        if tasks {
            extensions.insert(TASKS_EXTENSION.into(), json!({}));
        }
        if !extensions.is_empty() {
            can.insert("extensions".into(), extensions.into());
        }
        let mut meta = json!({
            "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
            "io.modelcontextprotocol/clientCapabilities": can,
        });
        let (call, progress, ttl, info, level, more) = others;
        for (name, value) in more.as_object().unwrap() {
            meta[format!("com.example/{name}")] = value.clone();
        }
        if let Some(info) = info {
            meta["io.modelcontextprotocol/clientInfo"] = info;
        }
        if let Some(level) = level {
            meta["io.modelcontextprotocol/logLevel"] = level.into();
        }
        if let Some(call) = call {
            meta["refrain/callId"] = call.into();
        }
        if let Some(progress) = progress {
            meta["progressToken"] = progress;
        }
        if let Some(ttl) = ttl.filter(|_| tasks) {
            meta["refrain/taskTtl"] = ttl.into();
        }
        meta
    })
}

/// A draft, and a ratified call that it can express.
fn calls() -> impl Strategy<Value = (Draft, Value)> {
    let kinds = prop_oneof![
        Just(CallKind::Tool),
        Just(CallKind::Prompt),
        Just(CallKind::Resource)
    ];
    (drafts(), kinds, any::<bool>()).prop_flat_map(|(draft, kind, tasks)| {
        let tasks = tasks && draft.has_tasks() && kind == CallKind::Tool;
        let answers = option::of(btree_map("\\PC{0,6}", objects(), 0..4));
        let parts = (
            ids(),
            "\\PC{0,8}",
            option::of(objects()),
            answers,
            option::of("\\PC{0,9}"),
        );
        (parts, metas(tasks)).prop_map(move |((id, target, arguments, answers, state), meta)| {
            let name = if kind == CallKind::Resource {
                "uri"
            } else {
                "name"
            };
            let mut params = json!({name: target, "_meta": meta});
            if let Some(arguments) = arguments.filter(|_| kind != CallKind::Resource) {
                params["arguments"] = arguments;
            }
            if let Some(answers) = answers {
                params["inputResponses"] = Value::Object(answers.into_iter().collect());
            }
            if let Some(state) = state {
                params["requestState"] = state.into();
            }
            let call =
                json!({"jsonrpc": "2.0", "id": id, "method": kind.method(), "params": params});
            (draft, call)
        })
    })
}

/// A draft with tasks, and a request about a task.
fn task_requests() -> impl Strategy<Value = (Draft, Value)> {
    let drafts = prop_oneof![Just(Draft::First), Just(Draft::Second)];
    let methods = prop_oneof![
        Just("tasks/get"),
        Just("tasks/update"),
        Just("tasks/cancel")
    ];
    let answers = btree_map("\\PC{0,6}", objects(), 0..4);
    let parts = (ids(), "\\PC{0,8}", answers, metas(true));
    (drafts, methods, parts).prop_map(|(draft, method, (id, task, answers, mut meta))| {
        // Drafts send the TTL only in a call that requests a task.
        meta.as_object_mut().unwrap().remove("refrain/taskTtl");
        let mut params = json!({"taskId": task, "_meta": meta});
        if method == "tasks/update" {
            params["inputResponses"] = Value::Object(answers.into_iter().collect());
            if draft == Draft::First {
                // In the first draft, answers to a task have no `_meta` of the client.
                params["_meta"] = assumed_meta();
            }
        }
        (
            draft,
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
        )
    })
}

/// The `_meta` that is assumed for a client without a declaration.
fn assumed_meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {},
            "extensions": {TASKS_EXTENSION: {}}},
    })
}

/// A draft, and a request that is the same in all drafts.
fn others() -> impl Strategy<Value = (Draft, Value)> {
    let methods = prop_oneof![
        Just("tools/list"),
        Just("prompts/list"),
        Just("resources/list"),
        Just("resources/templates/list"),
        Just("completion/complete"),
    ];
    let parts = (ids(), metas(false), option::of("\\PC{0,9}"), objects());
    (drafts(), methods, parts).prop_map(|(draft, method, (id, meta, cursor, argument))| {
        let mut params = json!({"_meta": meta});
        if method == "completion/complete" {
            params["ref"] = json!({"type": "ref/prompt", "name": "p"});
            params["argument"] = argument;
        } else if let Some(cursor) = cursor {
            params["cursor"] = cursor.into();
        }
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        (draft, request)
    })
}

fn asks() -> impl Strategy<Value = Vec<(String, Ask)>> {
    let ask = prop_oneof![
        ("\\PC{0,9}", objects()).prop_map(|(message, schema)| Ask::Form {
            message,
            schema: Arc::from(to_raw_value(&schema).unwrap()),
        }),
        ("\\PC{0,9}", "\\PC{0,9}").prop_map(|(message, url)| Ask::Url { message, url }),
        "\\PC{0,9}".prop_map(|text| Ask::Sampling(Box::new(SamplingParams::new(9).user(text)))),
        Just(Ask::Roots),
    ];
    btree_map("\\PC{0,6}", ask, 0..4).prop_map(|asks| asks.into_iter().collect())
}

/// Results without members that have another meaning in a draft.
fn results() -> impl Strategy<Value = ResultBody> {
    let of_tool = (vec("\\PC{0,9}", 0..3), option::of(values()), any::<bool>()).prop_map(
        |(texts, structured, is_error)| {
            let result = ToolResult {
                structured_content: structured,
                is_error,
                ..ToolResult::text(texts.concat())
            };
            ResultBody::from_members(result).unwrap()
        },
    );
    let other = objects().prop_map(|mut members| {
        members.as_object_mut().unwrap().remove("task");
        ResultBody::from_members(members).unwrap()
    });
    (prop_oneof![of_tool, other], objects()).prop_map(|(body, meta)| body.with_meta(meta).unwrap())
}

fn errors() -> impl Strategy<Value = RpcError> {
    let codes = prop_oneof![
        Just(ErrorCode::Parse),
        Just(ErrorCode::InvalidRequest),
        Just(ErrorCode::MethodNotFound),
        Just(ErrorCode::InvalidParams),
        Just(ErrorCode::Internal),
        Just(ErrorCode::MissingCapability),
    ];
    (codes, "\\PC{0,20}", option::of(values())).prop_map(|(code, message, data)| RpcError {
        code,
        message: message.into(),
        data: data.map(|data| to_raw_value(&data).unwrap()),
    })
}

fn tasks(state: impl Strategy<Value = TaskState>) -> impl Strategy<Value = TaskInfo> {
    let since = || 0..4_000_000_000_000_u64;
    let times = (since(), since(), 1..1_000_000_u64, 1..1_000_000_u64);
    (state, "[a-z0-9]{1,9}", option::of("\\PC{0,9}"), times).prop_map(
        |(state, id, status_message, (made, changed, ttl, poll))| {
            let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
            TaskInfo {
                id,
                state,
                status_message,
                created_at: at(made),
                updated_at: at(changed),
                ttl: Duration::from_millis(ttl),
                poll_interval: Duration::from_millis(poll),
            }
        },
    )
}

fn states() -> impl Strategy<Value = TaskState> {
    let raw = |text: String| RawValue::from_string(text).unwrap();
    prop_oneof![
        Just(TaskState::Working),
        Just(TaskState::Cancelled),
        asks().prop_map(|asks| {
            let asks = asks.into_iter();
            let asks = asks.map(|(key, ask)| (key, to_raw_value(&ask).unwrap()));
            TaskState::InputRequired(asks.collect())
        }),
        results().prop_map(move |body| TaskState::Completed(raw(stored_result(&body)))),
        errors().prop_map(move |error| TaskState::Failed(raw(stored_error(&error)))),
    ]
}

fn replies(tasks_too: bool) -> BoxedStrategy<Reply> {
    let incomplete = (asks(), option::of("\\PC{0,9}"))
        .prop_filter("it asks or has a state", |(asks, state)| {
            !asks.is_empty() || state.is_some()
        })
        .prop_map(|(asks, state)| Reply::Incomplete(Incomplete { asks, state }));
    let error = errors().prop_map(Reply::Error);
    let plain = prop_oneof![results().prop_map(Reply::Complete), incomplete, error];
    if !tasks_too {
        return plain.boxed();
    }
    let created = tasks(Just(TaskState::Working)).prop_map(|task| Reply::Task(task.to_created()));
    prop_oneof![plain, created].boxed()
}

/// A serialized ratified reply, and its value without the server info, which the drafts omit.
fn ratified(id: &Value, reply: &Reply) -> (Vec<u8>, Value) {
    let id = to_raw_value(id).unwrap();
    let server = to_raw_value(&json!({"name": "s", "version": "1"})).unwrap();
    let mut out = Vec::new();
    write_reply(&mut out, Id::from_raw(&id), reply, &server);
    let mut value: Value = serde_json::from_slice(&out).unwrap();
    if let Some(result) = value.get_mut("result").and_then(Value::as_object_mut) {
        let meta = result["_meta"].as_object_mut().unwrap();
        meta.remove("io.modelcontextprotocol/serverInfo");
        if meta.is_empty() {
            result.remove("_meta");
        }
    }
    (out, value)
}

/// Removes what the draft cannot carry: the first draft has only `createdAt`.
fn without_losses(draft: Draft, task: &mut Value) {
    if draft == Draft::First {
        task["lastUpdatedAt"] = task["createdAt"].clone();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn call_survives_the_round_trip((draft, call) in calls()) {
        let (back, ..) = round_trip(draft, &call);
        prop_assert_eq!(&back, &call);
        let text = back.to_string();
        prop_assert!(read_call(text.as_bytes()).is_some());
    }

    #[test]
    fn task_request_survives_the_round_trip((draft, request) in task_requests()) {
        let (back, client_side, server_side) = round_trip(draft, &request);
        prop_assert_eq!(&back, &request);
        prop_assert_eq!(client_side.is_silent(), server_side.is_silent());
        prop_assert_eq!(server_side.cancels_task(), request["method"] == "tasks/cancel");
        prop_assert!(!server_side.waits_for_task());
    }

    #[test]
    fn call_reply_survives_the_round_trip(
        (draft, call) in calls(),
        reply in any::<bool>().prop_flat_map(replies),
    ) {
        let (written, _) = draft.write_request(&call.to_string()).unwrap();
        let written: Value = serde_json::from_str(&written).unwrap();
        if let Reply::Task(_) = reply && written["params"].get("task").is_none() {
            return Ok(());
        }
        let (_, client_side, server_side) = round_trip(draft, &call);
        let (message, mut value) = ratified(&call["id"], &reply);
        if let Reply::Task(_) = reply {
            without_losses(draft, &mut value["result"]);
        }
        prop_assert_eq!(reply_round_trip(&server_side, &client_side, &message), value);
    }

    #[test]
    fn other_requests_and_replies_survive_the_round_trip(
        (draft, request) in others(),
        reply in prop_oneof![results().prop_map(Reply::Complete), errors().prop_map(Reply::Error)],
    ) {
        let (back, client_side, server_side) = round_trip(draft, &request);
        prop_assert_eq!(&back, &request);
        let (message, value) = ratified(&request["id"], &reply);
        prop_assert_eq!(reply_round_trip(&server_side, &client_side, &message), value);
    }

    #[test]
    fn notification_survives_the_round_trip(
        (draft, call) in calls(),
        params in objects(),
        method in "notifications/[a-z]{0,9}",
    ) {
        let (_, client_side, server_side) = round_trip(draft, &call);
        let note = json!({"jsonrpc": "2.0", "method": method, "params": params});
        prop_assert_eq!(reply_round_trip(&server_side, &client_side, note.to_string().as_bytes()), note);
    }

    #[test]
    fn task_survives_the_round_trip_in_two_replies((draft, mut get) in task_requests(), mut task in tasks(states())) {
        get["method"] = "tasks/get".into();
        get["params"].as_object_mut().unwrap().remove("inputResponses");
        task.id = get["params"]["taskId"].as_str().unwrap().to_owned();
        let reply = Reply::Complete(task.to_detailed());
        let (message, mut value) = ratified(&get["id"], &reply);
        without_losses(draft, &mut value["result"]);

        // The status.
        let (_, client_side, server_side) = round_trip(draft, &get);
        let mut merged = reply_round_trip(&server_side, &client_side, &message);
        // The outcome.
        get["method"] = TASK_RESULT.into();
        let (_, client_side, server_side) = round_trip(draft, &get);
        prop_assert!(server_side.waits_for_task());
        let outcome = reply_round_trip(&server_side, &client_side, &message);
        match &task.state {
            TaskState::Working | TaskState::Cancelled => prop_assert!(outcome["error"].is_object()),
            TaskState::Failed(_) => merged["result"]["error"] = outcome["error"].clone(),
            _ => {
                // A task with an error result counts as failed until the outcome is merged.
                let failed = value["result"]["result"]["isError"] == true;
                let status = if failed { "failed" } else { task.state.as_str() };
                prop_assert_eq!(&merged["result"]["status"], status);
                for (name, value) in outcome["result"].as_object().unwrap() {
                    merged["result"][name] = value.clone();
                }
            }
        }
        prop_assert_eq!(merged, value);
    }

    #[test]
    fn random_bytes_do_not_panic(draft in drafts(), bytes in vec(any::<u8>(), 0..64)) {
        let _ = draft.read_request(&bytes);
    }

    #[test]
    fn random_members_do_not_panic(draft in drafts(), message in objects(), method in "[a-z/_]{0,12}") {
        let mut message = message;
        message["method"] = method.into();
        let _ = draft.read_request(message.to_string().as_bytes());
    }
}
