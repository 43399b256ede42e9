//! Legacy sessions. A client opens a session with `initialize`. The server sends asks as requests during a call.
//!
//! The holder of a session is the instance that opened it. The session id is a sealed token with the revision, the
//! client's capabilities and the holder. The holder keeps all other state in memory. Other instances relay to the holder.
//! If it is gone, they serve the session themselves, with empty state.
//!
//! Invariants:
//! - An ask is sent only on the stream of the request that it belongs to.
//! - A broken stream does not end its call. Only the client, a timeout or the end of the session does. A call of an
//!   anonymous client times out if its stream has no reader for `resume_time`.
//!
//! | module | contents |
//! | --- | --- |
//! | `session` | sessions and their ids |
//! | `state` | log levels and subscriptions of sessions; ended sessions |
//! | `request` | handling of messages |
//! | `exchange` | a request in flight: its messages and open asks |
//! | `open_calls` | calls and open asks of this instance |
//! | `event` | event ids |
//! | `streams`, `stream` | resumable streams of events |
//! | `notifications` | notifications outside of calls |

mod event;
mod exchange;
mod notifications;
mod open_calls;
mod request;
mod session;
mod state;
mod stream;
mod streams;

pub(crate) use event::{CallStream, EventId, Purpose};
pub(crate) use exchange::{LegacyExchange, session_expired};
pub(crate) use open_calls::RequestId;
pub(crate) use request::{CancelParams, lost_call};
pub(crate) use session::{Lifetime, Session};
pub(crate) use stream::StreamReader;
pub(crate) use streams::StreamResumeError;

use crate::auth::Auth;
use crate::catalog::Catalog;
use crate::relay::Relay;
use crate::rounds::Rounds;
use crate::services::Services;
use crate::subscriptions::Subscriptions;
use open_calls::OpenCalls;
use parking_lot::Mutex;
use state::SessionStates;
use std::sync::Arc;
use streams::Streams;

/// The sessions of legacy clients that this instance serves.
pub(crate) struct LegacySessions {
    catalog: Arc<Catalog>,
    auth: Arc<Auth>,
    rounds: Arc<Rounds>,
    subscriptions: Arc<Subscriptions>,
    relay: Arc<Relay>,
    services: Services,
    states: Mutex<SessionStates>,
    open_calls: Mutex<OpenCalls>,
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
            states: Mutex::new(SessionStates::new(&services.limits)),
            open_calls: Mutex::default(),
            catalog,
            auth,
            rounds,
            subscriptions,
            relay,
            services,
        })
    }
}
