//! The session stream of a legacy HTTP server, and messages outside of calls: cancellations and the end of the session.

use super::active_calls::ActiveCalls;
use super::{LegacySession, respond_to_stray};
use crate::retry::{RETRY_AFTER_MAX, backoff, within};
use crate::transport::{HttpExchange, HttpLink, IncomingMessage, LinkError, OutgoingMessage};
use futures_util::FutureExt;
use refrain_wire::Root;
use refrain_wire::limited_event;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Give up after this many consecutive streams that ended early without a message.
const EMPTY_MAX: u32 = 5;
/// A stream that ends within this time ends early.
const EARLY_END: Duration = Duration::from_secs(5);
/// Give up after this many consecutive failures: several minutes, enough for a server restart.
const FAILURES_MAX: u32 = 100;
/// The timeout for cancellations, for answers outside of calls, and for the end of the session.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the first call waits for the stream. Some servers send no headers before the first event.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct SessionStream {
    cancelled: mpsc::UnboundedSender<u64>,
    /// Whether the first GET of the stream has succeeded or failed.
    opened: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl SessionStream {
    pub(super) fn start(
        link: Arc<HttpLink>,
        session: watch::Receiver<LegacySession>,
        calls: Arc<ActiveCalls>,
        roots: Option<Arc<[Root]>>,
    ) -> Self {
        let (cancelled, cancellations) = mpsc::unbounded_channel();
        let (set_opened, opened) = watch::channel(false);
        let reader = SessionReader {
            link,
            calls,
            roots,
            set_opened,
        };
        Self {
            cancelled,
            opened,
            task: tokio::spawn(reader.run(session, cancellations)),
        }
    }

    /// Waits briefly for the stream to open. Otherwise notifications could be missed, and a server could take the GET
    /// for the resumption of a call's stream.
    pub(super) async fn wait_open(&self) {
        let mut opened = self.opened.clone();
        let opened = opened.wait_for(|opened| *opened);
        if within(OPEN_TIMEOUT, opened).await.is_none() {
            tracing::debug!("session stream not open yet");
        }
    }

    pub(super) fn cancel(&self, id: u64) {
        // The receiving task lives at least as long as `self`.
        let _ = self.cancelled.send(id);
    }

    pub(super) async fn close(self) {
        drop(self.cancelled);
        if self.task.await.is_err() {
            limited_event!(WARN, "session task panicked");
        }
    }
}

struct SessionReader {
    link: Arc<HttpLink>,
    calls: Arc<ActiveCalls>,
    roots: Option<Arc<[Root]>>,
    set_opened: watch::Sender<bool>,
}

impl SessionReader {
    async fn run(
        self,
        mut session: watch::Receiver<LegacySession>,
        mut cancelled: mpsc::UnboundedReceiver<u64>,
    ) {
        let current = session.borrow_and_update().clone();
        let mut reading = pin!(self.read(current).fuse());
        loop {
            tokio::select! {
                id = cancelled.recv() => match id {
                    Some(id) => self.post(&OutgoingMessage::cancelled(id, headers(&session))).await,
                    None => break,
                },
                changed = session.changed() => if changed.is_ok() {
                    let current = session.borrow_and_update().clone();
                    reading.set(self.read(current).fuse());
                } else {
                    break;
                },
                () = &mut reading => {}
            }
        }
        while let Ok(id) = cancelled.try_recv() {
            self.post(&OutgoingMessage::cancelled(id, headers(&session)))
                .await;
        }
        let last = session.borrow().clone();
        if last.id.is_some() {
            // If this fails, the session expires.
            let _ = within(SEND_TIMEOUT, self.link.delete(last.headers())).await;
        }
    }

    /// Reads the stream, and reopens it when it ends. Ends all subscriptions when it cannot be reopened.
    async fn read(&self, session: LegacySession) {
        if self.read_streams(session).await {
            self.calls.end_subscriptions();
        }
    }

    /// Reads streams until the server offers none. Returns whether any stream was open.
    async fn read_streams(&self, session: LegacySession) -> bool {
        let (mut empty, mut failures, mut has_opened) = (0, 0, false);
        while empty < EMPTY_MAX && failures < FAILURES_MAX {
            let stream = self.link.listen(&session.headers()).await;
            self.set_opened.send_replace(true);
            let mut pause = Duration::ZERO;
            match stream {
                Ok(Some(stream)) => {
                    let opened = Instant::now();
                    let is_empty = self.read_to_end(stream, &session).await;
                    let ended_early = is_empty && opened.elapsed() < EARLY_END;
                    empty = if ended_early { empty + 1 } else { 0 };
                    (failures, has_opened) = (0, true);
                }
                Err(LinkError::NotSent(_) | LinkError::Lost(_)) => failures += 1,
                Err(LinkError::Busy { retry_after, .. }) => {
                    failures += 1;
                    pause = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
                }
                Ok(None) | Err(LinkError::Final(_)) => return has_opened,
            }
            tokio::time::sleep(backoff(empty.max(failures) + 1).max(pause)).await;
        }
        has_opened
    }

    /// Reads one stream to its end. Returns whether it was empty.
    async fn read_to_end(&self, mut stream: HttpExchange, session: &LegacySession) -> bool {
        let mut is_empty = true;
        while let Ok(message) = stream.next().await {
            is_empty &= matches!(message, IncomingMessage::KeepAlive);
            self.receive(message, session).await;
        }
        is_empty
    }

    async fn receive(&self, message: IncomingMessage, session: &LegacySession) {
        match message {
            IncomingMessage::Response(_) | IncomingMessage::KeepAlive => {}
            IncomingMessage::Notification { method, params } => {
                let params = params.as_deref();
                if let Some(handlers) = self.calls.handlers_for(&method, params) {
                    handlers.handle(&method, params);
                }
            }
            request @ IncomingMessage::Request { .. } => {
                if let Err(IncomingMessage::Request { id, method, .. }) = self.calls.offer(request)
                {
                    let reply = respond_to_stray(&id, &method, self.roots.as_deref());
                    self.post(&OutgoingMessage::without_response(reply, session.headers()))
                        .await;
                }
            }
        }
    }

    async fn post(&self, message: &OutgoingMessage) {
        match within(SEND_TIMEOUT, self.link.send_message(message)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!(?error, "failed to send message"),
            None => tracing::debug!("sending message timed out"),
        }
    }
}

fn headers(session: &watch::Receiver<LegacySession>) -> http::HeaderMap {
    session.borrow().headers()
}
