//! The stream of one client.

use super::registry::{Listener, Pending, Registry, STOPPING};
use crate::limits::Permit;
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
use std::task::{Context, Poll, Waker, ready};
use std::time::SystemTime;
use tokio::time::Sleep;

const EXPIRED: &str = "the access token has expired; listen again with another";

/// The stream of one client. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    registry: Arc<Registry>,
    listener: Arc<Listener>,
    /// The changes of the tasks in its filter.
    tasks: Option<Box<TaskSubscription>>,
    stage: Stage,
    /// Fires when the caller's access expires.
    left: Option<Pin<Box<Sleep>>>,
    _permit: Permit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    Listening,
    /// The reply was sent, the cancellation follows. In this order: clients take the first of them for the end, and a
    /// cancelled subscription for a lost one.
    Ending(&'static str),
    Over,
}

impl Subscription {
    pub(super) fn new(
        registry: Arc<Registry>,
        listener: Arc<Listener>,
        tasks: Option<Box<TaskSubscription>>,
        permit: Permit,
    ) -> Self {
        let left = listener.caller.expires.map(|end| {
            let left = end.duration_since(SystemTime::now());
            Box::pin(tokio::time::sleep(left.unwrap_or_default()))
        });
        Self {
            registry,
            listener,
            tasks,
            stage: Stage::Open,
            left,
            _permit: permit,
        }
    }

    /// The next message of the stream. `None` when it is over.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        id: Id<'_>,
        server_info: &RawValue,
    ) -> Poll<Option<Vec<u8>>> {
        let mut out = Vec::with_capacity(256);
        match self.stage {
            Stage::Open => match self.poll_open(cx) {
                Poll::Ready(Ok(filter)) => {
                    self.stage = Stage::Listening;
                    write_acknowledged(&mut out, id, &filter);
                }
                Poll::Ready(Err(error)) => {
                    self.stage = Stage::Over;
                    write_error(&mut out, Some(id.as_json()), &error);
                }
                Poll::Pending => {
                    self.expire(cx);
                    let mut pending = self.listener.pending.lock();
                    let Some(reason) = pending.ended else {
                        pending.waker = Some(cx.waker().clone());
                        return Poll::Pending;
                    };
                    self.stage = Stage::Ending(reason);
                    write_listen_end(&mut out, id, server_info);
                }
            },
            Stage::Listening => {
                self.expire(cx);
                let mut pending = self.listener.pending.lock();
                if let Some(change) = pending.next(&self.listener.filter) {
                    write_change(&mut out, id, change);
                } else if let Some(reason) = pending.ended {
                    self.stage = Stage::Ending(reason);
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
            Stage::Ending(reason) => {
                self.stage = Stage::Over;
                write_listen_cancelled(&mut out, id, reason);
            }
            Stage::Over => return Poll::Ready(None),
        }
        Poll::Ready(Some(out))
    }

    /// The next change as `write` returns it. `None`: the subscription has ended.
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
        if pending.ended.is_some() {
            return Poll::Ready(None);
        }
        pending.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn take_change<T>(&mut self, write: impl FnOnce(Change<'_>) -> T) -> Option<T> {
        let change = self.listener.pending.lock().next(&self.listener.filter);
        change.map(write)
    }

    /// The acknowledged filter: of its tasks, those that were found.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<Filter, RpcError>> {
        let mut filter = self.listener.filter.clone();
        if let Some(tasks) = &mut self.tasks {
            filter.tasks = ready!(tasks.poll_open(cx))?;
        }
        Poll::Ready(Ok(filter))
    }

    /// Ends it once the caller's access has expired, without the pending changes.
    fn expire(&mut self, cx: &mut Context<'_>) {
        if let Some(left) = &mut self.left
            && left.as_mut().poll(cx).is_ready()
        {
            self.left = None;
            *self.listener.pending.lock() = Pending {
                ended: Some(EXPIRED),
                ..Pending::default()
            };
        }
    }

    /// Ends the stream after the pending changes, except those of tasks.
    pub(crate) fn end(&self) {
        let mut pending = self.listener.pending.lock();
        pending.ended = Some(STOPPING);
        let waker = pending.waker.take();
        drop(pending);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.registry.forget(&self.listener);
    }
}
