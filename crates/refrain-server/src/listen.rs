//! Clients that listen: who wants to hear of what, and what they have not been told yet.
//!
//! What always holds: what waits for a slow client is bounded by what it listens for. A change that it was not told of
//! yet is not noted a second time, since one notification says as much as two.

use crate::auth::Caller;
use crate::catalog::{Changed, normal};
use crate::limits::{LimitKey, LimitReached, Limiter, Permit};
use crate::tasks::TaskNews;
use parking_lot::Mutex;
use refrain_wire::{
    Change, Filter, Id, RpcError, write_acknowledged, write_change, write_error,
    write_listen_cancelled, write_listen_end, write_task_change,
};
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::SystemTime;
use tokio::time::Sleep;

const STOPPING: &str = "the server is stopping; listen again";
const EXPIRED: &str = "the access token has expired; listen again with another";

/// All clients that listen.
#[derive(Debug)]
pub(crate) struct Hub {
    listeners: Mutex<Listeners>,
    limiter: Arc<Limiter>,
}

#[derive(Debug, Default)]
struct Listeners {
    open: Vec<Arc<Listener>>,
    closed: bool,
}

/// One client that listens.
#[derive(Debug)]
struct Listener {
    caller: Caller,
    filter: Filter,
    /// The filter's URIs in their normal form, in its order.
    uris: Vec<String>,
    news: Mutex<News>,
}

/// What a client was not told yet.
#[derive(Debug, Default)]
struct News {
    tools: bool,
    prompts: bool,
    resources: bool,
    /// Places in the filter's list of URIs, each at most once.
    uris: VecDeque<usize>,
    /// Why it is over, once it is.
    ended: Option<&'static str>,
    waker: Option<Waker>,
}

/// Why nobody more may listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// As many listen as may.
    Full(usize),
    /// As many of this caller's listen as may.
    FullForCaller(usize),
    /// The server is on its way out.
    Closed,
}

impl Hub {
    pub(crate) fn new(limiter: Arc<Limiter>) -> Arc<Self> {
        Arc::new(Self {
            listeners: Mutex::default(),
            limiter,
        })
    }

    /// Begins to note what this filter lets through, for as long as the caller is known.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        filter: Filter,
        tasks: Option<Box<TaskNews>>,
        caller: Caller,
    ) -> Result<Subscription, NoPlace> {
        let mut listeners = self.listeners.lock();
        if listeners.closed {
            return Err(NoPlace::Closed);
        }
        // Anonymous callers cannot be told apart.
        let key = caller.principal.id();
        let permit = self
            .limiter
            .acquire(key.map(|id| LimitKey::Principal(id.into())))
            .map_err(|reached| match reached {
                LimitReached::Total { limit, .. } => NoPlace::Full(limit),
                LimitReached::Caller { limit, .. } => NoPlace::FullForCaller(limit),
            })?;
        let left = caller.expires.map(|end| {
            let left = end.duration_since(SystemTime::now());
            Box::pin(tokio::time::sleep(left.unwrap_or_default()))
        });
        let uris = filter.uris.iter().map(|uri| normal(uri).into_owned());
        let listener = Arc::new(Listener {
            uris: uris.collect(),
            caller,
            filter,
            news: Mutex::default(),
        });
        listeners.open.push(listener.clone());
        Ok(Subscription {
            hub: self.clone(),
            listener,
            tasks,
            stage: Stage::Open,
            left,
            _permit: permit,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.listeners.lock().open.len()
    }

    pub(crate) fn lists_changed(&self, changed: Changed) {
        self.tell(|listener, news| {
            let filter = &listener.filter;
            let tools = changed.tools && filter.tools;
            let prompts = changed.prompts && filter.prompts;
            let resources = changed.resources && filter.resources;
            news.tools |= tools;
            news.prompts |= prompts;
            news.resources |= resources;
            tools || prompts || resources
        });
    }

    /// The resource at this URI, in its normal form, changed; only those who may know are told.
    pub(crate) fn resource_updated(&self, uri: &str, may: impl Fn(&Caller) -> bool) {
        self.tell(|listener, news| {
            let uris = listener.uris.iter().enumerate();
            let places: Vec<usize> = uris
                .filter(|(_, known)| *known == uri)
                .map(|(place, _)| place)
                .collect();
            if places.is_empty() || !may(&listener.caller) {
                return false;
            }
            for place in places {
                if !news.uris.contains(&place) {
                    news.uris.push_back(place);
                }
            }
            true
        });
    }

    /// Ends every subscription, and lets none begin any more.
    pub(crate) fn close(&self) {
        self.listeners.lock().closed = true;
        self.tell(|_, news| {
            news.ended = Some(STOPPING);
            true
        });
    }

    /// Notes something for each listener that `note` says it concerns, and wakes it.
    fn tell(&self, note: impl Fn(&Listener, &mut News) -> bool) {
        let mut wakers = Vec::new();
        for listener in &self.listeners.lock().open {
            let mut news = listener.news.lock();
            if note(listener, &mut news) {
                wakers.extend(news.waker.take());
            }
        }
        // Outside of the locks: a waker is somebody else's code.
        wakers.into_iter().for_each(Waker::wake);
    }

    fn forget(&self, listener: &Arc<Listener>) {
        let mut listeners = self.listeners.lock();
        listeners.open.retain(|open| !Arc::ptr_eq(open, listener));
    }
}

/// The stream of one client that listens. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    listener: Arc<Listener>,
    /// What becomes of the tasks that it is about.
    tasks: Option<Box<TaskNews>>,
    stage: Stage,
    /// Until the caller is no longer known.
    left: Option<Pin<Box<Sleep>>>,
    _permit: Permit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was said yet.
    Open,
    Listening,
    /// The response was sent; that the stream is torn down is left to say. In this order: clients take whichever comes
    /// first for the end, and a cancelled subscription for one that was lost.
    Ending(&'static str),
    Over,
}

impl Subscription {
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
                    let mut news = self.listener.news.lock();
                    let Some(reason) = news.ended else {
                        news.waker = Some(cx.waker().clone());
                        return Poll::Pending;
                    };
                    self.stage = Stage::Ending(reason);
                    write_listen_end(&mut out, id, server_info);
                }
            },
            Stage::Listening => {
                self.expire(cx);
                let mut news = self.listener.news.lock();
                if let Some(change) = news.next(&self.listener.filter) {
                    write_change(&mut out, id, change);
                } else if let Some(reason) = news.ended {
                    self.stage = Stage::Ending(reason);
                    write_listen_end(&mut out, id, server_info);
                } else {
                    news.waker = Some(cx.waker().clone());
                    drop(news);
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

    /// The next change, as `tell` puts it, and nothing else. `None`: it is over.
    pub(crate) fn poll_change<T>(
        &mut self,
        cx: &mut Context<'_>,
        tell: impl FnOnce(Change<'_>) -> T,
    ) -> Poll<Option<T>> {
        self.expire(cx);
        let mut news = self.listener.news.lock();
        if let Some(change) = news.next(&self.listener.filter) {
            return Poll::Ready(Some(tell(change)));
        }
        if news.ended.is_some() {
            return Poll::Ready(None);
        }
        news.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// A change that was noted already, as `tell` puts it.
    pub(crate) fn take_change<T>(&mut self, tell: impl FnOnce(Change<'_>) -> T) -> Option<T> {
        let change = self.listener.news.lock().next(&self.listener.filter);
        change.map(tell)
    }

    /// What of the client's wishes is acknowledged: of tasks, those that were found.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<Filter, RpcError>> {
        let mut filter = self.listener.filter.clone();
        if let Some(tasks) = &mut self.tasks {
            filter.tasks = ready!(tasks.poll_open(cx))?;
        }
        Poll::Ready(Ok(filter))
    }

    /// Ends it if the caller is no longer known. What is left to tell is then no longer theirs to know.
    fn expire(&mut self, cx: &mut Context<'_>) {
        if let Some(left) = &mut self.left
            && left.as_mut().poll(cx).is_ready()
        {
            self.left = None;
            *self.listener.news.lock() = News {
                ended: Some(EXPIRED),
                ..News::default()
            };
        }
    }

    /// Ends the stream from this side: what is left to tell is told, then that it is over. What became of tasks is not
    /// looked up any more: whoever listens again is told how they stand.
    pub(crate) fn end(&self) {
        let mut news = self.listener.news.lock();
        news.ended = Some(STOPPING);
        let waker = news.waker.take();
        drop(news);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.forget(&self.listener);
    }
}

impl News {
    fn next<'a>(&mut self, filter: &'a Filter) -> Option<Change<'a>> {
        if std::mem::take(&mut self.tools) {
            return Some(Change::Tools);
        }
        if std::mem::take(&mut self.prompts) {
            return Some(Change::Prompts);
        }
        if std::mem::take(&mut self.resources) {
            return Some(Change::Resources);
        }
        let place = self.uris.pop_front()?;
        Some(Change::Resource(&filter.uris[place]))
    }
}
