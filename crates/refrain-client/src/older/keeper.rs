//! What goes on beside the calls to an older server over HTTP: it is heard on a stream of its own, told of requests
//! nobody waits for any longer, and told when the session is over.

use super::{Beside, Session, take_stray};
use crate::news::News;
use crate::retry::{LONGEST_WISH, backoff};
use crate::transport::{HttpExchange, HttpLink, Incoming, LinkError, Outgoing};
use futures_util::FutureExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// How often, one time after the other, the stream may end at once, without having brought anything, before it is given
/// up.
const SILENT_MAX: u32 = 5;
/// A stream that was open for so long did not end at once.
const A_WHILE: Duration = Duration::from_secs(5);
/// How often, one time after the other, the server may be out of reach, or ask to come again, before the stream is given
/// up. That is some minutes: time for it to be started anew.
const AWAY_MAX: u32 = 100;
/// The time for a message of ours to get through.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the first call waits for the stream to be open. Some servers say nothing at all before there is something
/// to tell.
const OPENING: Duration = Duration::from_secs(2);

/// The task beside the calls. It ends with this.
#[derive(Debug)]
pub(super) struct Keeper {
    cancelled: mpsc::UnboundedSender<u64>,
    /// Whether the server has answered to the wish for a stream, if only to say that it has none.
    opened: watch::Receiver<bool>,
    ending: JoinHandle<()>,
}

impl Keeper {
    pub(super) fn start(
        link: Arc<HttpLink>,
        session: watch::Receiver<Session>,
        news: News,
        beside: Beside,
    ) -> Self {
        let (cancelled, waiting) = mpsc::unbounded_channel();
        let (opening, opened) = watch::channel(false);
        let ears = Ears {
            link,
            news,
            beside,
            opening,
        };
        let ending = tokio::spawn(keep(ears, session, waiting));
        Self {
            cancelled,
            opened,
            ending,
        }
    }

    /// Waits for the stream to be open, so that nothing is missed of what a call brings about, and so that the server
    /// cannot take the stream for one that goes on with the call's. Does not wait for long.
    pub(super) async fn opened(&self) {
        let mut opened = self.opened.clone();
        if timeout(OPENING, opened.wait_for(|opened| *opened))
            .await
            .is_err()
        {
            tracing::debug!("the stream of the session is not open yet");
        }
    }

    /// Has the server told that nobody waits any longer for a response.
    pub(super) fn cancel(&self, id: u64) {
        // The task ends only with this.
        let _ = self.cancelled.send(id);
    }

    pub(super) async fn close(self) {
        drop(self.cancelled);
        if self.ending.await.is_err() {
            tracing::warn!("the session was not seen to end");
        }
    }
}

/// Where the server is heard, and by whom.
struct Ears {
    link: Arc<HttpLink>,
    news: News,
    beside: Beside,
    opening: watch::Sender<bool>,
}

async fn keep(
    ears: Ears,
    mut session: watch::Receiver<Session>,
    mut cancelled: mpsc::UnboundedReceiver<u64>,
) {
    let link = &ears.link;
    let present = session.borrow_and_update().clone();
    let mut hearing = pin!(ears.hear(present).fuse());
    loop {
        tokio::select! {
            id = cancelled.recv() => match id {
                Some(id) => {
                    let headers = session.borrow().headers();
                    post(link, &Outgoing::cancelled(id, headers)).await;
                }
                None => break,
            },
            changed = session.changed() => if changed.is_ok() {
                let present = session.borrow_and_update().clone();
                hearing.set(ears.hear(present).fuse());
            } else {
                break;
            },
            () = &mut hearing => {}
        }
    }
    while let Ok(id) = cancelled.try_recv() {
        let headers = session.borrow().headers();
        post(link, &Outgoing::cancelled(id, headers)).await;
    }
    let last = session.borrow().clone();
    if last.id.is_some() {
        // A server may refuse that, or be gone: the session ends by itself then.
        let _ = timeout(PATIENCE, link.delete(last.headers())).await;
    }
}

impl Ears {
    /// Hears what the server says outside of calls, for as long as it has a stream for that.
    async fn hear(&self, session: Session) {
        let (mut silent, mut away) = (0, 0);
        while silent < SILENT_MAX && away < AWAY_MAX {
            let stream = self.link.listen(&session.headers()).await;
            self.opening.send_replace(true);
            let mut pause = Duration::ZERO;
            match stream {
                Ok(Some(stream)) => {
                    let begun = Instant::now();
                    let is_silent = !self.hear_all(stream, &session).await;
                    let is_in_vain = is_silent && begun.elapsed() < A_WHILE;
                    silent = if is_in_vain { silent + 1 } else { 0 };
                    away = 0;
                }
                Err(LinkError::NotSent(_) | LinkError::Lost(_)) => away += 1,
                Err(LinkError::Busy { retry_after, .. }) => {
                    away += 1;
                    pause = retry_after.unwrap_or_default().min(LONGEST_WISH);
                }
                // It has none, or not for us.
                Ok(None) | Err(LinkError::Final(_)) => return,
            }
            tokio::time::sleep(backoff(silent.max(away) + 1).max(pause)).await;
        }
    }

    /// Hears a stream to its end. Says whether it brought anything.
    async fn hear_all(&self, mut stream: HttpExchange, session: &Session) -> bool {
        let mut is_silent = true;
        while let Ok(message) = stream.next().await {
            is_silent &= matches!(message, Incoming::Alive);
            let message = match message {
                ask @ Incoming::Request { .. } => match self.beside.offer(ask) {
                    Ok(()) => continue,
                    Err(ask) => ask,
                },
                message => message,
            };
            if let Some(answer) = take_stray(message, &self.news) {
                let answer = Outgoing::unanswered(answer, session.headers());
                post(&self.link, &answer).await;
            }
        }
        !is_silent
    }
}

async fn post(link: &HttpLink, message: &Outgoing) {
    match timeout(PATIENCE, link.tell(message)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(?error, "the server was not told"),
        Err(_) => tracing::debug!("the server was not told in time"),
    }
}
