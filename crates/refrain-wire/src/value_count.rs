//! Limits the number of values in JSON text before it is parsed.
//!
//! A parsed value takes up to 300 bytes of memory, even if its text is a single byte. A limit on the size of a message
//! therefore does not limit the memory that its values need.

/// JSON text has more values than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {limit} JSON values, object keys included")]
pub struct TooManyValues {
    /// The maximum number of values.
    pub limit: usize,
}

/// Checks that JSON text has at most `limit` values. Objects, arrays and object keys count as one value each.
///
/// Nothing is allocated, and text too short to exceed the limit is not read. Malformed text is counted too, with at least
/// the values that a parser reads before it finds the error.
///
/// ```
/// use refrain_wire::check_values;
///
/// let json = br#"{"items":[1,"two",[]]}"#;
/// assert!(check_values(json, 6).is_ok());
/// let error = check_values(json, 5).unwrap_err();
/// assert_eq!(error.limit, 5);
/// ```
pub fn check_values(json: &[u8], limit: usize) -> Result<(), TooManyValues> {
    // Each value needs one byte, and one more that separates it from the next.
    if json.len() / 2 < limit || has_at_most(json, limit) {
        Ok(())
    } else {
        Err(TooManyValues { limit })
    }
}

fn has_at_most(json: &[u8], limit: usize) -> bool {
    let mut count = 0;
    let mut at = 0;
    // Whether the last byte is part of a number, `true`, `false` or `null`.
    let mut in_literal = false;
    while let Some(byte) = json.get(at) {
        at += 1;
        let starts_value = match byte {
            b'"' => {
                at = end_of_string(json, at);
                in_literal = false;
                true
            }
            b'{' | b'[' => {
                in_literal = false;
                true
            }
            b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => {
                in_literal = false;
                false
            }
            _ => !std::mem::replace(&mut in_literal, true),
        };
        if starts_value {
            count += 1;
            if count > limit {
                return false;
            }
        }
    }
    true
}

/// The position after the closing quote of the string whose content starts at `at`.
fn end_of_string(json: &[u8], mut at: usize) -> usize {
    while let Some(found) = memchr::memchr2(b'"', b'\\', json.get(at..).unwrap_or_default()) {
        at += found + 1;
        if json[at - 1] == b'"' {
            return at;
        }
        at += 1;
    }
    json.len()
}
