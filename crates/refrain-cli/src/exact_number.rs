//! Detects integers that would lose digits when sent as JSON.

/// A number that does not fit into 64 bits.
#[derive(Debug, thiserror::Error)]
#[error("the number {0} does not fit into 64 bits; write it as a string if the field allows it")]
pub(crate) struct InexactNumber(String);

/// Rejects JSON with an integer that does not fit into 64 bits.
pub(crate) fn check_exact(json: &str) -> Result<(), InexactNumber> {
    match too_large(json) {
        None => Ok(()),
        Some(number) => Err(InexactNumber(number.to_owned())),
    }
}

/// The first integer in a JSON text that does not fit into 64 bits.
fn too_large(json: &str) -> Option<&str> {
    let mut rest = json;
    while let Some(at) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        rest = &rest[at..];
        if rest.starts_with('"') {
            rest = after_string(rest);
            continue;
        }
        let is_number_part = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
        let end = rest.find(|c| !is_number_part(c)).unwrap_or(rest.len());
        let number = &rest[..end];
        let is_whole = !number.contains(['.', 'e', 'E']);
        if is_whole && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
            return Some(number);
        }
        rest = &rest[end..];
    }
    None
}

fn after_string(text: &str) -> &str {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_over_64_bits_are_detected() {
        let large = "123456789012345678901234567890";
        for json in [
            "18446744073709551615",
            "-9223372036854775808",
            r#"{"a\"1": "123456789012345678901234567890", "b": [1, -2.5e300]}"#,
            "1e30",
            "",
        ] {
            assert_eq!(too_large(json), None, "{json}");
        }
        assert_eq!(too_large(large), Some(large));
        let inside = format!(r#"{{"a": "\\", "b": [1, {large}]}}"#);
        assert_eq!(too_large(&inside), Some(large));
        assert_eq!(
            too_large("-9223372036854775809"),
            Some("-9223372036854775809")
        );
    }
}
