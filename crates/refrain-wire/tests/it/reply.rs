//! Serialization of replies, errors, notifications and result bodies.

use std::sync::Arc;
use std::time::Duration;

use refrain_wire::ratified::{write_error, write_log, write_progress, write_reply};
use refrain_wire::{
    Annotations, Ask, Cache, Capability, Content, DiscoverResult, Empty, ErrorCode, Icon, Id,
    Implementation, Incomplete, ListCapability, ListResult, LogLevel, PromptArgument, PromptInfo,
    PromptMessage, PromptResult, ReadResult, Reply, ResourceContents, ResourceInfo, ResourceLink,
    ResourceTemplateInfo, ResultBody, Role, RpcError, SamplingParams, ServerCapabilities,
    ToolAnnotations, ToolInfo, ToolResult,
};
use serde_json::{Value, json};

use crate::support::{members, raw, to_raw};

fn reply_text(reply: &Reply) -> String {
    let info = Implementation {
        name: "S".into(),
        version: "1".into(),
        ..Default::default()
    };
    let id = raw("7");
    let mut out = Vec::new();
    write_reply(&mut out, Id::from_raw(&id), reply, &to_raw(info));
    String::from_utf8(out).unwrap()
}

/// The serialized members of a result.
fn result_members(result: impl serde::Serialize) -> Value {
    members(&ResultBody::from_members(result).unwrap())
}

#[test]
fn complete_reply_matches_exact_bytes() {
    assert_eq!(
        reply_text(&Reply::complete(ToolResult::text("72°F"))),
        r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","content":[{"type":"text","text":"72°F"}],"isError":false,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"S","version":"1"}}}}"#
    );
    assert_eq!(
        reply_text(&Reply::complete(json!({}))),
        r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"S","version":"1"}}}}"#
    );
}

#[test]
fn reply_without_escapes_fits_its_buffer_exactly() {
    let form = |message: &str| Ask::Form {
        message: message.into(),
        schema: raw(r#"{"type":"object"}"#).into(),
    };
    let text = ResultBody::text("72°F");
    let tagged = text.clone().with_meta(json!({"a": 1})).unwrap();
    let incomplete = |asks, state| Reply::Incomplete(Incomplete { asks, state });
    for reply in [
        Reply::Complete(text.clone()),
        Reply::Complete(tagged),
        Reply::complete(Empty {}),
        Reply::Task(text),
        incomplete(vec![("a".into(), form("Which?"))], Some("AQ".into())),
        incomplete(vec![("a".into(), form("")), ("b".into(), form("B"))], None),
        incomplete(Vec::new(), Some("AQ".into())),
    ] {
        let (id, info, mut out) = (raw("7"), raw(r#"{"name":"S"}"#), Vec::new());
        write_reply(&mut out, Id::from_raw(&id), &reply, &info);
        let text = String::from_utf8_lossy(&out);
        assert_eq!(out.capacity(), out.len(), "{text}");
    }
}

#[test]
fn reply_with_raw_values_is_one_line() {
    let spread = raw("{\"a\" :\r\n [1,\n\"\\n\"]}");
    let complete = reply_text(&Reply::complete(&spread));
    assert!(
        complete.contains(r#""complete","a" :   [1, "\n"],"_meta""#),
        "{complete}"
    );
    let failed = RpcError::internal("no").with_data(&spread);
    let failed = reply_text(&Reply::Error(failed));
    assert!(
        failed.ends_with(r#""data":{"a" :   [1, "\n"]}}}"#),
        "{failed}"
    );
    assert_eq!(
        reply_text(&Reply::complete(raw("{ }"))),
        reply_text(&Reply::complete(json!({})))
    );
}

#[test]
fn non_object_body_is_an_internal_error() {
    assert_eq!(
        ResultBody::from_members([1]).unwrap_err().code,
        ErrorCode::Internal
    );
    assert!(matches!(Reply::complete("text"), Reply::Error(_)));
}

#[test]
fn incomplete_reply_matches_exact_bytes() {
    let schema = r#"{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#;
    let incomplete = Incomplete {
        asks: vec![
            (
                "login".into(),
                Ask::Form {
                    message: "Who?".into(),
                    schema: Arc::from(raw(schema)),
                },
            ),
            (
                "key".into(),
                Ask::Url {
                    message: "Go".into(),
                    url: "https://a.example/k".into(),
                },
            ),
            (
                "capital".into(),
                Ask::Sampling(Box::new(SamplingParams::new(100).user("Which?"))),
            ),
            ("dirs".into(), Ask::Roots),
        ],
        state: Some("eyJ9".into()),
    };
    assert_eq!(
        reply_text(&Reply::Incomplete(incomplete)),
        format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":{{"resultType":"input_required","inputRequests":{{"login":{{"method":"elicitation/create","params":{{"mode":"form","message":"Who?","requestedSchema":{schema}}}}},"key":{{"method":"elicitation/create","params":{{"mode":"url","message":"Go","url":"https://a.example/k"}}}},"capital":{{"method":"sampling/createMessage","params":{{"messages":[{{"role":"user","content":{{"type":"text","text":"Which?"}}}}],"maxTokens":100}}}},"dirs":{{"method":"roots/list"}}}},"requestState":"eyJ9","_meta":{{"io.modelcontextprotocol/serverInfo":{{"name":"S","version":"1"}}}}}}}}"#
        )
    );
}

#[test]
fn state_only_reply_has_no_input_requests() {
    let text = reply_text(&Reply::Incomplete(Incomplete {
        state: Some("s".into()),
        ..Default::default()
    }));
    assert!(
        text.contains(r#""resultType":"input_required","requestState":"s","_meta""#),
        "{text}"
    );
    assert!(!text.contains("inputRequests"));
}

#[test]
fn error_reply_has_code_data_and_optional_id() {
    let mut out = Vec::new();
    write_error(&mut out, None, &RpcError::parse("not \"JSON\""));
    let text = String::from_utf8(out).unwrap();
    assert_eq!(
        text,
        r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"not \"JSON\""}}"#
    );

    let error = RpcError::invalid_params("no such resource").with_data(&json!({"uri": "x://y"}));
    assert_eq!(
        reply_text(&Reply::Error(error)),
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"no such resource","data":{"uri":"x://y"}}}"#
    );
}

#[test]
fn error_codes_have_numbers_and_http_statuses() {
    let cases = [
        (ErrorCode::Parse, -32700, 400),
        (ErrorCode::InvalidRequest, -32600, 400),
        (ErrorCode::MethodNotFound, -32601, 404),
        (ErrorCode::InvalidParams, -32602, 400),
        (ErrorCode::Internal, -32603, 500),
        (ErrorCode::HeaderMismatch, -32020, 400),
        (ErrorCode::MissingCapability, -32021, 400),
        (ErrorCode::UnsupportedVersion, -32022, 400),
    ];
    for (code, number, status) in cases {
        assert_eq!((code.as_i32(), code.http_status()), (number, status));
    }
    assert_eq!(RpcError::internal("broken").to_string(), "broken (-32603)");
    assert!(RpcError::method_not_found("a/b").message.contains("a/b"));
}

#[test]
fn error_data_lists_missing_capabilities_and_versions() {
    let data = |error: RpcError| error.data.unwrap().get().to_owned();
    let cases: [(&[Capability], &str); 6] = [
        (&[Capability::Form], r#"{"elicitation":{"form":{}}}"#),
        (&[Capability::Url], r#"{"elicitation":{"url":{}}}"#),
        (
            &[Capability::Form, Capability::Url],
            r#"{"elicitation":{"form":{},"url":{}}}"#,
        ),
        (&[Capability::Sampling], r#"{"sampling":{}}"#),
        (&[Capability::SamplingTools], r#"{"sampling":{"tools":{}}}"#),
        (
            &[Capability::Roots, Capability::Form],
            r#"{"elicitation":{"form":{}},"roots":{}}"#,
        ),
    ];
    for (missing, required) in cases {
        let error = RpcError::missing_capability(missing);
        assert_eq!(
            data(error),
            format!(r#"{{"requiredCapabilities":{required}}}"#)
        );
    }
    let error = RpcError::unsupported_version("1900-01-01", &["2026-07-28", "2025-11-25"]);
    assert_eq!(
        data(error),
        r#"{"supported":["2026-07-28","2025-11-25"],"requested":"1900-01-01"}"#
    );
}

#[test]
fn notifications_match_exact_bytes() {
    let mut out = Vec::new();
    write_progress(&mut out, &raw(r#""tok""#), 50.0, Some(100.0), Some("Half"));
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"tok","progress":50,"total":100,"message":"Half"}}"#
    );
    let mut out = Vec::new();
    write_progress(&mut out, &raw("3"), 0.25, Some(f64::NAN), None);
    assert!(out.ends_with(br#"{"progressToken":3,"progress":0.25}}"#));
    let mut out = Vec::new();
    write_progress(&mut out, &raw("3"), f64::INFINITY, None, None);
    assert!(out.ends_with(br#""progress":0}}"#));

    let mut out = Vec::new();
    write_log(
        &mut out,
        LogLevel::Error,
        Some("database"),
        &json!({"port": 5432}),
    );
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","logger":"database","data":{"port":5432}}}"#
    );
}

#[test]
fn sampling_params_are_serialized() {
    let params = SamplingParams::new(100)
        .user("What is the capital of France?")
        .system("You are a helpful assistant.")
        .hint("claude-3-sonnet")
        .intelligence(0.8)
        .speed(0.5)
        .cost(0.3);
    let value = serde_json::to_value(&params).unwrap();
    assert_eq!(
        value,
        json!({
            "messages": [{"role": "user", "content": {"type": "text", "text": "What is the capital of France?"}}],
            "modelPreferences": {"hints": [{"name": "claude-3-sonnet"}], "intelligencePriority": 0.8, "speedPriority": 0.5, "costPriority": 0.3},
            "systemPrompt": "You are a helpful assistant.",
            "maxTokens": 100
        })
    );
    assert_eq!(
        serde_json::from_value::<SamplingParams>(value).unwrap(),
        params
    );
}

#[test]
fn content_blocks_survive_the_round_trip() {
    let hints = Annotations {
        audience: vec![Role::User, Role::Assistant],
        priority: Some(0.7),
        last_modified: Some("2025-05-03T14:30:00Z".into()),
    };
    let cases = [
        (Content::text("a"), json!({"type": "text", "text": "a"})),
        (
            Content::image("AA==", "image/png"),
            json!({"type": "image", "data": "AA==", "mimeType": "image/png"}),
        ),
        (
            Content::audio("AA==", "audio/wav"),
            json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"}),
        ),
        (
            Content::link("file:///m.rs", "m.rs"),
            json!({"type": "resource_link", "uri": "file:///m.rs", "name": "m.rs"}),
        ),
        (
            ResourceLink {
                icons: vec![Icon::new("https://example.com/m.png")],
                ..ResourceLink::new("file:///m.rs", "m.rs")
            }
            .into(),
            json!({
                "type": "resource_link", "uri": "file:///m.rs", "name": "m.rs",
                "icons": [{"src": "https://example.com/m.png"}],
            }),
        ),
        (
            Content::resource(ResourceContents::text(
                "file:///m.rs",
                "text/x-rust",
                "fn main() {}",
            ))
            .annotated(hints),
            json!({
                "type": "resource",
                "resource": {"uri": "file:///m.rs", "mimeType": "text/x-rust", "text": "fn main() {}"},
                "annotations": {"audience": ["user", "assistant"], "priority": 0.7, "lastModified": "2025-05-03T14:30:00Z"}
            }),
        ),
        (
            Content::resource(ResourceContents::blob("a:b", "image/png", "AA==")),
            json!({"type": "resource", "resource": {"uri": "a:b", "mimeType": "image/png", "blob": "AA=="}}),
        ),
    ];
    for (content, value) in cases {
        assert_eq!(serde_json::to_value(&content).unwrap(), value);
        assert_eq!(serde_json::from_value::<Content>(value).unwrap(), content);
    }
}

#[test]
fn result_bodies_are_serialized() {
    let structured = ToolResult {
        structured_content: Some(json!({"t": 1})),
        ..ToolResult::error("no")
    };
    assert_eq!(
        result_members(&structured),
        json!({"content": [{"type": "text", "text": "no"}], "structuredContent": {"t": 1}, "isError": true})
    );
    let prompt = PromptResult {
        description: Some("Code review prompt".into()),
        messages: vec![PromptMessage {
            role: Role::User,
            content: "Please review".into(),
        }],
        meta: None,
    };
    assert_eq!(
        result_members(&prompt),
        json!({"description": "Code review prompt", "messages": [{"role": "user", "content": {"type": "text", "text": "Please review"}}]})
    );
    let read = ReadResult {
        contents: vec![ResourceContents::text("a:b", "text/plain", "x")],
        cache: Cache::private(Duration::from_secs(60)),
        meta: None,
    };
    assert_eq!(
        result_members(&read),
        json!({"contents": [{"uri": "a:b", "mimeType": "text/plain", "text": "x"}], "ttlMs": 60000, "cacheScope": "private"})
    );
    let discover = DiscoverResult {
        supported_versions: vec!["2026-07-28".into()],
        capabilities: ServerCapabilities {
            tools: Some(ListCapability::default()),
            resources: Some(ListCapability {
                list_changed: true,
                subscribe: true,
            }),
            completions: Some(Empty {}),
            ..Default::default()
        },
        instructions: None,
        cache: Cache::public(Duration::from_secs(3600)),
    };
    assert_eq!(
        result_members(&discover),
        json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "resources": {"listChanged": true, "subscribe": true}, "completions": {}}, "ttlMs": 3600000, "cacheScope": "public"})
    );
}

#[test]
fn lists_are_serialized() {
    let tools = [ToolInfo {
        name: "get_weather".into(),
        description: Some("Current weather".into()),
        input_schema: json!({"type": "object"}),
        annotations: Some(ToolAnnotations {
            read_only_hint: Some(true),
            ..Default::default()
        }),
        ..Default::default()
    }];
    let page = ListResult {
        items: &tools.each_ref(),
        next_cursor: Some("next"),
        cache: Cache::public(Duration::from_secs(300)),
    };
    assert_eq!(
        result_members(page),
        json!({
            "tools": [{"name": "get_weather", "description": "Current weather", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}],
            "nextCursor": "next", "ttlMs": 300000, "cacheScope": "public"
        })
    );

    fn items<T: refrain_wire::ListEntry>(items: &[T]) -> Value {
        result_members(ListResult {
            items: &items.iter().collect::<Vec<_>>(),
            next_cursor: None,
            cache: Cache::default(),
        })
    }
    let argument = PromptArgument {
        name: "arg1".into(),
        required: true,
        ..Default::default()
    };
    let prompt = PromptInfo {
        name: "p".into(),
        arguments: vec![argument],
        ..Default::default()
    };
    let resource = ResourceInfo {
        uri: "a:b".into(),
        name: "b".into(),
        size: Some(3),
        ..Default::default()
    };
    let template = ResourceTemplateInfo {
        uri_template: "a:{id}".into(),
        name: "t".into(),
        ..Default::default()
    };
    assert_eq!(
        items(&[prompt])["prompts"],
        json!([{"name": "p", "arguments": [{"name": "arg1", "required": true}]}])
    );
    assert_eq!(
        items(&[resource])["resources"],
        json!([{"uri": "a:b", "name": "b", "size": 3}])
    );
    assert_eq!(
        items(&[template])["resourceTemplates"],
        json!([{"uriTemplate": "a:{id}", "name": "t"}])
    );
}

#[test]
fn text_result_matches_the_serde_result() {
    let ascii: String = ('\0'..='\u{7f}').collect();
    // Each character after an eight-byte chunk, because the writer searches in such chunks.
    let spread: String = ascii
        .chars()
        .map(|c| format!("more than eight{c}°"))
        .collect();
    for text in [
        "",
        "plain",
        "two\nlines",
        "72°F \"quoted\" \\ \u{1}",
        "\u{1f600}",
        &ascii,
        &spread,
    ] {
        let by_serde = ResultBody::from_members(ToolResult::text(text)).unwrap();
        assert_eq!(ResultBody::text(text), by_serde);
    }
}

#[test]
fn tool_result_exposes_failure_and_structured_content() {
    let failed = ResultBody::from_tool(ToolResult::error("no")).unwrap();
    assert!(failed.is_error() && failed.structured_content().is_none());
    let text = ResultBody::text("\"isError\":true");
    assert!(!text.is_error());
    let structured = ToolResult {
        structured_content: Some(json!({"isError": true})),
        ..ToolResult::default()
    };
    let structured = ResultBody::from_tool(structured).unwrap();
    assert!(!structured.is_error());
    assert_eq!(
        structured.structured_content().as_deref(),
        Some(&json!({"isError": true}))
    );
}

#[test]
fn foreign_result_keeps_its_members_except_those_of_the_dialect() {
    let sent = json!({
        "x-first": 1,
        "structuredContent": {"n": 2},
        "isError": true,
        "resultType": "input_required",
        "inputRequests": {},
        "requestState": "s",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "other"}},
    });
    let body = ResultBody::from_foreign(sent.as_object().unwrap().clone()).unwrap();
    let kept = r#""x-first":1,"structuredContent":{"n":2},"isError":true"#;
    assert_eq!((&*body.members(), body.meta()), (kept, None));
    assert!(body.is_error());
    assert_eq!(body.structured_content().as_deref(), Some(&json!({"n": 2})));
}
