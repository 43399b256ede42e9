//! The ids of events.
//!
//! ```text
//! instance 16 ‖ - ‖ stream ‖ - ‖ place ‖ - ‖ purpose
//! ```
//!
//! The purpose tells an instance that never had the stream what to do: `l` is the stream of the session, `c` and the
//! base64url of a request id that of a call. It needs no seal: an invented one harms only its client. It is left out of the
//! ids of batches, of calls with a long id, and of replies, which are the last events of their streams.

use super::RequestId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::sync::Arc;

/// Bytes of the longest request id in an event id.
const LONGEST_ID: usize = 64;
/// Characters of the longest purpose.
const LONGEST_PURPOSE: usize = 128;

/// Names an event: the instance that has the stream, the stream, and the event's place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    pub(crate) instance: String,
    pub(super) stream: u64,
    pub(super) place: u64,
    /// The purpose as text.
    pub(super) purpose: Option<Arc<str>>,
}

impl EventId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '-');
        Some(Self {
            instance: parts.next()?.to_owned(),
            stream: parts.next()?.parse().ok()?,
            place: parts.next()?.parse().ok()?,
            purpose: parts
                .next()
                .filter(|purpose| purpose.len() <= LONGEST_PURPOSE)
                .map(Arc::from),
        })
    }

    /// The purpose of the stream, if the id has one.
    pub(crate) fn purpose(&self) -> Option<Purpose> {
        Purpose::parse(self.purpose.as_deref()?)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.instance, self.stream, self.place)?;
        match &self.purpose {
            Some(purpose) => write!(f, "-{purpose}"),
            None => Ok(()),
        }
    }
}

/// The purpose of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Notifications outside of calls.
    Listening,
    /// The response to the request with this id, as JSON.
    Call(String),
}

impl Purpose {
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Listening => Some("l".to_owned()),
            Self::Call(id) => {
                (id.len() <= LONGEST_ID).then(|| format!("c{}", URL_SAFE_NO_PAD.encode(id)))
            }
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "l" {
            return Some(Self::Listening);
        }
        let id = URL_SAFE_NO_PAD.decode(text.strip_prefix('c')?).ok()?;
        let id = String::from_utf8(id).ok()?;
        // It is written into a message as it is.
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
            Some(Purpose::Listening),
            Some(Purpose::Call("7".to_owned())),
            Some(Purpose::Call("\"a-b\"".to_owned())),
        ] {
            let text = purpose.as_ref().and_then(Purpose::text);
            let id = EventId {
                instance: "00000000000000ff".to_owned(),
                stream: 3,
                place: 9,
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
