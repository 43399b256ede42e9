//! Legacy sessions: clients of earlier revisions open one with `initialize`, and are asked while their call goes on.
//!
//! A session has one holder: the instance that opened it. Its id is a sealed token with the revision, the client's
//! capabilities and the holder; everything else is in the holder's memory. Other instances relay to the holder. If it is
//! gone, each of them serves the session itself, with an empty state.
//!
//! Invariants: an ask goes out on the stream of the request it belongs to, and on no other; a stream that breaks ends no
//! call. Only the client, a timeout or the end of the session does.
//!
//! | module | contents |
//! | --- | --- |
//! | `session` | a session, and its id |
//! | `state` | log level and subscriptions of the sessions held here |
//! | `request` | a message of a session: answered, begun or relayed |
//! | `exchange` | a request while it is answered: how messages are written, and the asks that are open |
//! | `open_calls` | the calls and open asks of this instance |
//! | `event` | the ids of events |
//! | `streams`, `stream` | streams of events that can be resumed |
//! | `listening` | notifications outside of calls |

mod event;
mod exchange;
mod listening;
mod open_calls;
mod request;
mod session;
mod state;
mod stream;
mod streams;

pub(crate) use event::{EventId, Purpose};
pub(crate) use exchange::{LegacyExchange, session_over};
pub(crate) use open_calls::RequestId;
pub(crate) use request::{Cancelled, lost_call};
pub(crate) use session::{Lifetime, Session};
pub(crate) use stream::Reader;
pub(crate) use streams::ResumeError;

use crate::auth::Auth;
use crate::catalog::Catalog;
use crate::relay::Relay;
use crate::rounds::Rounds;
use crate::services::Services;
use crate::subscriptions::Subscriptions;
use open_calls::OpenCalls;
use parking_lot::Mutex;
use state::States;
use std::sync::Arc;
use streams::Streams;

/// The legacy sessions of one instance.
pub(crate) struct LegacySessions {
    catalog: Arc<Catalog>,
    auth: Arc<Auth>,
    rounds: Arc<Rounds>,
    subscriptions: Arc<Subscriptions>,
    relay: Arc<Relay>,
    services: Services,
    states: Mutex<States>,
    open: Mutex<OpenCalls>,
    streams: Streams,
}

impl LegacySessions {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        auth: Arc<Auth>,
        rounds: Arc<Rounds>,
        subscriptions: Arc<Subscriptions>,
        relay: Arc<Relay>,
        services: Services,
    ) -> Arc<Self> {
        Arc::new(Self {
            streams: Streams::new(relay.own.id(), &services.limits),
            states: Mutex::default(),
            open: Mutex::default(),
            catalog,
            auth,
            rounds,
            subscriptions,
            relay,
            services,
        })
    }
}
