//! Duplicate keys, nesting limits and canonical text.

use refrain_wire::{parse_value, write_canonical};
use serde_json::json;

fn canonical(text: &str) -> String {
    let mut out = Vec::new();
    write_canonical(&parse_value(text).unwrap(), &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn parsed_values_equal_those_of_serde_json() {
    let text =
        r#" {"a":[1,-2,3.5,true,false,null,"x\n\u00e9",{"b":{}}],"c":18446744073709551615} "#;
    assert_eq!(
        parse_value(text).unwrap(),
        serde_json::from_str::<serde_json::Value>(text).unwrap()
    );
}

#[test]
fn duplicate_key_is_rejected_at_any_depth() {
    for text in [
        r#"{"kk":1,"kk":1}"#,
        r#"[{"x":{"kk":1,"y":2,"k\u006b":1}}]"#,
    ] {
        assert!(
            parse_value(text)
                .unwrap_err()
                .to_string()
                .contains(r#"duplicate key "kk""#),
            "{text}"
        );
    }
    assert_eq!(
        parse_value(r#"{"a":{"a":1}}"#).unwrap(),
        json!({"a": {"a": 1}})
    );
}

#[test]
fn malformed_value_is_rejected() {
    for text in ["", "{", "1 2", "[1,]", r#""\ud800""#, "1e999", "NaN"] {
        assert!(parse_value(text).is_err(), "{text}");
    }
}

#[test]
fn nesting_is_limited() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse_value(&nested(127)).is_ok());
    assert!(
        parse_value(&nested(129))
            .unwrap_err()
            .to_string()
            .contains("recursion limit")
    );
    assert!(parse_value(&"{\"a\":".repeat(100_000)).is_err());
}

#[test]
fn equal_values_have_the_same_canonical_text() {
    let cases = [
        (
            r#"{ "b" : 1, "a" : { "d" : [ 2, {"z":1,"y":2} ], "c" : "x" } }"#,
            r#"{"a":{"c":"x","d":[2,{"y":2,"z":1}]},"b":1}"#,
        ),
        (r#"{"é":1,"z":2,"Z":3,"":4}"#, r#"{"":4,"Z":3,"z":2,"é":1}"#),
        (
            "[1.0,1e2,-0.0,0.5,-3.0,9007199254740992.0]",
            "[1,100,0,0.5,-3,9007199254740992]",
        ),
        (
            "[1e300,9007199254740993,18446744073709551615]",
            "[1e+300,9007199254740993,18446744073709551615]",
        ),
        (
            "[7.8644438544252860e-10,53820873955613515e-30]",
            "[7.864443854425286e-10,5.3820873955613515e-14]",
        ),
        (r#"["\u0041\/\n",null,true]"#, r#"["A/\n",null,true]"#),
    ];
    for (text, expected) in cases {
        assert_eq!(canonical(text), expected);
        assert_eq!(
            canonical(expected),
            expected,
            "the canonical form of a canonical text is the same text"
        );
    }
}

#[test]
fn text_that_closes_too_many_levels_is_rejected() {
    for start in ["]", "}", "[]]", "]]]]"] {
        let text = format!("{start}{}", " ".repeat(300));
        assert!(parse_value(&text).is_err(), "{start}");
        // Brackets after the error do not overflow the stack either.
        let text = format!("{start}{}", "[".repeat(100_000));
        assert!(parse_value(&text).is_err(), "{start}");
    }
}
