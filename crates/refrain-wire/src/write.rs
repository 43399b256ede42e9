//! Appends JSON to a byte buffer.

use serde::Serialize;
use serde_json::Number;

/// The largest integer that every JSON reader represents exactly.
pub(crate) const MAX_INTEGER: u64 = (1 << 53) - 1;
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
    out.reserve(value.len() + 2);
    out.push(b'"');
    match needs_escape(value.as_bytes()) {
        true => write_escaped(out, value.as_bytes()),
        false => out.extend_from_slice(value.as_bytes()),
    }
    out.push(b'"');
}

/// The size of a string with its quotes, if each escape has two characters.
pub(crate) fn text_size(value: &str) -> usize {
    2 + value.len() + value.bytes().filter(is_special).count()
}

/// Appends the content of a string with escapes.
fn write_escaped(out: &mut Vec<u8>, mut value: &[u8]) {
    loop {
        let (plain, rest) = value.split_at(find_special(value));
        out.extend_from_slice(plain);
        let Some((special, rest)) = rest.split_first() else {
            return;
        };
        let letter = match special {
            b'"' | b'\\' => *special,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0c => b'f',
            _ => b'u',
        };
        out.extend_from_slice(&[b'\\', letter]);
        if letter == b'u' {
            let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
            out.extend_from_slice(&[b'0', b'0', digit(special >> 4), digit(special & 0xf)]);
        }
        value = rest;
    }
}

/// Whether a byte of a string needs an escape.
fn is_special(byte: &u8) -> bool {
    *byte < 0x20 || matches!(byte, b'"' | b'\\')
}

/// The position of the first quote, backslash or control character, or the length.
pub(crate) fn find_special(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    // Sets the highest bit in the first byte below `limit`, and in no byte before it. Later bytes and lower bits are
    // meaningless.
    let below = |bytes: u64, limit: u8| bytes.wrapping_sub(ONES * u64::from(limit)) & !bytes;
    let equal = |bytes: u64, byte: u8| below(bytes ^ (ONES * u64::from(byte)), 1);
    let (chunks, rest) = text.as_chunks::<8>();
    for (number, chunk) in chunks.iter().enumerate() {
        let bytes = u64::from_le_bytes(*chunk);
        let special = below(bytes, 0x20) | equal(bytes, b'"') | equal(bytes, b'\\');
        let special = special & (ONES << 7);
        if special != 0 {
            return 8 * number + special.trailing_zeros() as usize / 8;
        }
    }
    let in_rest = rest.iter().position(is_special);
    text.len() - rest.len() + in_rest.unwrap_or(rest.len())
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
fn as_whole(value: f64) -> Option<i64> {
    // The bound makes the conversion exact.
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

/// The integer with exactly the value of this float. `None` for a number that is already an integer.
pub(crate) fn float_as_whole(number: &Number) -> Option<i64> {
    let float = number.as_f64().filter(|_| number.is_f64());
    float.and_then(as_whole)
}

/// Removes line breaks from JSON: a message must be one line, and raw values may contain breaks.
pub(crate) fn one_line(json: String) -> String {
    let is_break = |byte: u8| byte == b'\n' || byte == b'\r';
    if json.bytes().fold(false, |any, byte| any | is_break(byte)) {
        // JSON strings cannot contain line breaks, so these are white space.
        return json.replace(['\n', '\r'], " ");
    }
    json
}
