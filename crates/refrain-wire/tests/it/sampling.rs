//! Conversations with a model: how they are written and read, and which make sense.

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

/// A model that wants two tools used.
fn wants_two() -> SamplingAnswer {
    let content = json!([city("a", "Paris"), city("b", "London")]);
    let answer =
        json!({"role": "assistant", "model": "m", "stopReason": "toolUse", "content": content});
    serde_json::from_value(answer).unwrap()
}

fn uses() -> Vec<ToolUse> {
    wants_two().tool_uses().cloned().collect()
}

fn asked() -> SamplingParams {
    SamplingParams::new(9)
        .user("Paris or London?")
        .tool(weather())
}

#[test]
fn conversation_with_tools_is_serialized() {
    let answer = wants_two();
    let [paris, london] = uses().try_into().unwrap();
    assert_eq!(
        (paris.name.as_str(), &paris.input["city"]),
        ("get_weather", &json!("Paris"))
    );
    let params = asked()
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
    // One result is a message by itself.
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

/// The SDKs take an answer of one block in a list for one that uses tools, or for none at all.
#[test]
fn single_block_is_not_written_as_an_array() {
    let one =
        json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}});
    let answer: SamplingAnswer = serde_json::from_value(one.clone()).unwrap();
    assert_eq!(serde_json::to_value(&answer).unwrap(), one);
    let several = serde_json::to_value(wants_two()).unwrap();
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
    let used = || asked().answer(&wants_two());
    let both = || [paris.result("x"), london.result("y")];
    let mut swapped = both();
    swapped.reverse();
    let text = || SamplingBlock::from("and");
    let result = || SamplingBlock::ToolResult(paris.result("x"));
    for good in [
        asked(),
        used().results(both()),
        used().results(swapped),
        used().results(both()).assistant("Paris.").user("Thanks."),
        used().results(both()).answer(&wants_two()).results(both()),
        // The assistant may talk while it works.
        asked()
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
            "nothing else",
        ),
        (
            used().blocks(Role::Assistant, vec![result()]),
            "of the user",
        ),
        (asked().results([paris.result("x")]), "messages[1]"),
        (used().results(both()).results(both()), "messages[3]"),
        (
            asked().message(Role::User, SamplingBlock::ToolUse(paris.clone())),
            "only the assistant",
        ),
        (
            asked().message(Role::User, Content::link("file:///a", "a")),
            "no resources",
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
        plain().answer(&wants_two()),
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
