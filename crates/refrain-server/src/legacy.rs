//! Legacy sessions: clients of earlier revisions open one with `initialize`, and are asked while their call goes on.
//!
//! A session has one holder: the instance that opened it. Its id is a sealed token with the revision, the client's
//! capabilities and the holder; everything else is in the holder's memory. Other instances relay to the holder. If it is
//! gone, each of them serves the session itself, with a state that starts anew.
//!
//! Invariants: an ask goes out on the stream of the request it belongs to, and on no other; a stream that breaks ends no
//! call. Only the client, a timeout or the end of the session does.
//!
//! | module | contents |
//! | --- | --- |
//! | `session` | a session, and its id |
//! | `state` | log level and subscriptions of the sessions held here |
//! | `ask` | the ids of asks |
//! | `request` | a message of a session read, and answered or begun |
//! | `exchange` | a request while it is answered: how messages are written, and the asks that are open |
//! | `desk` | the calls and open asks of this instance |
//! | `event` | the ids of events |
//! | `stream` | a stream of events that can be resumed |
//! | `listening` | notifications outside of calls |

mod ask;
mod desk;
mod event;
mod exchange;
mod listening;
mod request;
mod session;
mod state;
mod stream;

pub(crate) use desk::{Desk, RequestId};
pub(crate) use event::{EventId, Purpose};
pub(crate) use exchange::{LegacyExchange, session_over};
pub(crate) use listening::Listening;
pub(crate) use request::{Cancelled, HELD_ELSEWHERE, lost_call};
pub(crate) use session::{DEFAULT_LEVEL, Session};
pub(crate) use stream::{Lost, Reader, Stream, Streams};

use crate::relay::Relay;
use crate::services::Services;
use state::HeldSessions;
use std::sync::Arc;

/// The legacy sessions of one instance.
pub(crate) struct LegacySessions {
    relay: Arc<Relay>,
    services: Services,
    held: HeldSessions,
    pub(crate) desk: Arc<Desk>,
    pub(crate) streams: Streams,
}

impl LegacySessions {
    pub(crate) fn new(relay: Arc<Relay>, services: Services) -> Self {
        Self {
            streams: Streams::new(relay.own().id(), services.limits.resume_bytes_all),
            held: HeldSessions::new(&services.limits),
            desk: Arc::new(Desk::new()),
            relay,
            services,
        }
    }

    /// Ends a session, and its calls and streams here.
    pub(crate) fn end(&self, session: &Session) {
        self.held.end(session, self.services.source.unix_seconds());
        self.desk.end_session(&session.key);
    }
}
