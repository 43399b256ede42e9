//! Property tests: expanding a random template and matching the result returns the same values.

use super::tests::{find_in, matched};
use super::*;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use serde_json::json;

/// Expands the value of one variable according to RFC 6570.
fn encode(value: &str, reserved: bool) -> String {
    let unencoded = match reserved {
        true => ":/?#[]@!$&'()*+,;=-._~",
        false => "-._~",
    };
    let encode = |byte: u8| match char::from(byte) {
        plain if plain.is_ascii_alphanumeric() || unencoded.contains(plain) => plain.to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(encode).collect()
}

fn expand(operator: &str, names: &[String], values: &[String]) -> String {
    let (first, separator) = match operator {
        "" | "+" => ("", ","),
        "#" => ("#", ","),
        "?" => ("?", "&"),
        sign => (sign, sign),
    };
    let has_names = matches!(operator, ";" | "?" | "&");
    let items: Vec<String> = names
        .iter()
        .zip(values)
        .map(|(name, value)| {
            let encoded = encode(value, matches!(operator, "+" | "#"));
            match (has_names, operator, value.is_empty()) {
                (false, ..) => encoded,
                (true, ";", true) => name.clone(),
                (true, ..) => format!("{name}={encoded}"),
            }
        })
        .collect();
    if items.is_empty() {
        return String::new();
    }
    format!("{first}{}", items.join(separator))
}

/// Random expressions: operator, whether it is one exploded list, values.
fn expressions() -> impl Strategy<Value = Vec<(&'static str, bool, Vec<String>)>> {
    // Values exclude characters that separate values, which would be ambiguous.
    let value = "[^.,/;?&#=+%-]{1,6}";
    let plain = prop_oneof![Just(""), Just("/"), Just("."), Just(";")];
    let middle = (plain, any::<bool>(), vec(value, 1..4));
    let reserved = (Just("+"), Just(false), vec("[^,?#%]{1,8}", 1..3));
    let query = (Just("?"), any::<bool>(), vec("\\PC{0,6}", 0..4));
    let fragment = (Just("#"), Just(false), vec("[^,%]{1,8}", 1..3));
    let ends = (of(reserved), of(query), of(fragment));
    (vec(middle, 0..4), ends).prop_map(|(mut all, (reserved, query, fragment))| {
        all.extend(reserved);
        all.extend(query);
        all.extend(fragment);
        all
    })
}

proptest! {
    #[test]
    fn expanded_template_matches_with_the_same_values(expressions in expressions()) {
        let (mut template, mut uri) = (String::from("x:"), String::from("x:"));
        let mut expected = Map::new();
        for (at, (operator, exploded, values)) in expressions.iter().enumerate() {
            let names: Vec<String> = (0..values.len().max(1)).map(|n| format!("v{at}_{n}")).collect();
            // A dash separates expressions, because no value contains it.
            template.push('-');
            uri.push('-');
            if *exploded {
                let name = &names[0];
                template.push_str(&format!("{{{operator}{name}*}}"));
                uri.push_str(&expand(operator, &vec![name.clone(); values.len()], values));
                expected.insert(name.clone(), json!(values));
            } else {
                template.push_str(&format!("{{{operator}{}}}", names.join(",")));
                uri.push_str(&expand(operator, &names, values));
                expected.extend(names.into_iter().zip(values.iter().map(|value| json!(value))));
            }
        }
        let found = matched(&template, &uri);
        prop_assert_eq!(found, Some(Value::Object(expected)), "{} {}", template, uri);
    }

    #[test]
    fn arbitrary_templates_and_uris_do_not_panic(template in "\\PC{0,12}|[a-z/{},.*:%?&;+#0-9]{0,24}", uri in "\\PC{0,24}|[a-z/,.%?&;+#0-9]{0,24}") {
        if let Ok(pattern) = Pattern::parse(&template) {
            let _ = find_in(&pattern, &uri);
        }
    }
}
