//! Clients that listen: who wants to hear of what, and what they have not been told yet.
//!
//! What always holds: what waits for a slow client is bounded by what it listens for. A change that it was not told of
//! yet is not noted a second time, since one notification says as much as two.

use crate::catalog::Changed;
use refrain_wire::{
    Change, Filter, Id, write_acknowledged, write_change, write_listen_cancelled, write_listen_end,
};
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// All clients that listen.
#[derive(Debug)]
pub(crate) struct Hub {
    listeners: Mutex<Listeners>,
    most: usize,
}

#[derive(Debug, Default)]
struct Listeners {
    open: Vec<Arc<Listener>>,
    closed: bool,
}

/// One client that listens.
#[derive(Debug)]
struct Listener {
    filter: Filter,
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
    ended: bool,
    waker: Option<Waker>,
}

impl Hub {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            listeners: Mutex::default(),
            most,
        })
    }

    /// Begins to note what this filter lets through. `None`: all places are taken.
    pub(crate) fn subscribe(self: &Arc<Self>, filter: Filter) -> Option<Subscription> {
        let mut listeners = lock(&self.listeners);
        if listeners.open.len() >= self.most {
            return None;
        }
        let news = News {
            ended: listeners.closed,
            ..News::default()
        };
        let listener = Arc::new(Listener {
            filter,
            news: Mutex::new(news),
        });
        listeners.open.push(listener.clone());
        Some(Subscription {
            hub: self.clone(),
            listener,
            stage: Stage::Open,
        })
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.listeners).open.len()
    }

    pub(crate) fn lists_changed(&self, changed: Changed) {
        self.tell(|filter, news| {
            news.tools |= changed.tools && filter.tools;
            news.prompts |= changed.prompts && filter.prompts;
            news.resources |= changed.resources && filter.resources;
            (changed.tools && filter.tools)
                || (changed.prompts && filter.prompts)
                || (changed.resources && filter.resources)
        });
    }

    pub(crate) fn resource_updated(&self, uri: &str) {
        self.tell(|filter, news| {
            let Ok(place) = filter
                .uris
                .binary_search_by(|known| known.as_str().cmp(uri))
            else {
                return false;
            };
            if !news.uris.contains(&place) {
                news.uris.push_back(place);
            }
            true
        });
    }

    /// Ends every subscription, and those that begin later at once.
    pub(crate) fn close(&self) {
        lock(&self.listeners).closed = true;
        self.tell(|_, news| {
            news.ended = true;
            true
        });
    }

    /// Notes something for each listener that `note` says it concerns, and wakes it.
    fn tell(&self, note: impl Fn(&Filter, &mut News) -> bool) {
        let mut wakers = Vec::new();
        for listener in &lock(&self.listeners).open {
            let mut news = lock(&listener.news);
            if note(&listener.filter, &mut news) {
                wakers.extend(news.waker.take());
            }
        }
        // Outside of the locks: a waker is somebody else's code.
        wakers.into_iter().for_each(Waker::wake);
    }

    fn forget(&self, listener: &Arc<Listener>) {
        let mut listeners = lock(&self.listeners);
        listeners.open.retain(|open| !Arc::ptr_eq(open, listener));
    }
}

/// The stream of one client that listens. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    listener: Arc<Listener>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was said yet.
    Open,
    Listening,
    /// The client was told that the stream ends; the response is left to say.
    Ending,
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
            Stage::Open => {
                self.stage = Stage::Listening;
                write_acknowledged(&mut out, id, &self.listener.filter);
            }
            Stage::Listening => {
                let mut news = lock(&self.listener.news);
                if let Some(change) = news.next(&self.listener.filter) {
                    write_change(&mut out, id, change);
                } else if news.ended {
                    self.stage = Stage::Ending;
                    write_listen_cancelled(&mut out, id, "the server is stopping; listen again");
                } else {
                    news.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
            Stage::Ending => {
                self.stage = Stage::Over;
                write_listen_end(&mut out, id, server_info);
            }
            Stage::Over => return Poll::Ready(None),
        }
        Poll::Ready(Some(out))
    }

    /// Ends the stream from this side: what is left to tell is told, then the response.
    pub(crate) fn end(&self) {
        let mut news = lock(&self.listener.news);
        news.ended = true;
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

/// A panic elsewhere does not stop the telling: what is noted is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
