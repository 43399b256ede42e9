//! Encoding of text for Postgres, which does not store the character NUL.
//!
//! NUL is stored as SUBSTITUTE (U+001A) and `0`, SUBSTITUTE as SUBSTITUTE and `1`. Both are rare, so nearly all text is
//! stored unchanged.

use crate::store::StoreError;
use std::borrow::Cow;

/// The maximum length of an indexed text, in bytes.
const MAX_INDEXED: usize = 2000;

pub(super) fn encode(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\u{1a}']) {
        return Cow::Borrowed(text);
    }
    let text = text.replace('\u{1a}', "\u{1a}1");
    Cow::Owned(text.replace('\0', "\u{1a}0"))
}

pub(super) fn decode(text: String) -> String {
    match text.contains('\u{1a}') {
        true => text.replace("\u{1a}0", "\0").replace("\u{1a}1", "\u{1a}"),
        false => text,
    }
}

/// Encodes text for an indexed column.
pub(super) fn encode_indexed<'a>(
    what: &'static str,
    text: &'a str,
) -> Result<Cow<'a, str>, StoreError> {
    let text = encode(text);
    match text.len() {
        0..=MAX_INDEXED => Ok(text),
        bytes => Err(StoreError::TooLong {
            what,
            bytes,
            limit: MAX_INDEXED,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn encoded_text_is_decoded_unchanged() {
        let pieces = ["", "0", "1", "\0", "\u{1a}", "x"];
        for one in pieces {
            for two in pieces {
                for three in pieces {
                    let text = format!("{one}{two}{three}");
                    let stored = encode(&text).into_owned();
                    assert!(!stored.contains('\0'));
                    assert_eq!(decode(stored), text);
                }
            }
        }
    }
}
