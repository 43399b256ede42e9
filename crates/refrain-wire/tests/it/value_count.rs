//! The limit on the number of JSON values.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use refrain_wire::{TooManyValues, check_values};
use serde_json::Value;

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a\"\\\\\n{\\[,: é]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            btree_map("[a-z\"\\\\{,]{0,4}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The number of values and keys of a parsed value.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(members) => {
            1 + members
                .values()
                .map(|value| 1 + count(value))
                .sum::<usize>()
        }
        _ => 1,
    }
}

proptest! {
    #[test]
    fn count_equals_that_of_the_parsed_value(value in values(), pretty: bool) {
        let json = match pretty {
            true => serde_json::to_vec_pretty(&value).unwrap(),
            false => serde_json::to_vec(&value).unwrap(),
        };
        let count = count(&value);
        prop_assert_eq!(check_values(&json, count), Ok(()));
        let limit = count - 1;
        let error = TooManyValues { limit };
        prop_assert_eq!(check_values(&json, limit), Err(error));
        prop_assert!(error.to_string().contains(&limit.to_string()));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(json: Vec<u8>, limit in 0_usize..8) {
        let _ = check_values(&json, limit);
    }
}

/// The shortest text that exceeds each limit. A shorter text is accepted unread.
#[test]
fn shortest_text_over_the_limit_is_rejected() {
    for limit in 2..50 {
        let array = format!("[{}]", vec!["0"; limit].join(","));
        assert!(check_values(array.as_bytes(), limit).is_err(), "{array}");
        assert!(check_values(array.as_bytes(), limit + 1).is_ok(), "{array}");
    }
}

#[test]
fn values_before_an_error_are_counted() {
    for json in [
        r#"[0,1,2,3,"#,
        r#"[0,1,2,"unterminated"#,
        r#"[0,1,2,"unterminated \"#,
    ] {
        assert!(check_values(json.as_bytes(), 4).is_err(), "{json}");
        assert!(check_values(json.as_bytes(), 5).is_ok(), "{json}");
    }
}
