//! Event ids.
//!
//! ```text
//! instance (16 characters) ‖ - ‖ stream ‖ - ‖ sequence ‖ - ‖ purpose
//! ```
//!
//! The purpose lets other instances relay or restart the stream: `l` for notifications of the session, `c` followed by the
//! base64url of the request id for a call. The purpose is omitted for batches, for calls with long ids, and for replies,
//! which are the last events of their streams. Event ids are not sealed: a forged one affects only the client that sends it.
//!
//! The session id names the first holder of the session. If another instance took the session over, event ids of the
//! calls that run there end with `.` and the sealed name of that instance.

use super::RequestId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::sync::Arc;

/// The longest request id, in bytes, that an event id can contain.
const MAX_REQUEST_ID: usize = 64;
/// The longest purpose, in bytes, with a sealed holder.
const MAX_PURPOSE: usize = 1024;

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

/// The purpose of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Notifications outside of calls.
    Notifications,
    Call(CallStream),
}

/// The stream of the response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallStream {
    /// The id of the request, as JSON.
    pub(super) id: String,
    /// The sealed holder of the stream, if it is not the holder of the session.
    pub(super) holder: Option<String>,
}

impl Purpose {
    /// The purpose as part of an event id. `None` for a call with a long id.
    pub(super) fn encode(&self) -> Option<String> {
        match self {
            Self::Notifications => Some("l".to_owned()),
            Self::Call(CallStream { id, holder }) => {
                let id = (id.len() <= MAX_REQUEST_ID).then(|| URL_SAFE_NO_PAD.encode(id))?;
                Some(match holder {
                    Some(holder) => format!("c{id}.{holder}"),
                    None => format!("c{id}"),
                })
            }
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "l" {
            return Some(Self::Notifications);
        }
        let call = text.strip_prefix('c')?;
        let (id, holder) = match call.split_once('.') {
            Some((id, holder)) => (id, Some(holder.to_owned())),
            None => (call, None),
        };
        let id = String::from_utf8(URL_SAFE_NO_PAD.decode(id).ok()?).ok()?;
        // The id is copied into a message, so it must be valid JSON.
        let is_valid = RequestId::parse(&id).is_some() && !id.contains(char::is_control);
        is_valid.then_some(Self::Call(CallStream { id, holder }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, holder: Option<&str>) -> Purpose {
        let (id, holder) = (id.to_owned(), holder.map(str::to_owned));
        Purpose::Call(CallStream { id, holder })
    }

    #[test]
    fn event_id_round_trips_with_its_purpose() {
        for purpose in [
            None,
            Some(Purpose::Notifications),
            Some(call("7", None)),
            Some(call("\"a-b\"", None)),
            Some(call("7", Some("a-b_c"))),
        ] {
            let text = purpose.as_ref().and_then(Purpose::encode);
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
        assert_eq!(call(&"x".repeat(65), None).encode(), None);
    }
}
