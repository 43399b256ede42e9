//! The session stream of a legacy HTTP server, and the messages outside of calls: cancellations, and the end of the
//! session.

use super::{Session, UnassociatedAsks, take_stray};
use crate::builder::ClientBuilder;
use crate::notifications::Notifications;
use crate::retry::{RETRY_AFTER_MAX, backoff, within};
use crate::transport::{HttpExchange, HttpLink, Incoming, LinkError, Outgoing};
use futures_util::FutureExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How often in a row the stream may end at once before it is given up.
const EMPTY_MAX: u32 = 5;
/// A stream that was open for longer did not end at once.
const EMPTY_TIME: Duration = Duration::from_secs(5);
/// How often in a row the server may be unreachable or busy: several minutes, enough for a restart.
const FAILURES_MAX: u32 = 100;
/// The timeout of a message outside of calls.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the first call waits for the stream. Some servers send no headers before the first event.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct SessionStream {
    cancelled: mpsc::UnboundedSender<u64>,
    /// Whether the server has responded to the request for the stream.
    opened: watch::Receiver<bool>,
    ending: JoinHandle<()>,
}

impl SessionStream {
    pub(super) fn start(
        link: Arc<HttpLink>,
        session: watch::Receiver<Session>,
        setup: &ClientBuilder,
    ) -> Self {
        let (cancelled, cancellations) = mpsc::unbounded_channel();
        let (opening, opened) = watch::channel(false);
        let reader = Reader {
            link,
            notifications: setup.notifications.clone(),
            asks: setup.unassociated.clone(),
            opening,
        };
        Self {
            cancelled,
            opened,
            ending: tokio::spawn(reader.run(session, cancellations)),
        }
    }

    /// Waits a moment for the stream to open. Otherwise notifications could be missed, and a server could take the stream
    /// for the resumption of a call's.
    pub(super) async fn opened(&self) {
        let mut opened = self.opened.clone();
        let opened = opened.wait_for(|opened| *opened);
        if within(OPEN_TIMEOUT, opened).await.is_none() {
            tracing::debug!("session stream is not open yet");
        }
    }

    pub(super) fn cancel(&self, id: u64) {
        // The task lives as long as this.
        let _ = self.cancelled.send(id);
    }

    pub(super) async fn close(self) {
        drop(self.cancelled);
        if self.ending.await.is_err() {
            tracing::warn!("failed to end the session");
        }
    }
}

struct Reader {
    link: Arc<HttpLink>,
    notifications: Notifications,
    asks: UnassociatedAsks,
    opening: watch::Sender<bool>,
}

impl Reader {
    async fn run(
        self,
        mut session: watch::Receiver<Session>,
        mut cancelled: mpsc::UnboundedReceiver<u64>,
    ) {
        let present = session.borrow_and_update().clone();
        let mut reading = pin!(self.read(present).fuse());
        loop {
            tokio::select! {
                id = cancelled.recv() => match id {
                    Some(id) => self.post(&Outgoing::cancelled(id, headers(&session))).await,
                    None => break,
                },
                changed = session.changed() => if changed.is_ok() {
                    let present = session.borrow_and_update().clone();
                    reading.set(self.read(present).fuse());
                } else {
                    break;
                },
                () = &mut reading => {}
            }
        }
        while let Ok(id) = cancelled.try_recv() {
            self.post(&Outgoing::cancelled(id, headers(&session))).await;
        }
        let last = session.borrow().clone();
        if last.id.is_some() {
            // If that fails, the session expires.
            let _ = within(SEND_TIMEOUT, self.link.delete(last.headers())).await;
        }
    }

    /// Reads the stream for as long as the server has one.
    async fn read(&self, session: Session) {
        let (mut empty, mut failures) = (0, 0);
        while empty < EMPTY_MAX && failures < FAILURES_MAX {
            let stream = self.link.listen(&session.headers()).await;
            self.opening.send_replace(true);
            let mut pause = Duration::ZERO;
            match stream {
                Ok(Some(stream)) => {
                    let begun = Instant::now();
                    let is_empty = self.read_to_end(stream, &session).await;
                    let is_useless = is_empty && begun.elapsed() < EMPTY_TIME;
                    empty = if is_useless { empty + 1 } else { 0 };
                    failures = 0;
                }
                Err(LinkError::NotSent(_) | LinkError::Lost(_)) => failures += 1,
                Err(LinkError::Busy { retry_after, .. }) => {
                    failures += 1;
                    pause = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
                }
                Ok(None) | Err(LinkError::Final(_)) => return,
            }
            tokio::time::sleep(backoff(empty.max(failures) + 1).max(pause)).await;
        }
    }

    /// Reads one stream to its end. Returns whether it was empty.
    async fn read_to_end(&self, mut stream: HttpExchange, session: &Session) -> bool {
        let mut is_empty = true;
        while let Ok(mut message) = stream.next().await {
            is_empty &= matches!(message, Incoming::Alive);
            if let Incoming::Request { .. } = message {
                match self.asks.offer(message) {
                    Ok(()) => continue,
                    Err(ask) => message = ask,
                }
            }
            if let Some(answer) = take_stray(message, &self.notifications) {
                self.post(&Outgoing::unanswered(answer, session.headers()))
                    .await;
            }
        }
        is_empty
    }

    async fn post(&self, message: &Outgoing) {
        match within(SEND_TIMEOUT, self.link.tell(message)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!(?error, "message not delivered"),
            None => tracing::debug!("message not delivered in time"),
        }
    }
}

fn headers(session: &watch::Receiver<Session>) -> http::HeaderMap {
    session.borrow().headers()
}
