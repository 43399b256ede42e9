//! Appends JSON to a byte buffer.

use serde::Serialize;

/// Integers up to this size are exact in a double.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Appends a value as JSON, or `null` if a foreign `Serialize` fails (such as a map whose keys are not strings).
pub(crate) fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// Appends a string. Most strings need no escapes and are copied.
pub(crate) fn text(out: &mut Vec<u8>, value: &str) {
    if needs_escape(value.as_bytes()) {
        return json(out, value);
    }
    out.reserve(value.len() + 2);
    out.push(b'"');
    out.extend_from_slice(value.as_bytes());
    out.push(b'"');
}

/// Whether the string has characters to escape.
fn needs_escape(value: &[u8]) -> bool {
    // Checks all bytes without an early exit, so that the compiler can vectorize the loop.
    let is_special =
        |byte: u8| u8::from(byte < 0x20) | u8::from(byte == b'"') | u8::from(byte == b'\\');
    let any_special = |chunk: &[u8; 16]| {
        let mut any = 0;
        for byte in chunk {
            any |= is_special(*byte);
        }
        any
    };
    let (chunks, rest) = value.as_chunks::<16>();
    let mut any = 0;
    for chunk in chunks {
        any |= any_special(chunk);
    }
    any |= match value.last_chunk::<16>() {
        // The rest, overlapping with bytes that were already checked.
        Some(last) => any_special(last),
        None => rest.iter().fold(0, |any, byte| any | is_special(*byte)),
    };
    any != 0
}

/// Appends a number: whole numbers without a fraction, and 0 for a number that is not finite.
pub(crate) fn number(out: &mut Vec<u8>, value: f64) {
    if !value.is_finite() {
        out.push(b'0');
    } else if let Some(whole) = as_whole(value) {
        json(out, &whole);
    } else {
        json(out, &value);
    }
}

/// The integer with exactly this value, if any.
pub(crate) fn as_whole(value: f64) -> Option<i64> {
    // The bound makes the conversion exact.
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

/// Removes line breaks from JSON: a message must be one line, and raw values may contain breaks.
pub(crate) fn one_line(json: String) -> String {
    let breaks = |byte: u8| byte == b'\n' || byte == b'\r';
    if json.bytes().fold(false, |any, byte| any | breaks(byte)) {
        // JSON strings cannot contain them, so they are white space.
        return json.replace(['\n', '\r'], " ");
    }
    json
}
