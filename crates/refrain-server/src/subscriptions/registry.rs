//! Open subscriptions and their pending changes.

use super::subscribed::UriCounts;
use super::{SubscribeError, Subscription};
use crate::auth::Caller;
use crate::catalog::{ChangedLists, normalize_uri};
use crate::limits::{LimitKey, LimitReached, Limiter, Permit};
use crate::tasks::TaskSubscription;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use refrain_wire::{Change, Filter};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

pub(super) const STOPPING: &str = "the server is shutting down: subscribe again";
const EVICTED: &str = "this subscription was ended to make room for other callers, because its anonymous caller had the most \
     subscriptions: subscribe again later";

#[derive(Debug)]
pub(crate) struct Registry {
    listeners: Mutex<Listeners>,
    limiter: Arc<Limiter>,
}

#[derive(Debug, Default)]
struct Listeners {
    open: Vec<Arc<Listener>>,
    uris: UriCounts,
    closed: bool,
}

impl Registry {
    pub(crate) fn new(limiter: Arc<Limiter>) -> Arc<Self> {
        Arc::new(Self {
            listeners: Mutex::default(),
            limiter,
        })
    }

    /// Opens a subscription to the changes that match the filter, until the caller's access expires.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        filter: Filter,
        tasks: Option<Box<TaskSubscription>>,
        caller: Caller,
    ) -> Result<Subscription, SubscribeError> {
        let mut listeners = self.listeners.lock();
        if listeners.closed {
            return Err(SubscribeError::Closed);
        }
        let permit = self.acquire(&listeners, &caller.limit_key())?;
        let uris = filter
            .uris
            .iter()
            .map(|uri| normalize_uri(uri).into_owned());
        let listener = Arc::new(Listener {
            uris: uris.collect(),
            caller,
            filter,
            pending: Mutex::default(),
            permit: Mutex::new(Some(permit)),
        });
        listeners.uris.add(&listener.filter.uris);
        listeners.open.push(listener.clone());
        Ok(Subscription::new(self.clone(), listener, tasks))
    }

    /// Takes a permit. If other callers use up the limit, evicts the oldest subscription of the anonymous caller that has the
    /// most subscriptions.
    fn acquire(&self, listeners: &Listeners, key: &LimitKey) -> Result<Permit, LimitReached> {
        let reached = match self.limiter.acquire(key.clone()) {
            Err(reached) if reached.is_caused_by_others() => reached,
            acquired => return acquired,
        };
        let largest = self.limiter.largest_anonymous(key, 1).ok_or(reached)?;
        let is_of_largest = |listener: &&Arc<Listener>| {
            listener.permit.lock().is_some() && listener.caller.limit_key() == largest
        };
        let oldest = listeners.open.iter().find(is_of_largest).ok_or(reached)?;
        *oldest.permit.lock() = None;
        oldest.end(EVICTED);
        self.limiter.acquire(key.clone())
    }

    pub(crate) fn len(&self) -> usize {
        self.listeners.lock().open.len()
    }

    pub(super) fn uris(&self) -> MappedMutexGuard<'_, UriCounts> {
        MutexGuard::map(self.listeners.lock(), |listeners| &mut listeners.uris)
    }

    pub(crate) fn lists_changed(&self, changed: ChangedLists) {
        self.notify(|listener, pending| {
            let filter = &listener.filter;
            let tools = changed.tools && filter.tools;
            let prompts = changed.prompts && filter.prompts;
            let resources = changed.resources && filter.resources;
            pending.tools |= tools;
            pending.prompts |= prompts;
            pending.resources |= resources;
            tools || prompts || resources
        });
    }

    /// Notifies allowed clients that the resource at this normalized URI changed.
    pub(crate) fn resource_updated(&self, uri: &str, is_allowed: impl Fn(&Caller) -> bool) {
        self.notify(|listener, pending| {
            let uris = listener.uris.iter().enumerate();
            let mut matching = uris.filter(|(_, subscribed)| *subscribed == uri).peekable();
            if matching.peek().is_none() || !is_allowed(&listener.caller) {
                return false;
            }
            for (index, _) in matching {
                if !pending.uris.contains(&index) {
                    pending.uris.push_back(index);
                }
            }
            true
        });
    }

    pub(crate) fn close(&self) {
        self.listeners.lock().closed = true;
        self.notify(|_, pending| {
            pending.end_reason = Some(STOPPING);
            true
        });
    }

    /// Wakes each client for which `add_change` returns true.
    fn notify(&self, add_change: impl Fn(&Listener, &mut Pending) -> bool) {
        let mut wakers = Vec::new();
        for listener in &self.listeners.lock().open {
            let mut pending = listener.pending.lock();
            if add_change(listener, &mut pending) {
                wakers.extend(pending.waker.take());
            }
        }
        // Without the locks, because a waker may run arbitrary code.
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn remove(&self, listener: &Arc<Listener>) {
        let mut listeners = self.listeners.lock();
        listeners.open.retain(|open| !Arc::ptr_eq(open, listener));
        listeners.uris.remove(&listener.filter.uris);
    }
}

/// A subscribed client with its filter and pending changes.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) caller: Caller,
    pub(super) filter: Filter,
    /// The normalized URIs of the filter, in the same order.
    pub(super) uris: Vec<String>,
    pub(super) pending: Mutex<Pending>,
    /// `None`: the subscription was evicted.
    permit: Mutex<Option<Permit>>,
}

impl Listener {
    /// Ends the stream after the pending changes of lists and resources.
    pub(super) fn end(&self, reason: &'static str) {
        let mut pending = self.pending.lock();
        pending.end_reason = Some(reason);
        let waker = pending.waker.take();
        drop(pending);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The pending changes of a subscription.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) tools: bool,
    pub(super) prompts: bool,
    pub(super) resources: bool,
    /// Indexes into the URIs of the filter, each at most once.
    pub(super) uris: VecDeque<usize>,
    pub(super) end_reason: Option<&'static str>,
    pub(super) waker: Option<Waker>,
}

impl Pending {
    pub(super) fn next<'a>(&mut self, filter: &'a Filter) -> Option<Change<'a>> {
        if std::mem::take(&mut self.tools) {
            return Some(Change::Tools);
        }
        if std::mem::take(&mut self.prompts) {
            return Some(Change::Prompts);
        }
        if std::mem::take(&mut self.resources) {
            return Some(Change::Resources);
        }
        let index = self.uris.pop_front()?;
        Some(Change::Resource(&filter.uris[index]))
    }
}
