//! Which instances are there to take in answers, and have the streams of their calls.
//!
//! An instance notes in the store that it is there before it asks anything, or hands out a stream, and takes the note back
//! when it stops. So whoever is sent an answer for another one knows whether that finds it, and acknowledges no other: it
//! may have ended, or have another store.
//!
//! | noted | the instance |
//! | --- | --- |
//! | `here`, `was` | is there |
//! | `was` | has ended, and its calls with it; or keeps no stream of any |
//! | nothing | is not known: it may have another store |
//!
//! What always holds: nothing that other instances may be sent the answer to is asked before that is noted, or could not be.
//! In the latter case it is tried again while calls go on, and answers that come here are taken in as ever.

use super::Stream;
use super::notes::presence;
use crate::server::{Inner, Server};
use parking_lot::Mutex as SyncMutex;
use refrain_store::{NewNote, Room, StoreError};
use std::future::Future;
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// What is noted.
const HERE: &str = "here";
/// How long it is noted for. An instance that was killed is taken to be there until then.
const KEPT: Duration = Duration::from_secs(60);
/// What is noted for those who come when it is no longer there.
const WAS: &str = "was";
/// How long that is noted for.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// When it is noted anew: so early that the store may fail, or this process be held up, for most of that time.
const ANEW: Duration = Duration::from_secs(10);
/// When it is tried again after the store has failed.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the store may take: somebody waits to be asked.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often at most it is logged that answers are refused: whoever has been asked something may answer it often.
const LOGGED: Duration = Duration::from_secs(60);

/// What is known of the presence of this instance.
#[derive(Default)]
pub(super) struct Presence {
    /// When it is noted next. `None`: nobody needed it yet.
    next: Mutex<Option<Next>>,
    logged: SyncMutex<Option<Instant>>,
}

#[derive(Clone, Copy)]
struct Next {
    at: Instant,
    /// Is it noted until then?
    noted: bool,
}

impl Presence {
    /// Is it to be logged that an answer was refused? Once in a while it is.
    pub(super) fn logs_refusal(&self) -> bool {
        let mut logged = self.logged.lock();
        let now = Instant::now();
        let logs = logged.is_none_or(|last| now.duration_since(last) >= LOGGED);
        if logs {
            *logged = Some(now);
        }
        logs
    }
}

/// Has an instance that has asked something stay there, while it has calls.
pub(super) async fn stay(server: Weak<Inner>) {
    loop {
        tokio::time::sleep(AGAIN).await;
        let Some(server) = server.upgrade().map(Server) else {
            return;
        };
        if server.0.live.is_closed() {
            server.leave().await;
        } else if server.0.legacy.presence.next.lock().await.is_some() {
            server.be_here().await;
        }
    }
}

impl Server {
    /// Notes that this instance is there, unless it has done so of late. To be done before anything is asked. `false`: others
    /// do not know it.
    pub(crate) async fn be_here(&self) -> bool {
        let legacy = &self.0.legacy;
        if !legacy.notes.shared {
            return false;
        }
        // Others who ask at the same time wait for the same note.
        let mut next = legacy.presence.next.lock().await;
        let now = Instant::now();
        // Whoever stops asks nothing any more.
        if self.0.live.is_closed() {
            return false;
        }
        if let Some(next) = next.filter(|next| now < next.at) {
            return next.noted;
        }
        // Should this be dropped before it is done: it may be noted, and has to be noted again.
        *next = Some(Next {
            at: now,
            noted: false,
        });
        let place = presence(&legacy.instance);
        let note = |name, keep| {
            legacy.notes.store.note(NewNote {
                place: &place,
                name,
                value: Vec::new(),
                keep,
                room: Room::ANY,
            })
        };
        // In this order: nobody finds that it was there, and not that it is.
        let noting = async { Ok(note(HERE, KEPT).await? && note(WAS, REMEMBERED).await?) };
        let reason = match patiently(noting).await {
            Ok(true) => {
                *next = Some(Next {
                    at: now + ANEW,
                    noted: true,
                });
                return true;
            }
            Ok(false) => "it has no room".to_owned(),
            Err(error) => error.to_string(),
        };
        *next = Some(Next {
            at: Instant::now() + AGAIN,
            noted: false,
        });
        tracing::warn!(
            reason,
            "the store does not know that this instance is here: answers that come to others are refused there"
        );
        false
    }

    /// Ends the stream of calls, as any other; for as long as it is kept, this instance is there.
    pub(crate) async fn end_call_stream(&self, stream: &Stream) {
        let staying = async {
            loop {
                tokio::time::sleep(ANEW).await;
                if stream.is_sealed() {
                    self.be_here().await;
                }
            }
        };
        tokio::select! {
            () = self.end_stream(stream) => {}
            () = staying => {}
        }
    }

    /// Is this instance there, as far as the store knows?
    pub(super) async fn is_here(&self, instance: &str) -> Result<bool, StoreError> {
        let store = &self.0.legacy.notes.store;
        let noted = store.note_value(&presence(instance), HERE).await?;
        Ok(noted.is_some())
    }

    /// Has this instance ended, as far as the store knows? One that it never knew may be there, and have another store.
    pub(crate) async fn has_ended(&self, instance: &str) -> Result<bool, StoreError> {
        let notes = &self.0.legacy.notes;
        if !notes.shared {
            return Ok(false);
        }
        let noted = notes.store.note_names(&[presence(instance)]).await?;
        let is_noted = |wanted| noted.iter().any(|(_, name)| name == wanted);
        Ok(is_noted(WAS) && !is_noted(HERE))
    }

    /// Takes back that this instance is there. To be done once nothing is asked any more.
    pub(crate) async fn leave(&self) {
        let legacy = &self.0.legacy;
        let mut next = legacy.presence.next.lock().await;
        if next.is_none() {
            return;
        }
        let place = presence(&legacy.instance);
        if let Err(error) = patiently(legacy.notes.store.take_note(&place, HERE)).await {
            tracing::warn!(%error, "the store does not know that this instance has left, for up to {KEPT:?}");
        }
        // Not before: should this be dropped, somebody else does it.
        *next = None;
    }
}

/// What the store says, if it says so in time.
async fn patiently<T>(doing: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let done = tokio::time::timeout(PATIENCE, doing).await;
    done.unwrap_or_else(|_| {
        let late = format!("it did not answer within {PATIENCE:?}");
        Err(StoreError::Unavailable(late))
    })
}

#[cfg(test)]
mod tests;
