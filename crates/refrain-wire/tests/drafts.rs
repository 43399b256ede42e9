//! The drafts: what is translated and translated back is what it was, and whatever comes in is read or refused.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use refrain_wire::{
    Ask, CallKind, Draft, DraftExchange, DraftRequest, Id, Incomplete, PROTOCOL_VERSION, Reply,
    ResultBody, RpcError, SamplingParams, TASK_RESULT, TASKS_EXTENSION, TaskInfo, TaskState,
    ToolResult, decode_call, error_at_rest, parse, read_call, result_at_rest, write_reply,
};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

fn drafts() -> impl Strategy<Value = Draft> {
    prop_oneof![Just(Draft::Sketch), Just(Draft::First), Just(Draft::Second)]
}

fn values() -> impl Strategy<Value = Value> {
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

/// What a request says of itself, with the wish for a task or without it.
fn metas(tasks: bool) -> impl Strategy<Value = Value> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let others = (
        option::of("[a-z]{1,9}"),
        option::of(any::<u32>()),
        option::of(1..u64::MAX),
    );
    (flags, others, any::<bool>()).prop_map(move |(flags, others, extension)| {
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
        if extension {
            extensions.insert("com.example/x".into(), json!({"y": 1}));
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
        let (call, progress, ttl) = others;
        if let Some(call) = call {
            meta["refrain/callId"] = call.into();
        }
        if let Some(progress) = progress {
            meta["progressToken"] = progress.into();
        }
        if let Some(ttl) = ttl.filter(|_| tasks) {
            meta["refrain/taskTtl"] = ttl.into();
        }
        meta
    })
}

/// A draft, and a call that it can express, as the ratified revision has it.
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

/// A draft that has tasks, and a request about one.
fn task_requests() -> impl Strategy<Value = (Draft, Value)> {
    let drafts = prop_oneof![Just(Draft::First), Just(Draft::Second)];
    let methods = prop_oneof![
        Just("tasks/get"),
        Just("tasks/update"),
        Just("tasks/cancel")
    ];
    let answers = btree_map("\\PC{0,6}", objects(), 0..4);
    (drafts, methods, ids(), "\\PC{0,8}", answers).prop_map(|(draft, method, id, task, answers)| {
        let mut params = json!({"taskId": task, "_meta": {
            "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
            "io.modelcontextprotocol/clientCapabilities": {
                "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {},
                "extensions": {TASKS_EXTENSION: {}}},
        }});
        if method == "tasks/update" {
            params["inputResponses"] = Value::Object(answers.into_iter().collect());
        }
        (
            draft,
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
        )
    })
}

/// Writes a request in a draft and reads it again. Gives both ends of the exchange too.
fn there_and_back(draft: Draft, request: &Value) -> (Value, DraftExchange, DraftExchange) {
    let (written, ours) = draft.write_request(&request.to_string()).unwrap();
    let read = draft.read_request(written.as_bytes()).unwrap();
    let DraftRequest::Request { message, exchange } = read else {
        panic!("{written} is no request");
    };
    (serde_json::from_slice(&message).unwrap(), ours, exchange)
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

fn results() -> impl Strategy<Value = ResultBody> {
    (
        vec("\\PC{0,9}", 0..3),
        option::of(values()),
        any::<bool>(),
        objects(),
    )
        .prop_map(|(texts, structured, is_error, meta)| {
            let result = ToolResult {
                structured_content: structured,
                is_error,
                ..ToolResult::text(texts.concat())
            };
            ResultBody::from_members(result)
                .unwrap()
                .with_meta(meta)
                .unwrap()
        })
}

fn tasks(state: impl Strategy<Value = TaskState>) -> impl Strategy<Value = TaskInfo> {
    let times = (0..4_000_000_000_000_u64, 1..1_000_000_u64, 1..1_000_000_u64);
    (state, "[a-z0-9]{1,9}", option::of("\\PC{0,9}"), times).prop_map(
        |(state, id, status_message, (made, ttl, poll))| {
            let made = UNIX_EPOCH + Duration::from_millis(made);
            TaskInfo {
                id,
                state,
                status_message,
                created_at: made,
                // The first draft tells of one time only.
                updated_at: made,
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
        results().prop_map(move |body| TaskState::Completed(raw(result_at_rest(&body)))),
        "[a-z ]{0,9}".prop_map(move |why| {
            TaskState::Failed(raw(error_at_rest(&RpcError::internal(why))))
        }),
    ]
}

fn replies(tasks_too: bool) -> BoxedStrategy<Reply> {
    let incomplete = (asks(), "\\PC{1,9}").prop_map(|(asks, state)| {
        Reply::Incomplete(Incomplete {
            asks,
            state: Some(state),
        })
    });
    let error = "[a-z ]{0,9}".prop_map(|why| Reply::Error(RpcError::invalid_params(why)));
    let plain = prop_oneof![results().prop_map(Reply::Complete), incomplete, error];
    if !tasks_too {
        return plain.boxed();
    }
    let created = tasks(Just(TaskState::Working)).prop_map(|task| Reply::Task(task.to_created()));
    prop_oneof![plain, created].boxed()
}

/// A reply as the ratified revision writes it, and the same as a value without the server's name, which the drafts do
/// not repeat.
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

/// A reply as the client reads it.
fn told(theirs: &DraftExchange, ours: &DraftExchange, message: &[u8]) -> Value {
    let written = theirs.write_reply(message).unwrap();
    let read = ours.read_reply(std::str::from_utf8(&written).unwrap());
    serde_json::from_str(&read).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_call_comes_back_as_it_was((draft, call) in calls()) {
        let (back, ..) = there_and_back(draft, &call);
        prop_assert_eq!(&back, &call);
        let text = back.to_string();
        prop_assert!(read_call(text.as_bytes()).is_some());
    }

    #[test]
    fn a_request_about_a_task_comes_back_as_it_was((draft, request) in task_requests()) {
        let (back, ours, theirs) = there_and_back(draft, &request);
        prop_assert_eq!(&back, &request);
        prop_assert_eq!(ours.is_silent(), theirs.is_silent());
        prop_assert_eq!(theirs.shows_task(), request["method"] == "tasks/cancel");
        prop_assert!(!theirs.waits_for_task());
    }

    #[test]
    fn a_reply_to_a_call_comes_back_as_it_was(
        (draft, call) in calls(),
        reply in any::<bool>().prop_flat_map(replies),
    ) {
        if let Reply::Task(_) = reply && !draft.has_tasks() {
            return Ok(());
        }
        let (_, ours, theirs) = there_and_back(draft, &call);
        let (message, value) = ratified(&call["id"], &reply);
        prop_assert_eq!(told(&theirs, &ours, &message), value);
    }

    #[test]
    fn a_task_comes_back_in_two_replies((draft, mut get) in task_requests(), mut task in tasks(states())) {
        get["method"] = "tasks/get".into();
        get["params"].as_object_mut().unwrap().remove("inputResponses");
        task.id = get["params"]["taskId"].as_str().unwrap().to_owned();
        let reply = Reply::Complete(task.to_detailed());
        let (message, value) = ratified(&get["id"], &reply);

        // How it stands.
        let (_, ours, theirs) = there_and_back(draft, &get);
        let mut stands = told(&theirs, &ours, &message);
        // What became of it.
        get["method"] = TASK_RESULT.into();
        let (_, ours, theirs) = there_and_back(draft, &get);
        prop_assert!(theirs.waits_for_task());
        let became = told(&theirs, &ours, &message);
        match &task.state {
            TaskState::Working | TaskState::Cancelled => prop_assert!(became["error"].is_object()),
            TaskState::Failed(_) => stands["result"]["error"] = became["error"].clone(),
            _ => {
                prop_assert_eq!(&became["result"]["status"], &stands["result"]["status"]);
                for (name, value) in became["result"].as_object().unwrap() {
                    stands["result"][name] = value.clone();
                }
            }
        }
        prop_assert_eq!(stands, value);
    }

    #[test]
    fn any_bytes_are_read_or_refused(draft in drafts(), bytes in vec(any::<u8>(), 0..64)) {
        let _ = draft.read_request(&bytes);
    }

    #[test]
    fn any_members_are_read_or_refused(draft in drafts(), message in objects(), method in "[a-z/_]{0,12}") {
        let mut message = message;
        message["method"] = method.into();
        let _ = draft.read_request(message.to_string().as_bytes());
    }
}

fn read(draft: Draft, message: &Value) -> Value {
    match draft.read_request(message.to_string().as_bytes()) {
        Ok(DraftRequest::Request { message, .. }) => serde_json::from_slice(&message).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn refused(draft: Draft, message: &Value) -> (i32, String) {
    let rejection = draft
        .read_request(message.to_string().as_bytes())
        .unwrap_err();
    let id = rejection.id.as_ref().map(|id| id.get());
    assert_eq!(id, Some("7"), "{rejection:?}");
    (
        rejection.error.code.as_i32(),
        rejection.error.message.to_string(),
    )
}

#[test]
fn a_client_that_says_nothing_of_itself_can_do_everything_but_tasks() {
    for draft in Draft::ALL {
        let call =
            json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "t"}});
        let text = read(draft, &call).to_string();
        let (_, call) = read_call(text.as_bytes()).unwrap();
        let can = call.meta.capabilities;
        assert!(can.form && can.url && can.sampling && can.roots && !can.tasks);
    }
}

#[test]
fn the_members_of_another_draft_are_not_read() {
    let call = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
            "name": "t", "inputResponses": {"a": {}}, "requestState": "s"},
        "input_responses": {"b": {"result": {}}}, "dependent_responses": {"c": {"result": {}}},
    });
    for (draft, key) in [
        (Draft::Sketch, "c"),
        (Draft::First, "b"),
        (Draft::Second, "a"),
    ] {
        let params = read(draft, &call)["params"].clone();
        assert_eq!(params["inputResponses"], json!({key: {}}));
        assert_eq!(params.get("requestState").is_some(), draft == Draft::Second);
    }
}

#[test]
fn what_is_wrong_is_said_in_the_words_of_the_draft() {
    let call = |more: Value| {
        let mut call =
            json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "t"}});
        for (name, value) in more.as_object().unwrap() {
            call[name] = value.clone();
        }
        call
    };
    for (draft, more, code, part) in [
        (
            Draft::First,
            json!({"input_responses": []}),
            -32602,
            "input_responses must be an object",
        ),
        (
            Draft::First,
            json!({"input_responses": {"a": {}}}),
            -32602,
            "input_responses[\"a\"]",
        ),
        (
            Draft::Sketch,
            json!({"dependent_responses": {"a": 1}}),
            -32602,
            "dependent_responses[\"a\"]",
        ),
        (
            Draft::Second,
            json!({"params": {"name": "t", "task": 1}}),
            -32602,
            "task must be an object",
        ),
        (
            Draft::Second,
            json!({"params": {"name": "t", "task": {"ttl": -1}}}),
            -32602,
            "task.ttl",
        ),
        (
            Draft::Second,
            json!({"params": {"name": "t", "_meta": 1}}),
            -32602,
            "_meta must be an object",
        ),
        (
            Draft::Second,
            json!({"method": "tasks/update"}),
            -32601,
            "tasks/update",
        ),
        (
            Draft::First,
            json!({"method": "tasks/input_response"}),
            -32601,
            "tasks/input_response",
        ),
        (
            Draft::Sketch,
            json!({"method": "tasks/get"}),
            -32601,
            "tasks/get",
        ),
        (
            Draft::Second,
            json!({"method": "server/discover"}),
            -32601,
            "server/discover",
        ),
        (
            Draft::Second,
            json!({"result": {}}),
            -32600,
            "responses are not accepted",
        ),
    ] {
        let (is, message) = refused(draft, &call(more));
        assert_eq!(is, code, "{message}");
        assert!(message.contains(part), "{message}");
    }
    let answers = json!({"jsonrpc": "2.0", "id": 7, "input_responses": {}});
    let (is, message) = refused(Draft::First, &answers);
    assert_eq!(is, -32600);
    assert!(message.contains("related-task"), "{message}");
    // Elsewhere it is a message without a method, as it is to everybody.
    let (_, message) = refused(Draft::Second, &answers);
    assert!(message.contains("method is missing"), "{message}");
}

#[test]
fn a_member_given_twice_is_refused() {
    for text in [
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"},"input_responses":{},"input_responses":{}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"},"input_responses":{"a":{"result":{}},"a":{"result":{}}}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","name":"u"}}"#,
    ] {
        let rejection = Draft::First.read_request(text.as_bytes()).unwrap_err();
        assert!(rejection.error.message.contains("twice"), "{rejection}");
    }
}

#[test]
fn an_error_speaks_of_the_drafts_own_members() {
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "t"}});
    let error = br#"{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"inputResponses[\"a\"], requestState","data":"requestState"}}"#;
    for (draft, words) in [
        (Draft::Sketch, "dependent_responses[\"a\"], request_state"),
        (Draft::First, "input_responses[\"a\"], request_state"),
        (Draft::Second, "inputResponses[\"a\"], requestState"),
    ] {
        let DraftRequest::Request { exchange, .. } =
            draft.read_request(call.to_string().as_bytes()).unwrap()
        else {
            panic!("a request");
        };
        let said: Value = serde_json::from_slice(&exchange.write_reply(error).unwrap()).unwrap();
        assert_eq!(said["error"]["message"], words);
        assert_eq!(said["error"]["data"], "requestState");
    }
}

#[test]
fn what_a_server_says_of_itself_comes_back() {
    let hello = json!({"jsonrpc": "2.0", "id": 7, "method": "server/discover", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
    }}});
    let found = json!({"jsonrpc": "2.0", "id": 7, "result": {
        "resultType": "complete", "supportedVersions": [PROTOCOL_VERSION],
        "capabilities": {"tools": {}}, "instructions": "i", "ttlMs": 5, "cacheScope": "public",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}},
    }});
    for draft in Draft::ALL {
        let (written, ours) = draft.write_request(&hello.to_string()).unwrap();
        let value: Value = serde_json::from_str(&written).unwrap();
        assert_eq!(value["method"], "initialize");
        assert_eq!(
            value["params"],
            json!({"protocolVersion": "2025-11-25",
            "capabilities": {"roots": {}}, "clientInfo": {"name": "c", "version": "1"}})
        );
        let DraftRequest::Request { message, exchange } =
            draft.read_request(written.as_bytes()).unwrap()
        else {
            panic!("a request");
        };
        let parsed = parse(&message).unwrap();
        assert!(
            matches!(parsed, refrain_wire::Message::Request { method, .. } if method == "server/discover")
        );
        let back = told(&exchange, &ours, found.to_string().as_bytes());
        for name in [
            "supportedVersions",
            "capabilities",
            "instructions",
            "_meta",
            "resultType",
        ] {
            assert_eq!(back["result"][name], found["result"][name], "{name}");
        }
    }
}

#[test]
fn what_a_draft_has_not_is_not_written() {
    let request = |method: &str| {
        json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"taskId": "x"}}).to_string()
    };
    for (draft, method) in [
        (Draft::Sketch, "tasks/get"),
        (Draft::Sketch, "tasks/update"),
        (Draft::Second, "subscriptions/listen"),
        (Draft::First, "tasks/input_response"),
        (Draft::First, "nope"),
    ] {
        let why = draft.write_request(&request(method)).unwrap_err();
        assert!(why.contains(draft.name()) && why.contains(method), "{why}");
    }
    assert!(Draft::Second.write_request("[]").is_err());
}

#[test]
fn a_call_that_is_read_has_its_task_and_how_long_it_may_live() {
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "t", "task": {"ttl": 60000}}});
    let message = read(Draft::Second, &call).to_string();
    let (_, call) = read_call(message.as_bytes()).unwrap();
    assert!(call.meta.capabilities.tasks);
    assert_eq!(call.meta.task_ttl, Some(Duration::from_secs(60)));
    let params = to_raw_value(&json!({"name": "t", "_meta": {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
        "refrain/taskTtl": 0}}));
    let error = decode_call(CallKind::Tool, Some(&params.unwrap())).unwrap_err();
    assert!(error.message.contains("refrain/taskTtl"), "{error}");
}
