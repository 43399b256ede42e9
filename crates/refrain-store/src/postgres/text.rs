//! Text as Postgres takes it: without the character NUL.
//!
//! NUL becomes two characters, SUBSTITUTE (U+001A) and `0`; SUBSTITUTE itself becomes SUBSTITUTE and `1`. Both are rare,
//! so nearly all text is in the tables as it is.

use crate::store::StoreError;
use std::borrow::Cow;

/// Bytes of the longest text that has to fit into an index.
const LONGEST: usize = 2000;

/// What a table has for this text.
pub(super) fn written(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\u{1a}']) {
        return Cow::Borrowed(text);
    }
    let text = text.replace('\u{1a}', "\u{1a}1");
    Cow::Owned(text.replace('\0', "\u{1a}0"))
}

/// The text that a table has so.
pub(super) fn read(text: String) -> String {
    match text.contains('\u{1a}') {
        true => text.replace("\u{1a}0", "\0").replace("\u{1a}1", "\u{1a}"),
        false => text,
    }
}

/// What a table has for this text, in a column with an index.
pub(super) fn indexed<'a>(what: &'static str, text: &'a str) -> Result<Cow<'a, str>, StoreError> {
    let text = written(text);
    match text.len() {
        0..=LONGEST => Ok(text),
        bytes => Err(StoreError::TooLong {
            what,
            bytes,
            limit: LONGEST,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{read, written};

    #[test]
    fn any_text_comes_back() {
        let pieces = ["", "0", "1", "\0", "\u{1a}", "x"];
        for one in pieces {
            for two in pieces {
                for three in pieces {
                    let text = format!("{one}{two}{three}");
                    let stored = written(&text).into_owned();
                    assert!(!stored.contains('\0'));
                    assert_eq!(read(stored), text);
                }
            }
        }
    }
}
