//! Legacy revisions: exact messages.

use refrain_wire::legacy::{
    self, Revision, SessionSettings, decode_initialize, decode_set_level, decode_uri, is_modern,
    split_batch, write_ask, write_cancelled,
};
use refrain_wire::{
    Ask, CallKind, Capabilities, Change, Id, LogLevel, Message, Reply, Response, ResultBody,
    RpcError, SamplingParams, parse,
};
use serde_json::{Value, json};

use crate::legacy_round_trip::received_result;
use crate::support::{to_raw, written};

fn session() -> SessionSettings {
    SessionSettings {
        revision: Revision::V2025_11_25,
        capabilities: Capabilities {
            form: true,
            ..Capabilities::default()
        },
        log_level: Some(LogLevel::Warning),
    }
}

#[test]
fn initialize_yields_capabilities_of_the_revision() {
    let all = json!({
        "elicitation": {"form": {}, "url": {}},
        "sampling": {"tools": {}, "context": {}},
        "roots": {"listChanged": true},
        "tasks": {},
        "experimental": {"x": 1},
    });
    let greeting = |version: &str, capabilities: &Value| {
        let params = json!({"protocolVersion": version, "capabilities": capabilities,
            "clientInfo": {"name": "c", "version": "1"}});
        decode_initialize(Some(&to_raw(&params))).unwrap()
    };
    let latest = greeting("2025-11-25", &all);
    assert_eq!(latest.revision, Revision::V2025_11_25);
    let everything = Capabilities {
        form: true,
        url: true,
        sampling: true,
        sampling_tools: true,
        sampling_context: true,
        roots: true,
        tasks: false,
    };
    assert_eq!(latest.capabilities, everything);
    let before = Capabilities {
        url: false,
        sampling_tools: false,
        ..everything
    };
    assert_eq!(greeting("2025-06-18", &all).capabilities, before);
    let first = Capabilities {
        form: false,
        ..before
    };
    assert_eq!(greeting("2025-03-26", &all).capabilities, first);
    assert_eq!(greeting("2019", &all).revision, Revision::LATEST);
    let url_only = greeting("2025-11-25", &json!({"elicitation": {"url": {}}}));
    assert!(!url_only.capabilities.form && url_only.capabilities.url);
    let empty = greeting("2025-11-25", &json!({"elicitation": {}}));
    assert!(empty.capabilities.form && !empty.capabilities.url);
}

#[test]
fn request_meta_comes_from_the_session() {
    let params =
        json!({"name": "greet", "arguments": {"a": 1}, "_meta": {"progressToken": 7, "x": 1}});
    let params = to_raw(&params);
    let call = legacy::decode_call(CallKind::Tool, Some(&params), session()).unwrap();
    assert_eq!(call.target, "greet");
    assert_eq!(call.arguments.unwrap().get(), r#"{"a":1}"#);
    assert_eq!(call.meta.progress_token.unwrap().get(), "7");
    assert_eq!(call.meta.log_level, Some(LogLevel::Warning));
    assert!(call.meta.capabilities.form);
    assert!(call.answers.is_none() && call.state.is_none());
    // Members of 2026-07-28 are ignored.
    let modern = to_raw(json!({"name": "greet", "inputResponses": {"a": {}}, "requestState": "x"}));
    let call = legacy::decode_call(CallKind::Tool, Some(&modern), session()).unwrap();
    assert!(
        call.answers
            .as_ref()
            .is_none_or(|all| all.iter().next().is_none())
    );
    assert_eq!(call.state, None);

    assert!(
        legacy::decode_list(None, session())
            .unwrap()
            .cursor
            .is_none()
    );
    let page = to_raw(json!({"cursor": "c"}));
    let page = legacy::decode_list(Some(&page), session()).unwrap();
    assert_eq!(page.cursor.as_deref(), Some("c"));
    let typed = to_raw(
        json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "v"}}),
    );
    let typed = legacy::decode_complete(Some(&typed), session()).unwrap();
    assert_eq!((typed.argument.as_ref(), typed.value.as_ref()), ("a", "v"));
    let level = to_raw(json!({"level": "notice"}));
    assert_eq!(decode_set_level(Some(&level)).unwrap(), LogLevel::Notice);
    let uri = to_raw(json!({"uri": "a:b"}));
    assert_eq!(decode_uri(Some(&uri)).unwrap(), "a:b");
    for wrong in [
        json!({}),
        json!({"name": 7}),
        json!({"name": "a", "arguments": []}),
    ] {
        let wrong = to_raw(&wrong);
        assert!(legacy::decode_call(CallKind::Tool, Some(&wrong), session()).is_err());
        assert!(decode_set_level(Some(&wrong)).is_err());
        assert!(decode_uri(Some(&wrong)).is_err());
    }
}

#[test]
fn modern_request_is_detected_by_its_meta() {
    let version = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}});
    assert!(is_modern(Some(&to_raw(&version))));
    for older in [
        json!({}),
        json!({"_meta": {"progressToken": 1}}),
        json!({"_meta": 7}),
    ] {
        assert!(!is_modern(Some(&to_raw(&older))), "{older}");
    }
    assert!(!is_modern(None));
}

#[test]
fn results_lose_newer_members() {
    let listed = json!({
        "tools": [
            {"name": "a", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}},
            {"name": "b", "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}},
        ],
        "nextCursor": "n",
        "ttlMs": 5,
        "cacheScope": "public",
    });
    let expected = json!({
        "tools": [
            {"name": "a", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}},
            {"name": "b", "inputSchema": {"type": "object"}},
        ],
        "nextCursor": "n",
    });
    assert_eq!(received_result(Revision::V2025_11_25, &listed), expected);
    let object = json!({"content": [], "structuredContent": {"a": 1}, "isError": false});
    assert_eq!(received_result(Revision::V2025_06_18, &object), object);
    let list = json!({"content": [], "structuredContent": [1], "isError": false});
    let without = json!({"content": [], "isError": false});
    assert_eq!(received_result(Revision::V2025_11_25, &list), without);
    assert_eq!(received_result(Revision::V2025_11_25, json!({})), json!({}));
    let link = json!({"type": "resource_link", "name": "notes", "uri": "notes://today"});
    let linked = json!({"content": [link], "isError": false});
    assert_eq!(received_result(Revision::V2025_06_18, &linked), linked);
    let text = json!({"type": "text", "text": "notes: notes://today"});
    assert_eq!(
        received_result(Revision::V2025_03_26, &linked)["content"],
        json!([text])
    );
    let messages = json!({"messages": [{"role": "user", "content": link}]});
    let prompt = received_result(Revision::V2025_03_26, &messages);
    assert_eq!(prompt["messages"][0]["content"], text);
}

#[test]
fn result_meta_is_kept() {
    let body = ResultBody::from_members(json!({"content": []})).unwrap();
    let body = body.with_meta(json!({"com.example/a": 1})).unwrap();
    let id = to_raw(json!("x"));
    let id = Id::from_raw(&id).unwrap();
    let reply = Reply::Complete(body);
    assert_eq!(
        written(|out| legacy::write_reply(out, id, &reply, Revision::LATEST)),
        json!({"jsonrpc": "2.0", "id": "x", "result": {"content": [], "_meta": {"com.example/a": 1}}})
    );
}

#[test]
fn missing_resource_uses_the_error_code_of_its_revision() {
    let error = RpcError::resource_not_found("a:b");
    let said = written(|out| legacy::write_error(out, Some("1"), &error));
    assert_eq!(said["error"]["code"], -32002);
    assert_eq!(said["error"]["data"], json!({"uri": "a:b"}));
    let error = RpcError::invalid_params("no");
    let said = written(|out| legacy::write_error(out, None, &error));
    assert_eq!(
        said,
        json!({"jsonrpc": "2.0", "error": {"code": -32602, "message": "no"}})
    );
}

#[test]
fn asks_are_written_as_requests() {
    let choices = json!([{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]);
    let schema =
        json!({"type": "object", "properties": {"colour": {"type": "string", "oneOf": choices}}});
    let ask = Ask::Form {
        message: "Which?".to_owned(),
        schema: to_raw(&schema).into(),
    };
    let latest = written(|out| write_ask(out, "i-1", &ask, Revision::V2025_11_25));
    assert_eq!(
        latest,
        json!({"jsonrpc": "2.0", "id": "i-1", "method": "elicitation/create",
            "params": {"mode": "form", "message": "Which?", "requestedSchema": schema}})
    );
    let before = written(|out| write_ask(out, "i-1", &ask, Revision::V2025_06_18));
    let plain = json!({"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"]});
    assert_eq!(
        before["params"],
        json!({"message": "Which?", "requestedSchema": {"type": "object", "properties": {"colour": plain}}})
    );
    let url = Ask::Url {
        message: "Go".to_owned(),
        url: "https://example.com/".to_owned(),
    };
    let url = written(|out| write_ask(out, "i-2", &url, Revision::V2025_11_25));
    assert_eq!(
        url["params"],
        json!({"mode": "url", "message": "Go", "url": "https://example.com/", "elicitationId": "i-2"})
    );
    let mut question = SamplingParams::new(9).user("one").user("two");
    let second = question.messages.remove(1);
    question.messages[0].content.extend(second.content);
    let ask = Ask::Sampling(Box::new(question));
    let latest = written(|out| write_ask(out, "i-3", &ask, Revision::V2025_11_25));
    assert_eq!(
        latest["params"]["messages"].as_array().map(Vec::len),
        Some(1)
    );
    let before = written(|out| write_ask(out, "i-3", &ask, Revision::V2025_03_26));
    let texts: Vec<&Value> = before["params"]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[1]["content"], json!({"type": "text", "text": "two"}));
    let roots = written(|out| write_ask(out, "i-4", &Ask::Roots, Revision::V2025_03_26));
    assert_eq!(
        roots,
        json!({"jsonrpc": "2.0", "id": "i-4", "method": "roots/list"})
    );
    let withdrawn = written(|out| write_cancelled(out, "i-4", "why"));
    assert_eq!(
        withdrawn["params"],
        json!({"requestId": "i-4", "reason": "why"})
    );
    let changed = written(|out| legacy::write_change(out, Change::Resource("a:b")));
    assert_eq!(
        changed,
        json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "a:b"}})
    );
}

fn response(bytes: &[u8]) -> Option<Response<'_>> {
    match parse(bytes) {
        Ok(Message::Response(response)) => Some(response),
        _ => None,
    }
}

#[test]
fn responses_are_distinguished_from_other_messages() {
    let good = br#"{"jsonrpc":"2.0","id":"i-1","result":{"action":"cancel"}}"#;
    let answer = response(good).unwrap();
    assert_eq!(answer.id.as_json(), r#""i-1""#);
    assert_eq!(answer.outcome.unwrap().get(), r#"{"action":"cancel"}"#);
    let rejection = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no \"one\""}}"#;
    let rejection = response(rejection).unwrap();
    assert_eq!(rejection.outcome.unwrap_err(), "no \"one\"");
    let with_null_error = br#"{"jsonrpc":"2.0","id":1,"result":{"action":"cancel"},"error":null}"#;
    let with_null_error = response(with_null_error).unwrap().outcome.unwrap();
    assert_eq!(with_null_error.get(), r#"{"action":"cancel"}"#);
    for (members, why) in [
        (r#""result":null,"error":{"code":1,"message":"no"}"#, "no"),
        (r#""result":7"#, "not an object"),
        (r#""result":null"#, "not an object"),
        (r#""error":{"code":1}"#, "no message"),
        (r#""error":"no""#, "no message"),
        (r#""error":null"#, "no message"),
        (r#""result":{},"error":{"code":1,"message":"no"}"#, "both"),
    ] {
        let message = format!(r#"{{"jsonrpc":"2.0","id":1,{members}}}"#);
        let reason = response(message.as_bytes()).unwrap().outcome.unwrap_err();
        assert!(reason.contains(why), "{members}: {reason}");
    }
    for other in [
        &br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#[..],
        br#"{"jsonrpc":"2.0","id":1}"#,
        br#"{"jsonrpc":"2.0","result":{}}"#,
        br#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
        br#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
        br#"{"jsonrpc":"2.0","id":1,"result":{},"method":"ping"}"#,
        b"[]",
        b"nothing",
        b"\xff",
    ] {
        assert!(
            response(other).is_none(),
            "{}",
            String::from_utf8_lossy(other)
        );
    }
    assert_eq!(split_batch(b" [1, {}]").map(|batch| batch.len()), Some(2));
    for none in [&b"{}"[..], b"", b"[1", b"\xff"] {
        assert!(split_batch(none).is_none());
    }
}
