//! Answers: decoding, and the check of their shape.

use refrain_wire::{
    Action, Ask, AskKind, Capability, ElicitAnswer, RootsAnswer, SamplingAnswer, SamplingBlock,
    check_answer_shape,
};
use serde_json::value::RawValue;

fn check(kind: AskKind, text: &str) -> Result<(), String> {
    check_answer_shape(kind, &RawValue::from_string(text.to_owned()).unwrap())
        .map_err(|error| error.to_string())
}

#[test]
fn valid_answers_are_accepted() {
    let cases = [
        (
            AskKind::Form,
            r#"{"action":"accept","content":{"name":"octocat"}}"#,
        ),
        (
            AskKind::Form,
            r#"{"action":"decline","content":null,"later":1}"#,
        ),
        (AskKind::Url, r#"{"action":"accept"}"#),
        (AskKind::Url, r#"{"action":"cancel"}"#),
        (
            AskKind::Sampling,
            r#"{"role":"assistant","content":{"type":"text","text":"Paris"},"model":"m","stopReason":"endTurn"}"#,
        ),
        (
            AskKind::Sampling,
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"n","input":{}}],"model":"m"}"#,
        ),
        (
            AskKind::Roots,
            r#"{"roots":[{"uri":"file:///a","name":"A"},{"uri":"file:///b","_meta":{}}]}"#,
        ),
        (AskKind::Roots, r#"{"roots":[]}"#),
    ];
    for (kind, text) in cases {
        assert_eq!(check(kind, text), Ok(()), "{text}");
    }
}

#[test]
fn invalid_answers_are_rejected_with_a_reason() {
    let cases = [
        (AskKind::Form, "12345", "must be an object"),
        (AskKind::Form, r#"["accept"]"#, "must be an object"),
        (AskKind::Form, "{}", "missing field `action`"),
        (
            AskKind::Form,
            r#"{"action":"maybe"}"#,
            "unknown value `maybe`",
        ),
        (
            AskKind::Form,
            r#"{"action":"accept","action":"cancel"}"#,
            "duplicate field `action`",
        ),
        (
            AskKind::Url,
            r#"{"action":"accept","content":"x"}"#,
            "content must be an object",
        ),
        (AskKind::Sampling, r#"{"action":"accept"}"#, "missing field"),
        (
            AskKind::Sampling,
            r#"{"role":"assistant","content":{"type":"text"},"model":"m"}"#,
            "missing field `text`",
        ),
        (
            AskKind::Sampling,
            r#"{"role":"assistant","content":["x"],"model":"m"}"#,
            "block must be an object",
        ),
        (
            AskKind::Sampling,
            r#"{"role":"assistant","content":{},"model":"m"}"#,
            "must have a type",
        ),
        (
            AskKind::Sampling,
            r#"{"role":"robot","content":[],"model":"m"}"#,
            "unknown value `robot`",
        ),
        (
            AskKind::Roots,
            r#"{"action":"accept"}"#,
            "missing field `roots`",
        ),
        (
            AskKind::Roots,
            r#"{"roots":[{"uri":"a:b"},["a:b",null]]}"#,
            "roots[1]: expected an object",
        ),
        (
            AskKind::Roots,
            r#"{"roots":[{"name":"x"}]}"#,
            "roots[0]: missing field `uri`",
        ),
    ];
    for (kind, text, says) in cases {
        let why = check(kind, text).expect_err(text);
        assert!(why.contains(says), "{text}: {why}");
        assert!(why.contains(kind.as_str()), "{why}");
        assert!(!why.contains(" at line "), "{why}");
    }
}

#[test]
fn too_deeply_nested_answer_is_rejected() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let form = |inner: &str| format!(r#"{{"action":"accept","more":{inner}}}"#);
    let roots = |inner: &str| format!(r#"{{"roots":[],"more":{inner}}}"#);
    let sampling = |inner: &str| {
        format!(r#"{{"role":"assistant","model":"m","content":[{{"type":"x","y":{inner}}}]}}"#)
    };
    for (kind, around, text) in [
        (AskKind::Form, 1, &form as &dyn Fn(&str) -> String),
        (AskKind::Url, 1, &form),
        (AskKind::Roots, 1, &roots),
        (AskKind::Sampling, 3, &sampling),
    ] {
        assert_eq!(check(kind, &text(&nested(127 - around))), Ok(()));
        for depth in [128 - around, 500, 100_000] {
            let why = check(kind, &text(&nested(depth))).unwrap_err();
            assert!(why.contains("deeper than 127"), "{why}");
            assert!(why.contains(kind.as_str()), "{why}");
        }
        // Brackets in strings do not count, even after an escaped quote.
        for string in [r#""\\""#, r#""\"""#, r#""\\\"""#] {
            let open = "[{".repeat(300);
            let text = text(&string.replacen('"', &format!("\"{open}"), 1));
            assert_eq!(check(kind, &text), Ok(()), "{text}");
        }
    }
}

#[test]
fn sampling_answer_joins_text_and_keeps_unknown_blocks() {
    let text = r#"{"role":"assistant","model":"m","content":[{"type":"text","text":"Pa"},{"type":"hologram","x":1},{"type":"text","text":"ris"}]}"#;
    let answer: SamplingAnswer = serde_json::from_str(text).unwrap();
    assert_eq!(answer.text(), "Paris");
    assert!(matches!(&answer.content[1], SamplingBlock::Other(value) if value["x"] == 1));
    assert_eq!(
        serde_json::to_value(&answer).unwrap()["content"][1]["type"],
        "hologram"
    );

    let one: SamplingAnswer = serde_json::from_str(
        r#"{"role":"assistant","model":"m","content":{"type":"text","text":"x"}}"#,
    )
    .unwrap();
    assert_eq!((one.text().as_str(), one.stop_reason), ("x", None));
}

#[test]
fn form_and_roots_answers_are_decoded() {
    let answer: ElicitAnswer<'_> =
        serde_json::from_str(r#"{"action":"accept","content":{"name":"octocat"}}"#).unwrap();
    assert_eq!(answer.action, Action::Accept);
    assert_eq!(answer.content.unwrap().get(), r#"{"name":"octocat"}"#);
    let roots: RootsAnswer =
        serde_json::from_str(r#"{"roots":[{"uri":"file:///a","name":"My Project"}]}"#).unwrap();
    assert_eq!(roots.roots[0].name.as_deref(), Some("My Project"));
}

#[test]
fn ask_has_kind_and_required_capability() {
    assert_eq!(Ask::Roots.kind(), AskKind::Roots);
    assert_eq!(Ask::Roots.capability(), Capability::Roots);
}
