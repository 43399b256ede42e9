//! A cache of parsed `_meta` texts, because a client sends the same text with every request.
//!
//! Each thread keeps a few texts. A caller with many different texts can only evict those of others.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use crate::capabilities::Capabilities;
use crate::meta::Meta;

/// The number of texts that a thread keeps.
const MAX_TEXTS: usize = 8;
/// The maximum length of a cached text in bytes.
const MAX_LENGTH: usize = 1024;

struct CachedMeta {
    /// The whole object, as the client sent it.
    text: Box<str>,
    protocol_version: Range<usize>,
    client_info: Option<Range<usize>>,
    capabilities: Capabilities,
}

#[derive(Default)]
struct MetaCache {
    texts: Vec<CachedMeta>,
    /// The index of the text to replace next.
    oldest: usize,
}

thread_local! {
    static CACHE: RefCell<MetaCache> = RefCell::default();
}

/// The `_meta` that this JSON text starts with and its length, if it is cached.
pub(crate) fn find(text: &str) -> Option<(usize, Meta<'_>)> {
    CACHE.with_borrow(|cache| {
        let mut texts = cache.texts.iter();
        // An object ends with its closing brace, so an equal start is an equal object.
        let cached = texts.find(|cached| text.starts_with(&*cached.text))?;
        let meta = Meta {
            protocol_version: Cow::Borrowed(&text[cached.protocol_version.clone()]),
            client_info: cached.client_info.clone().map(|range| &text[range]),
            capabilities: cached.capabilities,
            ..Meta::default()
        };
        Some((cached.text.len(), meta))
    })
}

/// Caches a `_meta` that was parsed from this text, if it only describes the client.
pub(crate) fn insert(text: &str, meta: &Meta<'_>) {
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
    let new = CachedMeta {
        text: text.into(),
        protocol_version: range(version),
        client_info: client_info.map(range),
        capabilities: *capabilities,
    };
    CACHE.with_borrow_mut(|cache| {
        match cache.texts.get_mut(cache.oldest) {
            Some(oldest) => *oldest = new,
            None => cache.texts.push(new),
        }
        cache.oldest = (cache.oldest + 1) % MAX_TEXTS;
    });
}
