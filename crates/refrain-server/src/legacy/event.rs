//! Event ids.
//!
//! ```text
//! instance 16 ‖ - ‖ stream ‖ - ‖ sequence ‖ - ‖ purpose
//! ```
//!
//! The purpose tells other instances what the stream is for: `l` for notifications of the session, `c` followed by the
//! base64url of the request id for a call. It is not sealed, because a forged id affects only its client. It is omitted for
//! batches, for calls with long ids, and for replies, which are the last events of their streams.

use super::RequestId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::sync::Arc;

/// The longest request id, in bytes, that an event id can contain.
const MAX_REQUEST_ID: usize = 64;
const MAX_PURPOSE: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    pub(crate) instance: String,
    pub(super) stream: u64,
    /// The number of the event in its stream, from 1. 0 is the start of the stream.
    pub(super) sequence: u64,
    pub(super) purpose: Option<Arc<str>>,
}

impl EventId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '-');
        Some(Self {
            instance: parts.next()?.to_owned(),
            stream: parts.next()?.parse().ok()?,
            sequence: parts.next()?.parse().ok()?,
            purpose: parts
                .next()
                .filter(|purpose| purpose.len() <= MAX_PURPOSE)
                .map(Arc::from),
        })
    }

    /// The purpose of the stream, if the id contains a valid one.
    pub(crate) fn purpose(&self) -> Option<Purpose> {
        Purpose::parse(self.purpose.as_deref()?)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.instance, self.stream, self.sequence)?;
        match &self.purpose {
            Some(purpose) => write!(f, "-{purpose}"),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Notifications outside of calls.
    Notifications,
    /// The response to the request with this id, which is JSON.
    Call(String),
}

impl Purpose {
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Notifications => Some("l".to_owned()),
            Self::Call(id) => {
                (id.len() <= MAX_REQUEST_ID).then(|| format!("c{}", URL_SAFE_NO_PAD.encode(id)))
            }
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "l" {
            return Some(Self::Notifications);
        }
        let id = URL_SAFE_NO_PAD.decode(text.strip_prefix('c')?).ok()?;
        let id = String::from_utf8(id).ok()?;
        // The id is copied into a message, so it must be valid JSON.
        let is_id = RequestId::parse(&id).is_some() && !id.contains(char::is_control);
        is_id.then_some(Self::Call(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_id_round_trips_with_its_purpose() {
        for purpose in [
            None,
            Some(Purpose::Notifications),
            Some(Purpose::Call("7".to_owned())),
            Some(Purpose::Call("\"a-b\"".to_owned())),
        ] {
            let text = purpose.as_ref().and_then(Purpose::text);
            let id = EventId {
                instance: "00000000000000ff".to_owned(),
                stream: 3,
                sequence: 9,
                purpose: text.map(Arc::from),
            };
            let parsed = EventId::parse(&id.to_string()).expect("an event id");
            assert_eq!(parsed, id);
            assert_eq!(parsed.purpose(), purpose);
        }
    }

    #[test]
    fn malformed_purpose_is_ignored() {
        let no_id = format!("c{}", URL_SAFE_NO_PAD.encode("{}"));
        let no_json = format!("c{}", URL_SAFE_NO_PAD.encode("7, \"result\": 1"));
        for purpose in ["", "x", "c", "c!", &no_id, &no_json] {
            let id = EventId::parse(&format!("a-1-2-{purpose}")).expect("an event id");
            assert_eq!(id.purpose(), None, "{purpose}");
        }
        assert_eq!(Purpose::Call("x".repeat(65)).text(), None);
    }
}
