//! The drafts: what is wrong is said in their words, and what they have no place for is lost in ways that are known.
//!
//! That all else comes back as it was is in `drafts_there_and_back.rs`.

use std::time::Duration;

use refrain_wire::drafts::{Draft, DraftExchange, DraftRequest, TASK_RESULT};
use refrain_wire::legacy::Revision;
use refrain_wire::ratified::{decode_call, read_call};
use refrain_wire::{CallKind, PROTOCOL_VERSION, TASKS_EXTENSION, parse};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

/// Writes a request in a draft and reads it again. Gives both ends of the exchange too.
fn there_and_back(draft: Draft, request: &Value) -> (Value, DraftExchange, DraftExchange) {
    let (written, ours) = draft.write_request(&request.to_string()).unwrap();
    let read = draft.read_request(written.as_bytes()).unwrap();
    let DraftRequest::Request { message, exchange } = read else {
        panic!("{written} is no request");
    };
    (serde_json::from_slice(&message).unwrap(), ours, exchange)
}

/// A reply as the client reads it.
fn told(theirs: &DraftExchange, ours: &DraftExchange, message: &[u8]) -> Value {
    let written = theirs.write_reply(message).unwrap();
    let read = ours.read_reply(std::str::from_utf8(&written).unwrap());
    serde_json::from_str(&read).unwrap()
}

/// A request of the ratified revision.
fn request(method: &str, params: Value, tasks: bool) -> Value {
    let mut params = params;
    let mut can = json!({"roots": {}});
    if tasks {
        can["extensions"] = json!({TASKS_EXTENSION: {}});
    }
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientCapabilities": can,
    });
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

/// A result of the ratified revision as it comes back through a draft.
fn result_through(draft: Draft, request: &Value, result: Value) -> Value {
    let (_, ours, theirs) = there_and_back(draft, request);
    let mut reply = json!({"jsonrpc": "2.0", "id": 7});
    reply["result"] = result;
    told(&theirs, &ours, reply.to_string().as_bytes())["result"].take()
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
fn undeclared_client_supports_everything_but_tasks() {
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
fn members_of_other_drafts_are_ignored() {
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
fn request_errors_use_the_member_names_of_the_draft() {
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
fn duplicate_member_is_rejected() {
    for text in [
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"},"input_responses":{},"input_responses":{}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"},"input_responses":{"a":{"result":{}},"a":{"result":{}}}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","name":"u"}}"#,
    ] {
        let rejection = Draft::First.read_request(text.as_bytes()).unwrap_err();
        assert!(rejection.error.message.contains("twice"), "{rejection}");
    }
}

/// What a server makes of an error that goes out to a client of the draft.
fn error_in(draft: Draft, message: &str) -> Value {
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "t"}});
    let read = draft.read_request(call.to_string().as_bytes()).unwrap();
    let DraftRequest::Request { exchange, .. } = read else {
        panic!("a request");
    };
    let error = json!({"code": -32602, "message": message, "data": "requestState"});
    let reply = json!({"jsonrpc": "2.0", "id": 7, "error": error});
    let written = exchange.write_reply(reply.to_string().as_bytes()).unwrap();
    let written: Value = serde_json::from_slice(&written).unwrap();
    assert_eq!(written["error"]["data"], "requestState");
    written["error"]["message"].clone()
}

#[test]
fn reply_errors_use_the_member_names_of_the_draft() {
    for (draft, answers, state) in [
        (Draft::Sketch, "dependent_responses", "request_state"),
        (Draft::First, "input_responses", "request_state"),
        (Draft::Second, "inputResponses", "requestState"),
    ] {
        for (message, words) in [
            (
                "inputResponses[\"requestState\"] must be an object",
                format!("{answers}[\"requestState\"] must be an object"),
            ),
            (
                "inputResponses is given twice",
                format!("{answers} is given twice"),
            ),
            (
                "requestState is not valid; send the call again without requestState",
                format!("{state} is not valid; send the call again without {state}"),
            ),
            (
                "this requestState was used before",
                format!("this {state} was used before"),
            ),
        ] {
            assert_eq!(error_in(draft, message), words);
        }
        // Nobody but the handler knows what these mean.
        for message in [
            "no inputResponses in the cupboard",
            "the requestState of Utah",
            "inputResponsesAndMore",
            "requestStates",
            "this and that requestState",
        ] {
            assert_eq!(error_in(draft, message), message);
        }
    }
}

/// The error of a task that failed is its handler's.
#[test]
fn task_error_is_not_changed() {
    for draft in [Draft::First, Draft::Second] {
        let get = request(TASK_RESULT, json!({"taskId": "t"}), true);
        let (_, _, theirs) = there_and_back(draft, &get);
        let error = json!({"code": -32602, "message": "requestState is gone"});
        let task = json!({"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete",
            "taskId": "t", "status": "failed", "error": error}});
        let written = theirs.write_reply(task.to_string().as_bytes()).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(written["error"], error);
    }
}

#[test]
fn handshake_always_uses_2025_11_25() {
    for asked in ["2025-11-25", "2025-06-18", "2025-03-26", "2019-01-01"] {
        let params = json!({"protocolVersion": asked, "clientInfo": {},
            "capabilities": {"elicitation": {"url": {}}, "sampling": {"tools": {}}}});
        let params = to_raw_value(&params).unwrap();
        for draft in Draft::ALL {
            let read = draft.decode_initialize(Some(&params)).unwrap();
            assert_eq!(read.revision, Revision::V2025_11_25, "{asked}");
            // What it declares counts as it does there.
            let can = read.capabilities;
            assert!(can.url && can.sampling_tools && !can.form, "{asked}");
        }
    }
}

/// A request that lacks what only the draft calls so.
#[test]
fn missing_members_have_the_names_of_the_draft() {
    let empty = |method: &str| json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {}});
    let mut answers = empty("tasks/input_response");
    let (code, message) = refused(Draft::Second, &answers);
    assert_eq!(code, -32602);
    assert!(
        message.contains("related-task") && message.contains("tasks/input_response"),
        "{message}"
    );
    answers["params"]["taskId"] = "t".into();
    let (_, message) = refused(Draft::Second, &answers);
    assert_eq!(
        message,
        "inputResponses is missing; tasks/input_response needs it"
    );
    for draft in [Draft::First, Draft::Second] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let (code, message) = refused(draft, &empty(method));
            assert_eq!(
                (code, message),
                (-32602, format!("taskId is missing; {method} needs it"))
            );
        }
    }
}

#[test]
fn server_description_survives_the_round_trip() {
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
fn unsupported_method_is_an_error() {
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
        let why = why.to_string();
        assert!(why.contains(draft.name()) && why.contains(method), "{why}");
    }
    assert!(Draft::Second.write_request("[]").is_err());
}

#[test]
fn task_member_sets_extension_and_ttl() {
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

// What is lost, and how.

/// Loss: the first draft tells of one time of a task only; that it was changed later is not known.
#[test]
fn first_draft_loses_last_updated_at() {
    let get = request("tasks/get", json!({"taskId": "t"}), true);
    let task = json!({"resultType": "complete", "taskId": "t", "status": "working",
        "createdAt": "a", "lastUpdatedAt": "b", "ttlMs": 1, "pollIntervalMs": 1});
    let mut first = task.clone();
    first["lastUpdatedAt"] = "a".into();
    assert_eq!(result_through(Draft::First, &get, task.clone()), first);
    assert_eq!(result_through(Draft::Second, &get, task.clone()), task);
}

/// Loss: the task of a tool that says so in its result has failed, as in 2025-11-25; the result is told all the same.
#[test]
fn task_with_error_result_counts_as_failed() {
    let get = request("tasks/get", json!({"taskId": "t"}), true);
    let became = request(TASK_RESULT, json!({"taskId": "t"}), true);
    for (draft, failed, completed) in [
        (Draft::First, "Failed", "Completed"),
        (Draft::Second, "failed", "completed"),
    ] {
        for (is_error, status) in [(json!(true), failed), (json!(false), completed)] {
            let result = json!({"content": [], "isError": is_error});
            let task = json!({"resultType": "complete", "taskId": "t", "status": "completed",
                "createdAt": "c", "lastUpdatedAt": "c", "result": result});
            let (_, _, theirs) = there_and_back(draft, &get);
            let reply = json!({"jsonrpc": "2.0", "id": 7, "result": task});
            let written = theirs.write_reply(reply.to_string().as_bytes()).unwrap();
            let written: Value = serde_json::from_slice(&written).unwrap();
            assert_eq!(written["result"]["status"], status, "{written}");
            assert_eq!(written["result"].get("result"), None);
            let back = result_through(draft, &became, task);
            assert_eq!(back["status"], "completed");
            assert_eq!(back["result"], result);
        }
    }
}

/// Loss: the first draft's answers for a task have no place for what a client says of itself.
#[test]
fn answers_without_method_lose_client_meta() {
    let mut update = request(
        "tasks/update",
        json!({"taskId": "t", "inputResponses": {}}),
        true,
    );
    update["params"]["_meta"]["refrain/callId"] = "c".into();
    let (back, ..) = there_and_back(Draft::Second, &update);
    assert_eq!(back, update);
    let (back, ..) = there_and_back(Draft::First, &update);
    assert_eq!(back["params"]["_meta"].get("refrain/callId"), None);
    let can = &back["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert!(can["elicitation"].is_object() && can["extensions"][TASKS_EXTENSION].is_object());
}

/// Loss: how long a task may live is part of the wish for one.
#[test]
fn ttl_without_task_request_is_lost() {
    for (draft, tasks) in [(Draft::Second, false), (Draft::Sketch, true)] {
        let mut call = request("tools/call", json!({"name": "t"}), tasks);
        call["params"]["_meta"]["refrain/taskTtl"] = 5.into();
        let (back, ..) = there_and_back(draft, &call);
        assert_eq!(back["params"]["_meta"].get("refrain/taskTtl"), None);
        let can = &back["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(can.get("extensions"), None, "{draft}");
    }
}

/// Loss: which task a request is about is said by the request, and by nothing else.
#[test]
fn related_task_of_a_request_is_lost() {
    for draft in Draft::ALL {
        let mut call = request("tools/call", json!({"name": "t"}), false);
        let related = json!({"taskId": "other"});
        call["params"]["_meta"]["io.modelcontextprotocol/related-task"] = related;
        let (back, ..) = there_and_back(draft, &call);
        let meta = &back["params"]["_meta"];
        assert_eq!(meta.get("io.modelcontextprotocol/related-task"), None);
    }
}

/// Loss: how long a list or a resource may be kept is nothing that 2025-11-25 tells.
#[test]
fn cache_hints_are_lost() {
    for draft in Draft::ALL {
        for (method, params, member) in [
            ("tools/list", json!({}), "tools"),
            ("resources/read", json!({"uri": "a:b"}), "contents"),
        ] {
            let mut kept = json!({"resultType": "complete", member: []});
            let back =
                |result| result_through(draft, &request(method, params.clone(), false), result);
            assert_eq!(back(kept.clone()), kept);
            kept["ttlMs"] = 5.into();
            kept["cacheScope"] = "public".into();
            assert_eq!(back(kept), json!({"resultType": "complete", member: []}));
        }
    }
}

/// Loss: without `resultType`, a result of the second draft that has the member of an ask is one.
#[test]
fn second_draft_detects_incomplete_results_by_members() {
    let call = request("tools/call", json!({"name": "t"}), false);
    for name in ["inputRequests", "requestState"] {
        let result = json!({"resultType": "complete", name: "mine"});
        let back = result_through(Draft::Second, &call, result.clone());
        assert_eq!(back["resultType"], "input_required");
        for draft in [Draft::First, Draft::Sketch] {
            assert_eq!(result_through(draft, &call, result.clone()), result);
        }
    }
}

/// Loss: a result with a `task` in it is a task where one was wished for, and nowhere else.
#[test]
fn task_member_counts_only_if_a_task_was_requested() {
    let result = json!({"resultType": "complete", "task": {"taskId": "mine"}});
    for draft in Draft::ALL {
        for (method, params, tasks) in [
            ("tools/call", json!({"name": "t"}), true),
            ("tools/call", json!({"name": "t"}), false),
            ("prompts/get", json!({"name": "t"}), true),
            ("resources/read", json!({"uri": "a:b"}), true),
        ] {
            let back = result_through(draft, &request(method, params, tasks), result.clone());
            let is_task = draft.has_tasks() && method == "tools/call" && tasks;
            assert_eq!(back["resultType"] == "task", is_task, "{draft}, {method}");
            assert_eq!(back == result, !is_task);
        }
    }
    // And only if it can be one.
    let result = json!({"resultType": "complete", "task": "mine"});
    let call = request("tools/call", json!({"name": "t"}), true);
    assert_eq!(result_through(Draft::Second, &call, result.clone()), result);
}

/// Loss: what asks for nothing and has no state is nothing, where that is said beside the id.
#[test]
fn empty_incomplete_result_is_lost() {
    let call = request("tools/call", json!({"name": "t"}), false);
    for (draft, kind) in [
        (Draft::Sketch, None),
        (Draft::First, None),
        (Draft::Second, Some("complete")),
    ] {
        let result = json!({"resultType": "input_required"});
        let back = result_through(draft, &call, result);
        assert_eq!(back.get("resultType").and_then(Value::as_str), kind);
    }
}

#[test]
fn non_replies_are_not_changed() {
    for draft in Draft::ALL {
        for method in ["tools/call", "tools/list", "server/discover"] {
            let (_, ours, _) = there_and_back(draft, &request(method, json!({"name": "t"}), false));
            for text in [
                r#"{"jsonrpc":"2.0","id":7}"#,
                r#"{ "jsonrpc": "2.0", "id": 7, "other": {} }"#,
                r#"{"jsonrpc":"2.0","id":7,"result":5}"#,
                r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"requestState "}}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#,
                "nothing at all",
            ] {
                assert_eq!(ours.read_reply(text), text);
            }
        }
    }
}

#[test]
fn unknown_status_is_translated() {
    let get = request("tasks/get", json!({"taskId": "t"}), true);
    for (status, capitalised) in [
        ("working", "Working"),
        ("input_required", "input_required"),
        ("éa", "éa"),
        ("ü", "ü"),
        ("", ""),
    ] {
        let (_, _, theirs) = there_and_back(Draft::First, &get);
        let reply = json!({"jsonrpc": "2.0", "id": 7,
            "result": {"resultType": "complete", "taskId": "t", "status": status}});
        let written = theirs.write_reply(reply.to_string().as_bytes()).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(written["result"]["status"], capitalised);
    }
}

#[test]
fn numeric_id_is_not_rounded() {
    let call = request("tools/call", json!({"name": "t"}), false).to_string();
    for id in ["-0", "123456789012345678901234567890", "-7", "\"-0\""] {
        let sent = call.replace("\"id\":7", &format!("\"id\":{id}"));
        for draft in Draft::ALL {
            let (written, ours) = draft.write_request(&sent).expect("a request");
            assert!(written.contains(&format!("\"id\":{id},")), "{written}");
            let read = draft.read_request(written.as_bytes()).expect("a request");
            let DraftRequest::Request { message, exchange } = read else {
                panic!("{written} is not a request");
            };
            let (sent, _) = read_call(&message).expect("a call");
            assert_eq!(sent.as_json(), id);
            let reply =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete"}}}}"#);
            let written = exchange.write_reply(reply.as_bytes()).expect("a reply");
            let written = String::from_utf8(written).expect("text");
            assert!(written.contains(&format!("\"id\":{id},")), "{written}");
            let read = ours.read_reply(&written);
            assert!(read.contains(&format!("\"id\":{id},")), "{read}");
        }
    }
}
