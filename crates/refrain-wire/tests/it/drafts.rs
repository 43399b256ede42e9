//! Drafts: error texts, and helpers that translate a message to a draft and back.
//!
//! `drafts_losses.rs` tests which information is lost, and `drafts_round_trip.rs` that everything else survives.

use std::time::Duration;

use refrain_wire::drafts::{Draft, DraftExchange, DraftRequest, TASK_RESULT};
use refrain_wire::legacy::Revision;
use refrain_wire::ratified::{decode_call, read_call};
use refrain_wire::{CallKind, PROTOCOL_VERSION, TASKS_EXTENSION, parse};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

/// Writes a request in a draft and reads it again. Returns the request, the client side and the server side.
pub(crate) fn round_trip(draft: Draft, request: &Value) -> (Value, DraftExchange, DraftExchange) {
    let (written, client_side) = draft.write_request(&request.to_string()).unwrap();
    let read = draft.read_request(written.as_bytes()).unwrap();
    let DraftRequest::Request { message, exchange } = read else {
        panic!("expected a request: {written}");
    };
    (
        serde_json::from_slice(&message).unwrap(),
        client_side,
        exchange,
    )
}

/// Writes a reply in a draft and reads it again.
pub(crate) fn reply_round_trip(
    server_side: &DraftExchange,
    client_side: &DraftExchange,
    message: &[u8],
) -> Value {
    let written = server_side.write_reply(message).unwrap();
    let read = client_side.read_reply(std::str::from_utf8(&written).unwrap());
    serde_json::from_str(&read).unwrap()
}

/// A request of the ratified revision.
pub(crate) fn request(method: &str, params: Value, tasks: bool) -> Value {
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

/// Writes a ratified result in a draft and reads it again.
pub(crate) fn result_round_trip(draft: Draft, request: &Value, result: Value) -> Value {
    let (_, client_side, server_side) = round_trip(draft, request);
    let mut reply = json!({"jsonrpc": "2.0", "id": 7});
    reply["result"] = result;
    reply_round_trip(&server_side, &client_side, reply.to_string().as_bytes())["result"].take()
}

fn read(draft: Draft, message: &Value) -> Value {
    match draft.read_request(message.to_string().as_bytes()) {
        Ok(DraftRequest::Request { message, .. }) => serde_json::from_slice(&message).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn rejection(draft: Draft, message: &Value) -> (i32, String) {
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
            "a response needs an id",
        ),
    ] {
        let (found, message) = rejection(draft, &call(more));
        assert_eq!(found, code, "{message}");
        assert!(message.contains(part), "{message}");
    }
    let answers = json!({"jsonrpc": "2.0", "id": 7, "input_responses": {}});
    let (found, message) = rejection(Draft::First, &answers);
    assert_eq!(found, -32600);
    assert!(message.contains("related-task"), "{message}");
    // Other drafts reject a message without a method.
    let (_, message) = rejection(Draft::Second, &answers);
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
        assert!(
            rejection.error.message.contains("duplicate key"),
            "{rejection}"
        );
    }
}

/// The message of an error reply in a draft.
fn error_in(draft: Draft, message: &str) -> Value {
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "t"}});
    let read = draft.read_request(call.to_string().as_bytes()).unwrap();
    let DraftRequest::Request { exchange, .. } = read else {
        panic!("expected a request");
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
        // Messages of handlers that only resemble those of Refrain are not changed.
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

#[test]
fn task_error_is_not_changed() {
    for draft in [Draft::First, Draft::Second] {
        let get = request(TASK_RESULT, json!({"taskId": "t"}), true);
        let (_, _, server_side) = round_trip(draft, &get);
        let error = json!({"code": -32602, "message": "requestState is gone"});
        let task = json!({"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete",
            "taskId": "t", "status": "failed", "error": error}});
        let written = server_side
            .write_reply(task.to_string().as_bytes())
            .unwrap();
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
            let can = read.capabilities;
            assert!(can.url && can.sampling_tools && !can.form, "{asked}");
        }
    }
}

#[test]
fn missing_members_have_the_names_of_the_draft() {
    let empty = |method: &str| json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {}});
    let mut answers = empty("tasks/input_response");
    let (code, message) = rejection(Draft::Second, &answers);
    assert_eq!(code, -32602);
    assert!(
        message.contains("related-task") && message.contains("tasks/input_response"),
        "{message}"
    );
    answers["params"]["taskId"] = "t".into();
    let (_, message) = rejection(Draft::Second, &answers);
    assert_eq!(
        message,
        "inputResponses is missing; tasks/input_response needs it"
    );
    for draft in [Draft::First, Draft::Second] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let (code, message) = rejection(draft, &empty(method));
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
        let (written, client_side) = draft.write_request(&hello.to_string()).unwrap();
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
            panic!("expected a request");
        };
        let parsed = parse(&message).unwrap();
        assert!(
            matches!(parsed, refrain_wire::Message::Request { method, .. } if method == "server/discover")
        );
        let back = reply_round_trip(&exchange, &client_side, found.to_string().as_bytes());
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

#[test]
fn non_replies_are_not_changed() {
    for draft in Draft::ALL {
        for method in ["tools/call", "tools/list", "server/discover"] {
            let (_, client_side, _) =
                round_trip(draft, &request(method, json!({"name": "t"}), false));
            for text in [
                r#"{"jsonrpc":"2.0","id":7}"#,
                r#"{ "jsonrpc": "2.0", "id": 7, "other": {} }"#,
                r#"{"jsonrpc":"2.0","id":7,"result":5}"#,
                r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"requestState "}}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#,
                "nothing at all",
            ] {
                assert_eq!(client_side.read_reply(text), text);
            }
        }
    }
}

#[test]
fn unknown_status_is_not_changed() {
    let get = request("tasks/get", json!({"taskId": "t"}), true);
    for (status, capitalised) in [
        ("working", "Working"),
        ("input_required", "input_required"),
        ("éa", "éa"),
        ("ü", "ü"),
        ("", ""),
    ] {
        let (_, _, server_side) = round_trip(Draft::First, &get);
        let reply = json!({"jsonrpc": "2.0", "id": 7,
            "result": {"resultType": "complete", "taskId": "t", "status": status}});
        let written = server_side
            .write_reply(reply.to_string().as_bytes())
            .unwrap();
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
            let (written, client_side) = draft.write_request(&sent).expect("a request");
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
            let read = client_side.read_reply(&written);
            assert!(read.contains(&format!("\"id\":{id},")), "{read}");
        }
    }
}
