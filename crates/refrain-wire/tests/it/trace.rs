//! Trace contexts: valid ones are decoded, invalid ones are ignored.

use std::borrow::Cow;

use refrain_wire::ratified::decode_meta;
use refrain_wire::{SpanId, TraceId, Traceparent};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn params(trace: serde_json::Value) -> Box<RawValue> {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let serde_json::Value::Object(trace) = trace else {
        panic!("an object")
    };
    meta.as_object_mut().unwrap().extend(trace);
    to_raw_value(&json!({"_meta": meta})).unwrap()
}

#[test]
fn traceparent_survives_the_round_trip() {
    let parent = Traceparent::parse(PARENT).unwrap();
    assert_eq!(
        parent.trace_id,
        TraceId(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes())
    );
    assert_eq!(
        parent.span_id,
        SpanId(0xb7ad_6b71_6920_3331_u64.to_be_bytes())
    );
    assert_eq!(parent.flags, 1);
    assert_eq!(parent.to_string(), PARENT);
    assert_eq!(format!("{parent:?}"), format!("Traceparent({PARENT})"));

    let others = [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", 0),
        // Unknown flags are removed.
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", 3),
        ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", 1),
        (
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later",
            1,
        ),
    ];
    for (text, flags) in others {
        let read = Traceparent::parse(text).expect(text);
        assert_eq!(read, Traceparent { flags, ..parent }, "{text}");
    }
}

/// Malformed traceparents.
const MALFORMED: [&str; 17] = [
    "",
    "00",
    "----",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 ",
    " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "00-00000000000000000000000000000000-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
    "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319é-b7ad6b716920333-01",
];

#[test]
fn malformed_trace_context_is_ignored() {
    let non_strings = [json!(null), json!(7), json!({"a": [1]}), json!([PARENT])];
    for text in MALFORMED {
        assert_eq!(Traceparent::parse(text), None, "{text}");
    }
    for value in MALFORMED.map(|text| json!(text)).iter().chain(&non_strings) {
        let params = params(json!({"traceparent": value, "tracestate": "a=1", "baggage": "b=2"}));
        let trace = decode_meta(Some(&params)).unwrap().trace.unwrap();
        assert_eq!(trace.parent, None, "{value}");
        // Without a parent, `tracestate` is dropped but `baggage` is kept.
        assert_eq!(trace.state, None, "{value}");
        assert_eq!(trace.baggage.as_deref(), Some("b=2"), "{value}");
        assert_eq!(trace.ignored, Some("traceparent"), "{value}");
    }
    let texts = [json!("a=é"), json!("a=\n1"), json!("a=\u{7f}")];
    for value in texts.iter().chain(&non_strings) {
        let params = params(json!({"traceparent": PARENT, "tracestate": value}));
        let trace = decode_meta(Some(&params)).unwrap().trace.unwrap();
        assert!(trace.parent.is_some());
        assert_eq!((trace.state, trace.ignored), (None, Some("tracestate")));
        let params = self::params(json!({"traceparent": PARENT, "baggage": value}));
        let trace = decode_meta(Some(&params)).unwrap().trace.unwrap();
        assert!(trace.parent.is_some());
        assert_eq!((trace.baggage, trace.ignored), (None, Some("baggage")));
    }
}

#[test]
fn oversized_trace_context_is_ignored() {
    for (key, most) in [("tracestate", 512), ("baggage", 8192)] {
        for (length, read) in [(most, true), (most + 1, false)] {
            let params = params(json!({"traceparent": PARENT, key: "x".repeat(length)}));
            let trace = decode_meta(Some(&params)).unwrap().trace.unwrap();
            let text = if key == "baggage" {
                trace.baggage
            } else {
                trace.state
            };
            assert_eq!(text.is_some(), read, "{key} of {length}");
            assert_eq!(trace.ignored, (!read).then_some(key));
            // Borrowed, not copied.
            assert!(text.is_none_or(|text| matches!(text, Cow::Borrowed(_))));
        }
    }
}

#[test]
fn trace_context_is_optional() {
    let params = params(json!({}));
    let trace = decode_meta(Some(&params)).unwrap().trace;
    assert_eq!(trace, None);
}
