//! Legacy revisions: the information that a revision cannot carry.

use refrain_wire::legacy::{self, Revision, write_ask};
use refrain_wire::{
    Annotations, Ask, Cache, Capabilities, Content, Icon, PromptArgument, PromptInfo,
    PromptMessage, PromptResult, ReadResult, ResourceContents, ResourceInfo, ResourceLink,
    RpcError, SamplingParams, TaskSupport, ToolAnnotations, ToolExecution, ToolInfo, ToolResult,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::slice::from_ref;
use std::time::Duration;

use crate::legacy_round_trip::{
    FIRST, SECOND, THIRD, negotiated, read, received_list, received_result, written_ask,
};
use crate::support::written;

#[test]
fn capabilities_missing_in_the_revision_are_lost() {
    let can = Capabilities {
        form: true,
        url: true,
        sampling: true,
        sampling_tools: true,
        sampling_context: false,
        roots: true,
        tasks: false,
    };
    let second = negotiated(SECOND, can);
    assert!(second.form && !second.url && !second.sampling_tools);
    let first = negotiated(FIRST, can);
    assert!(!first.form && !first.url && first.sampling && first.roots);
    // Before 2025-11-25, every client with sampling supported context.
    assert!(first.sampling_context && second.sampling_context);
}

#[test]
fn cache_hints_are_lost() {
    let result = ReadResult {
        cache: Cache::public(Duration::from_secs(1)),
        ..ReadResult::default()
    };
    for revision in Revision::ALL {
        assert_eq!(received_result(revision, &result), json!({"contents": []}));
    }
}

#[test]
fn unsupported_structured_content_is_lost() {
    let structured = |value: Value| ToolResult {
        structured_content: Some(value),
        ..ToolResult::text("x")
    };
    for revision in Revision::ALL {
        let list: ToolResult = read(&received_result(revision, structured(json!([1]))));
        assert_eq!(list, ToolResult::text("x"));
        let object: ToolResult = read(&received_result(revision, structured(json!({"a": 1}))));
        assert_eq!(object.structured_content.is_some(), revision > FIRST);
        let tool = |kind: &str| ToolInfo {
            name: "t".to_owned(),
            output_schema: Some(json!({"type": kind})),
            ..ToolInfo::default()
        };
        let tools = received_list(revision, &[tool("object"), tool("array")]);
        assert_eq!(tools[0].output_schema.is_some(), revision > FIRST);
        assert_eq!(tools[1].output_schema, None);
    }
}

#[test]
fn icons_and_execution_are_lost_before_2025_11_25() {
    let icons = || vec![Icon::new("https://example.com/i.png")];
    let task_support = TaskSupport::Optional;
    let tool = ToolInfo {
        icons: icons(),
        execution: Some(ToolExecution { task_support }),
        ..ToolInfo::default()
    };
    let prompt = PromptInfo {
        icons: icons(),
        ..PromptInfo::default()
    };
    let resource = ResourceInfo {
        icons: icons(),
        ..ResourceInfo::default()
    };
    let link = ResourceLink {
        icons: icons(),
        ..ResourceLink::new("a:b", "b")
    };
    let linked = ToolResult {
        content: vec![link.into()],
        ..ToolResult::default()
    };
    for revision in Revision::ALL {
        let has = revision == THIRD;
        let tools = received_list(revision, from_ref(&tool));
        assert_eq!(!tools[0].icons.is_empty(), has);
        assert_eq!(tools[0].execution.is_some(), has);
        assert_eq!(
            !received_list(revision, from_ref(&prompt))[0]
                .icons
                .is_empty(),
            has
        );
        assert_eq!(
            !received_list(revision, from_ref(&resource))[0]
                .icons
                .is_empty(),
            has
        );
        let received_result = received_result(revision, &linked);
        assert_eq!(
            received_result["content"][0].get("icons").is_some(),
            has,
            "{received_result}"
        );
    }
}

#[test]
fn server_description_is_lost_before_2025_11_25() {
    let info = json!({"name": "s", "title": "S", "version": "1", "description": "d",
        "websiteUrl": "https://example.com/", "icons": [{"src": "i"}]});
    let greeting = json!({"protocolVersion": "2025-03-26", "serverInfo": info});
    assert_eq!(received_result(THIRD, &greeting)["serverInfo"], info);
    let second = json!({"name": "s", "title": "S", "version": "1"});
    assert_eq!(received_result(SECOND, &greeting)["serverInfo"], second);
    let first = json!({"name": "s", "version": "1"});
    assert_eq!(received_result(FIRST, &greeting)["serverInfo"], first);
}

#[test]
fn titles_except_of_tools_are_lost_in_2025_03_26() {
    let tool = ToolInfo {
        name: "t".to_owned(),
        title: Some("T".to_owned()),
        ..ToolInfo::default()
    };
    let with = |title: Option<&str>| ToolAnnotations {
        title: title.map(str::to_owned),
        read_only_hint: Some(true),
        ..ToolAnnotations::default()
    };
    for (given, shown) in [
        (
            None,
            ToolAnnotations {
                read_only_hint: None,
                ..with(Some("T"))
            },
        ),
        (Some(with(None)), with(Some("T"))),
        (Some(with(Some("other"))), with(Some("other"))),
    ] {
        let tool = ToolInfo {
            annotations: given,
            ..tool.clone()
        };
        let received_result = &received_list(FIRST, &[tool])[0];
        assert_eq!(
            (&received_result.title, &received_result.annotations),
            (&None, &Some(shown))
        );
    }
    let prompt = PromptInfo {
        title: Some("P".to_owned()),
        arguments: vec![PromptArgument {
            title: Some("A".to_owned()),
            ..PromptArgument::default()
        }],
        ..PromptInfo::default()
    };
    let received_result = &received_list(FIRST, from_ref(&prompt))[0];
    assert_eq!(
        (&received_result.title, &received_result.arguments[0].title),
        (&None, &None)
    );
    assert_eq!(received_list(SECOND, from_ref(&prompt)), [prompt]);
}

#[test]
fn nested_meta_and_times_are_lost_in_2025_03_26() {
    let facts = || Some(json!({"a": 1}));
    let hints = Annotations {
        priority: Some(0.5),
        last_modified: Some("2025-01-01".to_owned()),
        ..Annotations::default()
    };
    let resource = ResourceContents::Text {
        uri: "a:b".to_owned(),
        mime_type: None,
        text: "x".to_owned(),
        meta: facts(),
    };
    let result = ToolResult {
        content: vec![
            Content::Text {
                text: "x".to_owned(),
                annotations: Some(hints),
                meta: facts(),
            },
            Content::resource(resource),
        ],
        ..ToolResult::default()
    };
    let content = json!([
        {"type": "text", "text": "x", "annotations": {"priority": 0.5}},
        {"type": "resource", "resource": {"uri": "a:b", "text": "x"}},
    ]);
    assert_eq!(received_result(FIRST, &result)["content"], content);
    assert_eq!(
        read::<ToolResult>(&received_result(SECOND, &result)),
        result
    );
}

#[test]
fn resource_links_become_texts_in_2025_03_26() {
    let link = Content::link("notes://today", "notes");
    let result = PromptResult {
        messages: vec![PromptMessage::user(link)],
        ..PromptResult::default()
    };
    let received_result: PromptResult = read(&received_result(FIRST, &result));
    let text = received_result.messages[0].content.as_text();
    assert_eq!(text, Some("notes: notes://today"));
}

#[test]
fn missing_resource_gets_the_legacy_error_code() {
    let error = RpcError::resource_not_found("a:b");
    let received_result = written(|out| legacy::write_error(out, Some("1"), &error));
    assert_eq!(received_result["error"]["code"], -32002);
    assert_ne!(error.code.as_i32(), -32002);
}

#[test]
fn message_blocks_are_split_before_2025_11_25() {
    let mut params = SamplingParams::new(9).user("one").user("two");
    let second = params.messages.remove(1);
    params.messages[0].content.extend(second.content);
    let ask = Ask::Sampling(Box::new(params.clone()));
    assert_eq!(read::<SamplingParams>(&written_ask(THIRD, &ask)), params);
    let apart = SamplingParams::new(9).user("one").user("two");
    for revision in [FIRST, SECOND] {
        assert_eq!(read::<SamplingParams>(&written_ask(revision, &ask)), apart);
    }
}

#[test]
fn untitled_choice_gets_its_value_as_title() {
    let schema = json!({"type": "object", "properties": {
        "z": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b"}]},
        "a": {"type": "string"},
    }});
    let text = r#"{"type":"object","properties":{"z":{"type":"string","oneOf":[{"const":"r","title":"Red"},{"const":"b"}]},"a":{"type":"string"}}}"#;
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), schema);
    let ask = Ask::Form {
        message: "Which?".to_owned(),
        schema: RawValue::from_string(text.to_owned()).unwrap().into(),
    };
    let mut out = Vec::new();
    write_ask(&mut out, "i", &ask, SECOND);
    let out = String::from_utf8(out).unwrap();
    let plain = r#""properties":{"z":{"type":"string","enum":["r","b"],"enumNames":["Red","b"]},"a":{"type":"string"}}"#;
    assert!(out.contains(plain), "{out}");
}
