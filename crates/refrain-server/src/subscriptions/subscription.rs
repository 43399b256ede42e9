//! The stream of notifications to one client.

use super::registry::{Listener, Pending, Registry, STOPPING};
use crate::tasks::TaskSubscription;
use refrain_wire::ratified::{
    write_acknowledged, write_change, write_error, write_listen_cancelled, write_listen_end,
    write_task_change,
};
use refrain_wire::{Change, Filter, Id, RpcError};
use serde_json::value::RawValue;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;
use tokio::time::Sleep;

const EXPIRED: &str = "the access token has expired: subscribe again with a new one";

/// A stream of notifications to one client. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    registry: Arc<Registry>,
    listener: Arc<Listener>,
    tasks: Option<Box<TaskSubscription>>,
    stage: SubscriptionStage,
    expiry: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscriptionStage {
    Open,
    Listening,
    /// The reply was sent, and the cancellation follows. Clients stop at the first of the two; a client that gets the
    /// cancellation first treats the subscription as lost.
    Ending(&'static str),
    Ended,
}

impl Subscription {
    pub(super) fn new(
        registry: Arc<Registry>,
        listener: Arc<Listener>,
        tasks: Option<Box<TaskSubscription>>,
    ) -> Self {
        let expiry = listener.caller.expires.map(|end| {
            let left = end.duration_since(SystemTime::now());
            Box::pin(tokio::time::sleep(left.unwrap_or_default()))
        });
        Self {
            registry,
            listener,
            tasks,
            stage: SubscriptionStage::Open,
            expiry,
        }
    }

    /// The next message of the stream. `None` at its end.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        id: Id<'_>,
        server_info: &RawValue,
    ) -> Poll<Option<Vec<u8>>> {
        let mut out = Vec::with_capacity(256);
        match self.stage {
            SubscriptionStage::Open => match self.poll_open(cx) {
                Poll::Ready(Ok(filter)) => {
                    self.stage = SubscriptionStage::Listening;
                    write_acknowledged(&mut out, id, &filter);
                }
                Poll::Ready(Err(error)) => {
                    self.stage = SubscriptionStage::Ended;
                    write_error(&mut out, Some(id.as_json()), &error);
                }
                Poll::Pending => {
                    self.expire(cx);
                    let mut pending = self.listener.pending.lock();
                    let Some(reason) = pending.end_reason else {
                        pending.waker = Some(cx.waker().clone());
                        return Poll::Pending;
                    };
                    self.stage = SubscriptionStage::Ending(reason);
                    write_listen_end(&mut out, id, server_info);
                }
            },
            SubscriptionStage::Listening => {
                self.expire(cx);
                let mut pending = self.listener.pending.lock();
                if let Some(change) = pending.next(&self.listener.filter) {
                    write_change(&mut out, id, change);
                } else if let Some(reason) = pending.end_reason {
                    self.stage = SubscriptionStage::Ending(reason);
                    write_listen_end(&mut out, id, server_info);
                } else {
                    pending.waker = Some(cx.waker().clone());
                    drop(pending);
                    let Some(tasks) = &mut self.tasks else {
                        return Poll::Pending;
                    };
                    write_task_change(&mut out, id, &ready!(tasks.poll_next(cx)));
                }
            }
            SubscriptionStage::Ending(reason) => {
                self.stage = SubscriptionStage::Ended;
                write_listen_cancelled(&mut out, id, reason);
            }
            SubscriptionStage::Ended => return Poll::Ready(None),
        }
        Poll::Ready(Some(out))
    }

    /// The next change, serialized with `write`. `None` if the subscription has ended.
    pub(crate) fn poll_change<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Change<'_>) -> T,
    ) -> Poll<Option<T>> {
        self.expire(cx);
        let mut pending = self.listener.pending.lock();
        if let Some(change) = pending.next(&self.listener.filter) {
            return Poll::Ready(Some(write(change)));
        }
        if pending.end_reason.is_some() {
            return Poll::Ready(None);
        }
        pending.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn take_change<T>(&mut self, write: impl FnOnce(Change<'_>) -> T) -> Option<T> {
        let change = self.listener.pending.lock().next(&self.listener.filter);
        change.map(write)
    }

    /// The filter to acknowledge. It contains only tasks that exist.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<Filter, RpcError>> {
        let mut filter = self.listener.filter.clone();
        if let Some(tasks) = &mut self.tasks {
            filter.tasks = ready!(tasks.poll_open(cx))?;
        }
        Poll::Ready(Ok(filter))
    }

    /// Ends the subscription and drops pending changes once the caller's access has expired.
    fn expire(&mut self, cx: &mut Context<'_>) {
        if let Some(expiry) = &mut self.expiry
            && expiry.as_mut().poll(cx).is_ready()
        {
            self.expiry = None;
            *self.listener.pending.lock() = Pending {
                end_reason: Some(EXPIRED),
                ..Pending::default()
            };
        }
    }

    /// Ends the stream after the pending changes of lists and resources.
    pub(crate) fn end(&self) {
        self.listener.end(STOPPING);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.registry.remove(&self.listener);
    }
}
