//! The ids of events.
//!
//! ```text
//! instance 16 ‖ - ‖ stream ‖ - ‖ place ‖ - ‖ base64url( sealed( what the stream is for ) )
//! ```
//!
//! The seal is made once for a stream, for its session and its number: so any instance knows what a client comes back for,
//! though it never had that stream. It is left out where nothing could be made of it: of a batch, of a call whose id is long
//! or whose instance others would not find, and of a reply, after which nothing comes.

use super::{Session, Stream};
use crate::server::Server;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::sync::Arc;

const LISTENING: &str = "listening";
/// How what is sealed for a call begins.
const CALL: &str = "call ";
/// Bytes of the longest id of a request that is sealed: it is part of every id of the stream.
const LONGEST_ID: usize = 64;
/// Bytes of the longest seal that is looked at.
const LONGEST_SEAL: usize = 256;

/// Names an event: the instance that has the stream, the stream, and the event's place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    pub(crate) instance: String,
    pub(super) stream: u64,
    pub(super) place: u64,
    pub(super) seal: Option<Arc<str>>,
}

impl EventId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '-');
        Some(Self {
            instance: parts.next()?.to_owned(),
            stream: parts.next()?.parse().ok()?,
            place: parts.next()?.parse().ok()?,
            seal: parts.next().map(Arc::from),
        })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.instance, self.stream, self.place)?;
        match &self.seal {
            Some(seal) => write!(f, "-{seal}"),
            None => Ok(()),
        }
    }
}

/// What a stream is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A session is told what belongs to no call.
    Listening,
    /// What goes out in response to the request with this id, as JSON.
    Call(String),
}

impl Server {
    /// Has the ids of a stream's events say what it is for. To be done before any is given out.
    pub(crate) fn seal_stream(&self, stream: &Stream, purpose: &Purpose) {
        let content = match purpose {
            Purpose::Listening => LISTENING.to_owned(),
            Purpose::Call(id) if id.len() <= LONGEST_ID => format!("{CALL}{id}"),
            Purpose::Call(_) => return,
        };
        let place = place(&stream.session, &stream.instance, stream.number);
        let seal = self.0.sealer.seal_bytes(&place, content.as_bytes());
        stream.sealed(URL_SAFE_NO_PAD.encode(seal));
    }

    /// What the stream of this event is for, or was. `None`: that is not known, or it is none of this session's.
    pub(crate) fn purpose(&self, session: &Session, event: &EventId) -> Option<Purpose> {
        let seal = event
            .seal
            .as_ref()
            .filter(|seal| seal.len() <= LONGEST_SEAL)?;
        let seal = URL_SAFE_NO_PAD.decode(&**seal).ok()?;
        let place = place(&session.key, &event.instance, event.stream);
        let content = self.0.sealer.open_bytes(&place, seal).ok()?;
        let content = String::from_utf8(content).ok()?;
        match content.strip_prefix(CALL) {
            Some(id) => Some(Purpose::Call(id.to_owned())),
            None => (content == LISTENING).then_some(Purpose::Listening),
        }
    }
}

/// What the seal of a stream is made for.
fn place(session: &str, instance: &str, stream: u64) -> Vec<u8> {
    format!("stream {session} {instance} {stream}").into_bytes()
}
