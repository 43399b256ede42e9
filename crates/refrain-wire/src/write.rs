//! Small pieces that put JSON into a byte buffer.

use serde::Serialize;

/// Integers up to this size are exact in a double.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Appends a value as JSON, or `null` for one that JSON cannot hold.
///
/// Writing to memory does not fail, and neither do the types of this crate; a foreign `Serialize`
/// may (a map whose keys are not strings), and then nothing half-written is left behind.
pub(crate) fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// Appends a string. One without anything to escape, as tokens and most messages are, is copied as it stands.
pub(crate) fn text(out: &mut Vec<u8>, value: &str) {
    if is_odd(value.as_bytes()) {
        return json(out, value);
    }
    out.reserve(value.len() + 2);
    out.push(b'"');
    out.extend_from_slice(value.as_bytes());
    out.push(b'"');
}

/// Is there anything to escape?
fn is_odd(value: &[u8]) -> bool {
    // Looks at every byte rather than stopping at the first odd one: that can be done sixteen at a time.
    let odd = |byte: u8| u8::from(byte < 0x20) | u8::from(byte == b'"') | u8::from(byte == b'\\');
    let odd_of = |sixteen: &[u8; 16]| {
        let mut any = 0;
        for byte in sixteen {
            any |= odd(*byte);
        }
        any
    };
    let (sixteens, rest) = value.as_chunks::<16>();
    let mut any = 0;
    for sixteen in sixteens {
        any |= odd_of(sixteen);
    }
    any |= match value.last_chunk::<16>() {
        // What is left, together with some that were looked at.
        Some(last) => odd_of(last),
        None => rest.iter().fold(0, |any, byte| any | odd(*byte)),
    };
    any != 0
}

/// Appends a number, whole ones without a fraction; what is not finite becomes 0.
pub(crate) fn number(out: &mut Vec<u8>, value: f64) {
    if !value.is_finite() {
        out.push(b'0');
    } else if let Some(whole) = as_whole(value) {
        json(out, &whole);
    } else {
        json(out, &value);
    }
}

/// The integer a double stands for, if it stands for exactly one.
pub(crate) fn as_whole(value: f64) -> Option<i64> {
    // The bound makes the conversion exact.
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

/// JSON text without line breaks: a message must be one line, and raw values come as they were written.
pub(crate) fn one_line(json: String) -> String {
    let breaks = |byte: u8| byte == b'\n' || byte == b'\r';
    if json.bytes().fold(false, |any, byte| any | breaks(byte)) {
        // A string cannot hold them, so they are white space.
        return json.replace(['\n', '\r'], " ");
    }
    json
}
