//! What other instances note for the calls of this one, taken in.
//!
//! What always holds: an answer is taken back from the store only after its call has it, so that none is lost between the
//! two; one that comes twice does no harm. A store that does not answer holds up nobody for longer than the time of a round.

use super::desk::{Answer, RequestId};
use super::notes::{CALLS, CANCEL, ENDED, came, opened};
use super::presence::stay;
use crate::server::{Inner, Server};
use refrain_store::StoreError;
use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, MissedTickBehavior};

/// How often it is looked what is noted, whatever words come of it: a person waits for what becomes of an answer.
const LOOK: Duration = Duration::from_millis(500);

/// Takes in what is noted for the calls of a server, while it has some, and has others know that it does. There is one of
/// these for all of them.
pub(super) async fn watch(watching: Watching, noted: broadcast::Receiver<String>) {
    // However long it takes to take something in.
    let server = watching.server.clone();
    let staying = stay(server.clone());
    tokio::select! {
        () = take_in_all(watching, noted) => {}
        () = staying => {}
    }
    // Its last calls may have been given up since it was looked.
    if let Some(server) = server.upgrade().map(Server)
        && server.0.live.is_closed()
    {
        server.leave().await;
    }
}

async fn take_in_all(mut watching: Watching, mut noted: broadcast::Receiver<String>) {
    let mut look = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut speaks = true;
    loop {
        // However many words come of other places, it is looked at everything now and then.
        let said = tokio::select! {
            said = noted.recv(), if speaks => Some(said),
            _ = look.tick() => None,
        };
        let Some(server) = watching.server.upgrade().map(Server) else {
            return;
        };
        let places = match said {
            Some(Ok(place)) => server.concerned(place, &mut noted),
            Some(Err(RecvError::Closed)) => {
                speaks = false;
                continue;
            }
            None if server.0.legacy.desk.rest() => {
                watching.rested = true;
                return;
            }
            None | Some(Err(RecvError::Lagged(_))) => server.places(),
        };
        if !places.is_empty() {
            server.take_in(&places).await;
        }
    }
}

/// Should the store panic, or the runtime end before the server, the next call begins to watch anew.
pub(super) struct Watching {
    server: Weak<Inner>,
    /// Does it end because there are no calls? Then another may have begun already.
    rested: bool,
}

impl Watching {
    pub(super) fn new(server: &Server) -> Self {
        Self {
            server: Arc::downgrade(&server.0),
            rested: false,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if !self.rested
            && let Some(server) = self.server.upgrade()
        {
            server.legacy.desk.unwatched();
        }
    }
}

impl Server {
    /// All places where something may be noted for the calls of this instance.
    fn places(&self) -> Vec<String> {
        let legacy = &self.0.legacy;
        let sessions = legacy.desk.sessions();
        let calls = sessions.iter().map(|session| format!("{CALLS}{session}"));
        calls.chain([legacy.mailbox()]).collect()
    }

    /// Those among the places of which there was word that this instance has calls for; all, if a word was missed.
    fn concerned(&self, first: String, noted: &mut broadcast::Receiver<String>) -> Vec<String> {
        let mut said = HashSet::from([first]);
        for _ in 0..noted.len() {
            match noted.try_recv() {
                Ok(place) => said.insert(place),
                Err(TryRecvError::Lagged(_)) => return self.places(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            };
        }
        let legacy = &self.0.legacy;
        let mailbox = legacy.mailbox();
        let concerns = |place: &String| match place.strip_prefix(CALLS) {
            Some(session) => legacy.desk.has_calls(session),
            None => *place == mailbox,
        };
        said.into_iter().filter(concerns).collect()
    }

    /// Takes in what is noted in these places.
    async fn take_in(&self, places: &[String]) {
        let legacy = &self.0.legacy;
        let names = match self.in_time(legacy.notes.store.note_names(places)).await {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!(%error, "what other instances have noted could not be looked up");
                return;
            }
        };
        let mut done = Vec::new();
        for (place, name) in names {
            let taken = match place.strip_prefix(CALLS) {
                Some(session) => self.take_in_end(&place, session, &name).await,
                None => self.take_in_answer(&place, &name).await,
            };
            if taken {
                done.push((place, name));
            }
        }
        let taking_back = async {
            for (place, name) in done {
                if let Err(error) = legacy.notes.store.take_note(&place, &name).await {
                    tracing::debug!(%error, "a note that was taken in stays until its time is over");
                }
            }
            Ok(())
        };
        if let Err(error) = self.in_time(taking_back).await {
            tracing::warn!(%error, "notes that were taken in stay until they are looked at again");
        }
    }

    /// What the store says, if it says so within the time of a round.
    async fn in_time<T>(
        &self,
        doing: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let time = self.0.limits.round_time;
        let done = tokio::time::timeout(time, doing).await;
        done.unwrap_or_else(|_| {
            let late = format!("it did not answer within {time:?}");
            Err(StoreError::Unavailable(late))
        })
    }

    /// Ends the calls that a note is about. `true`: nobody else needs it.
    async fn take_in_end(&self, place: &str, session: &str, name: &str) -> bool {
        let legacy = &self.0.legacy;
        if name == ENDED {
            legacy.desk.end_session(session);
            return false;
        }
        let Some(call) = name.strip_prefix(CANCEL).map(RequestId::of_text) else {
            return false;
        };
        if !legacy.desk.has_call(session, &call) {
            return false;
        }
        // The call it was meant for may be long over, and this be another with its id.
        let reading = legacy.notes.store.note_value(place, name);
        match self.in_time(reading).await {
            Ok(Some(value)) => {
                let by = came(&value).unwrap_or(u64::MAX);
                legacy.desk.cancel_begun(session, &call, by)
            }
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(%error, "a cancellation could not be taken in");
                false
            }
        }
    }

    /// Gives an answer to the call that has asked. `true`: the note is no longer needed.
    async fn take_in_answer(&self, place: &str, name: &str) -> bool {
        let legacy = &self.0.legacy;
        let Some((session, ask)) = name.split_once('/') else {
            return false;
        };
        if !legacy.desk.is_open(session, ask) {
            return true;
        }
        let reading = legacy.notes.store.note_value(place, name);
        let sealed = match self.in_time(reading).await {
            Ok(Some(sealed)) => sealed,
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(%error, "an answer could not be taken in");
                return false;
            }
        };
        let answer: Option<Answer> = match opened(self, session, ask, sealed) {
            Ok(answer) => answer,
            Err(reason) => {
                tracing::error!(%reason, "an answer that was carried here does not open");
                return false;
            }
        };
        if let Some(answer) = answer
            && legacy.desk.answer(session, ask, answer).is_ok()
        {
            tracing::debug!(session, "an answer was carried here by the store");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_store::MemoryStore;

    #[test]
    fn whoever_missed_a_word_looks_everywhere() {
        let builder = Server::builder("older", "1").sessions(Arc::new(MemoryStore::new()));
        let server = builder.build().expect("a usable server");
        let (said, mut noted) = broadcast::channel(4);
        let mut concerned = |words: usize| {
            for word in 0..words {
                said.send(format!("of another {word}"))
                    .expect("it is heard");
            }
            server.concerned("of another".to_owned(), &mut noted)
        };
        assert!(concerned(4).is_empty());
        assert_eq!(concerned(5), server.places());
    }
}
