//! What goes on beside the calls to an older server over HTTP: it is heard on a stream of its own, told of requests
//! nobody waits for any longer, and told when the session is over.

use super::{Beside, Session, take_stray};
use crate::client::back_off;
use crate::news::News;
use crate::transport::{HttpLink, Incoming, LinkError, Outgoing};
use futures_util::FutureExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How often, one time after the other, the stream may bring nothing before it is given up.
const SILENT_MAX: u32 = 5;
/// The time for a message of ours to get through.
const PATIENCE: Duration = Duration::from_secs(5);

/// The task beside the calls. It ends with this.
#[derive(Debug)]
pub(super) struct Keeper {
    cancelled: mpsc::UnboundedSender<u64>,
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
        let ending = tokio::spawn(keep(link, session, waiting, (news, beside)));
        Self { cancelled, ending }
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

async fn keep(
    link: Arc<HttpLink>,
    mut session: watch::Receiver<Session>,
    mut cancelled: mpsc::UnboundedReceiver<u64>,
    (news, beside): (News, Beside),
) {
    let present = session.borrow_and_update().clone();
    let mut hearing = pin!(hear(&link, present, &news, &beside).fuse());
    loop {
        tokio::select! {
            id = cancelled.recv() => match id {
                Some(id) => {
                    let headers = session.borrow().headers();
                    post(&link, &Outgoing::cancelled(id, headers)).await;
                }
                None => break,
            },
            changed = session.changed() => if changed.is_ok() {
                let present = session.borrow_and_update().clone();
                hearing.set(hear(&link, present, &news, &beside).fuse());
            } else {
                break;
            },
            () = &mut hearing => {}
        }
    }
    while let Ok(id) = cancelled.try_recv() {
        let headers = session.borrow().headers();
        post(&link, &Outgoing::cancelled(id, headers)).await;
    }
    let last = session.borrow().clone();
    if last.id.is_some() {
        // A server may refuse that, or be gone: the session ends by itself then.
        let _ = timeout(PATIENCE, link.delete(last.headers())).await;
    }
}

/// Hears what the server says outside of calls, for as long as it says something.
async fn hear(link: &Arc<HttpLink>, session: Session, news: &News, beside: &Beside) {
    let mut silent = 0;
    while silent < SILENT_MAX {
        silent += 1;
        match link.listen(&session.headers()).await {
            Ok(Some(mut stream)) => {
                while let Ok(message) = stream.next().await {
                    silent = 0;
                    let message = match message {
                        ask @ Incoming::Request { .. } => match beside.offer(ask) {
                            Ok(()) => continue,
                            Err(ask) => ask,
                        },
                        message => message,
                    };
                    if let Some(answer) = take_stray(message, news) {
                        post(link, &Outgoing::unanswered(answer, session.headers())).await;
                    }
                }
            }
            Err(LinkError::NotSent(_) | LinkError::Lost(_)) => {}
            // It has none.
            _ => return,
        }
        tokio::time::sleep(back_off(silent + 1)).await;
    }
}

async fn post(link: &HttpLink, message: &Outgoing) {
    match timeout(PATIENCE, link.tell(message)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(?error, "the server was not told"),
        Err(_) => tracing::debug!("the server was not told in time"),
    }
}
