//! The parsed `_meta` of recent requests. A client sends the same text with every request.
//!
//! Each thread keeps a few texts. A caller that sends many different ones only makes others parse theirs again.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use crate::capabilities::Capabilities;
use crate::meta::Meta;

/// The number of texts that a thread keeps.
const MAX_TEXTS: usize = 8;
/// The maximum length of a kept text in bytes.
const MAX_LENGTH: usize = 1024;

struct KnownMeta {
    /// The whole object, as the client sent it.
    text: Box<str>,
    protocol_version: Range<usize>,
    client_info: Option<Range<usize>>,
    capabilities: Capabilities,
}

#[derive(Default)]
struct KnownTexts {
    texts: Vec<KnownMeta>,
    /// The index of the text to replace next.
    oldest: usize,
}

thread_local! {
    static KNOWN: RefCell<KnownTexts> = RefCell::default();
}

/// The `_meta` that this JSON text starts with and its length, if it is known.
pub(crate) fn find(text: &str) -> Option<(usize, Meta<'_>)> {
    KNOWN.with_borrow(|known| {
        let mut texts = known.texts.iter();
        // An object ends with its closing brace, so an equal start is an equal object.
        let known = texts.find(|known| text.starts_with(&*known.text))?;
        let meta = Meta {
            protocol_version: Cow::Borrowed(&text[known.protocol_version.clone()]),
            client_info: known.client_info.clone().map(|range| &text[range]),
            capabilities: known.capabilities,
            extensions: None,
            log_level: None,
            progress_token: None,
            call_id: None,
            task_ttl: None,
            trace: None,
            custom: None,
        };
        Some((known.text.len(), meta))
    })
}

/// Keeps a `_meta` that was parsed from this text, if it only describes the client.
pub(crate) fn remember(text: &str, meta: &Meta<'_>) {
    let Meta {
        protocol_version: Cow::Borrowed(version),
        client_info,
        capabilities,
        extensions: None,
        log_level: None,
        progress_token: None,
        call_id: None,
        task_ttl: None,
        trace: None,
        custom: None,
    } = meta
    else {
        return;
    };
    if text.len() > MAX_LENGTH {
        return;
    }
    let range = |part: &str| {
        let start = part.as_ptr().addr() - text.as_ptr().addr();
        start..start + part.len()
    };
    let new = KnownMeta {
        text: text.into(),
        protocol_version: range(version),
        client_info: client_info.map(range),
        capabilities: *capabilities,
    };
    KNOWN.with_borrow_mut(|known| match known.texts.get_mut(known.oldest) {
        Some(oldest) => {
            *oldest = new;
            known.oldest = (known.oldest + 1) % MAX_TEXTS;
        }
        None => {
            known.texts.push(new);
            known.oldest = known.texts.len() % MAX_TEXTS;
        }
    });
}
