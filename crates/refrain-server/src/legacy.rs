//! Clients of earlier revisions: they open a session with `initialize`, and are asked while their call goes on.
//!
//! What always holds: what is asked goes out on the stream of the request it belongs to, and nowhere else; a stream that
//! breaks ends no call, and only its client, its time or the end of its session does.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `session` | a session, and its id: a sealed token that any instance opens |
//! | `ask` | the ids of what is asked |
//! | `carried` | what other instances note for the calls of this one |
//! | `notes` | what is kept of sessions beside their ids |
//! | `presence` | which instances are there to take in answers |
//! | `request` | a message of a session read, and answered or begun |
//! | `talk` | what goes out in response to one request |
//! | `desk` | the calls that are live here, and where their answers go |
//! | `event` | the ids of events, and what they say of their streams |
//! | `stream` | a stream of events that can be taken up again |
//! | `listening` | what a session is told outside of its calls |

mod ask;
mod carried;
mod desk;
mod event;
mod listening;
mod notes;
mod presence;
mod request;
mod session;
mod stream;
mod talk;

pub(crate) use desk::{Desk, RequestId};
pub(crate) use event::{EventId, Purpose};
pub(crate) use listening::Listening;
pub(crate) use notes::{Known, Notes};
pub(crate) use request::{Cancelled, Received, no_room, opens_session, store_failed};
pub(crate) use session::{DEFAULT_LEVEL, Session};
pub(crate) use stream::{Lost, Reader, Stream, Streams};
pub(crate) use talk::{Sent, Talk};

use crate::limits::ServerLimits;
use presence::Presence;
use refrain_core::Source;
use refrain_store::{MemoryStore, SessionStore};
use std::sync::Arc;

/// What a server needs for older clients.
pub(crate) struct LegacySessions {
    /// What this instance is called among those that share a store.
    instance: String,
    pub(crate) notes: Notes,
    pub(crate) desk: Desk,
    pub(crate) streams: Streams,
    presence: Presence,
}

impl LegacySessions {
    /// Without a store of their own, sessions are noted in the memory of this process.
    pub(crate) fn new(
        store: Option<Arc<dyn SessionStore>>,
        limits: &ServerLimits,
        source: &Arc<dyn Source>,
    ) -> Self {
        let mut random = [0; 8];
        source.fill(&mut random);
        let instance = format!("{:016x}", u64::from_be_bytes(random));
        let shared = store.is_some();
        let store = store.unwrap_or_else(|| Arc::new(MemoryStore::with_source(source.clone())));
        Self {
            notes: Notes::new(store, shared),
            desk: Desk::new(),
            streams: Streams::new(&instance, limits.resume_bytes_all),
            presence: Presence::default(),
            instance,
        }
    }

    /// Where the answers for this instance are noted.
    fn mailbox(&self) -> String {
        notes::mailbox(&self.instance)
    }
}
