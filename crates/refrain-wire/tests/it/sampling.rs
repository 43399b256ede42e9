//! Sampling: serialization and validation of conversations.

use refrain_wire::{
    Capabilities, Capability, Content, IncludeContext, Role, SamplingAnswer, SamplingBlock,
    SamplingParams, ToolChoice, ToolInfo, ToolUse,
};
use serde_json::{Value, json};

fn weather() -> ToolInfo {
    ToolInfo {
        name: "get_weather".into(),
        input_schema: json!({"type": "object"}),
        ..ToolInfo::default()
    }
}

fn city(id: &str, city: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "get_weather", "input": {"city": city}})
}

/// An answer with two tool uses.
fn two_tool_uses() -> SamplingAnswer {
    let content = json!([city("a", "Paris"), city("b", "London")]);
    let answer =
        json!({"role": "assistant", "model": "m", "stopReason": "toolUse", "content": content});
    serde_json::from_value(answer).unwrap()
}

fn uses() -> Vec<ToolUse> {
    two_tool_uses().tool_uses().cloned().collect()
}

fn request() -> SamplingParams {
    SamplingParams::new(9)
        .user("Paris or London?")
        .tool(weather())
}

#[test]
fn conversation_with_tools_is_serialized() {
    let answer = two_tool_uses();
    let [paris, london] = uses().try_into().unwrap();
    assert_eq!(
        (paris.name.as_str(), &paris.input["city"]),
        ("get_weather", &json!("Paris"))
    );
    let params = request()
        .tool_choice(ToolChoice::Auto)
        .answer(&answer)
        .results([paris.result("sunny"), london.failed("no idea")]);
    assert_eq!(params.check(), Ok(()));
    let value = serde_json::to_value(&params).unwrap();
    let expected = json!({
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Paris or London?"}},
            {"role": "assistant", "content": [city("a", "Paris"), city("b", "London")]},
            {"role": "user", "content": [
                {"type": "tool_result", "toolUseId": "a", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "tool_result", "toolUseId": "b", "isError": true,
                    "content": [{"type": "text", "text": "no idea"}]}]}],
        "maxTokens": 9,
        "tools": [{"name": "get_weather", "inputSchema": {"type": "object"}}],
        "toolChoice": {"mode": "auto"}
    });
    assert_eq!(value, expected);
    assert_eq!(
        serde_json::from_value::<SamplingParams>(value).unwrap(),
        params
    );
    // A single result is not an array.
    let one = SamplingParams::new(1).results([paris.result("sunny")]);
    let written = serde_json::to_value(&one).unwrap();
    assert_eq!(written["messages"][0]["content"]["type"], "tool_result");
    assert_eq!(
        serde_json::from_value::<SamplingParams>(written).unwrap(),
        one
    );
    for (choice, mode) in [
        (ToolChoice::Auto, "auto"),
        (ToolChoice::Required, "required"),
        (ToolChoice::None, "none"),
    ] {
        assert_eq!(serde_json::to_value(choice).unwrap(), json!({"mode": mode}));
    }
}

/// The Python SDK misreads an array of one block.
#[test]
fn single_block_is_not_written_as_an_array() {
    let one =
        json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}});
    let answer: SamplingAnswer = serde_json::from_value(one.clone()).unwrap();
    assert_eq!(serde_json::to_value(&answer).unwrap(), one);
    let several = serde_json::to_value(two_tool_uses()).unwrap();
    assert_eq!(several["content"].as_array().map(Vec::len), Some(2));
}

#[test]
fn tool_blocks_are_validated() {
    let read = |block: Value| {
        let answer = json!({"role": "assistant", "model": "m", "content": block});
        serde_json::from_value::<SamplingAnswer>(answer)
    };
    assert_eq!(read(city("a", "Paris")).unwrap().tool_uses().count(), 1);
    for bad in [
        json!({"type": "tool_use", "id": "a", "name": "x"}),
        json!({"type": "tool_use", "id": 1, "name": "x", "input": {}}),
        json!({"type": "tool_use", "id": "a", "name": "x", "input": []}),
        json!({"type": "tool_result", "content": []}),
        json!({"type": "tool_result", "toolUseId": "a", "content": "x"}),
    ] {
        assert!(read(bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn tool_results_must_match_the_tool_uses() {
    let [paris, london] = uses().try_into().unwrap();
    let used = || request().answer(&two_tool_uses());
    let both = || [paris.result("x"), london.result("y")];
    let mut swapped = both();
    swapped.reverse();
    let text = || SamplingBlock::from("and");
    let result = || SamplingBlock::ToolResult(paris.result("x"));
    for good in [
        request(),
        used().results(both()),
        used().results(swapped),
        used().results(both()).assistant("Paris.").user("Thanks."),
        used()
            .results(both())
            .answer(&two_tool_uses())
            .results(both()),
        // Text next to a tool use.
        request()
            .blocks(
                Role::Assistant,
                vec![text(), SamplingBlock::ToolUse(paris.clone())],
            )
            .results([paris.result("x")]),
    ] {
        assert_eq!(good.check(), Ok(()));
    }
    for (bad, word) in [
        (used(), "no result"),
        (used().results([paris.result("x")]), "messages[2]"),
        (
            used().results([paris.result("x"), paris.result("x")]),
            "messages[2]",
        ),
        (used().user("never mind"), "messages[2]"),
        (used().assistant("well"), "messages[2]"),
        (
            used().blocks(Role::User, vec![result(), text()]),
            "only content",
        ),
        (
            used().blocks(Role::Assistant, vec![result()]),
            "user message",
        ),
        (request().results([paris.result("x")]), "messages[1]"),
        (used().results(both()).results(both()), "messages[3]"),
        (
            request().message(Role::User, SamplingBlock::ToolUse(paris.clone())),
            "only in assistant",
        ),
        (
            request().message(Role::User, Content::link("file:///a", "a")),
            "resources are not supported",
        ),
    ] {
        let reason = bad.check().unwrap_err().to_string();
        assert!(reason.contains(word), "{word:?} is not in {reason:?}");
    }
}

#[test]
fn required_capability_depends_on_the_request() {
    let [paris, _] = uses().try_into().unwrap();
    let plain = || SamplingParams::new(1).user("x");
    assert_eq!(plain().capability(), Capability::Sampling);
    for with_tools in [
        plain().tool(weather()),
        plain().tool_choice(ToolChoice::None),
        plain().answer(&two_tool_uses()),
        plain().results([paris.result("x")]),
    ] {
        assert_eq!(with_tools.capability(), Capability::SamplingTools);
    }
    let mut params = plain();
    params.include_context = Some(IncludeContext::ThisServer);
    let mut without = params.clone();
    without.drop_undeclared(Capabilities::default());
    assert_eq!(without, plain());
    let mut with = params.clone();
    with.drop_undeclared(Capabilities {
        sampling_context: true,
        ..Capabilities::default()
    });
    assert_eq!(with, params);
}
