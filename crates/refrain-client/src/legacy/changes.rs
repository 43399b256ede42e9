//! Subscriptions to changes of a legacy server.
//!
//! A legacy server announces changes on any stream, to all subscriptions of the connection. Each subscription keeps the
//! distinct changes that its reader has not taken yet, so that a burst of them needs little memory.

use super::Legacy;
use crate::client::ClientInner;
use crate::error::ErrorKind;
use crate::listen::ServerChange;
use parking_lot::Mutex;
use refrain_wire::Filter;
use refrain_wire::client::{Request, ServerInfo};
use refrain_wire::limited_event;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The maximum number of unread changes of a subscription.
const WAITING_MAX: usize = 1000;

/// The subscriptions of a connection.
#[derive(Default)]
pub(crate) struct ChangeHub(Mutex<Vec<Weak<ChangeQueue>>>);

struct ChangeQueue {
    filter: Filter,
    waiting: Mutex<WaitingChanges>,
    changed: Notify,
}

#[derive(Default)]
struct WaitingChanges {
    changes: VecDeque<ServerChange>,
    has_ended: bool,
}

impl ChangeHub {
    fn subscribe(&self, filter: Filter) -> Arc<ChangeQueue> {
        let queue = Arc::new(ChangeQueue {
            filter,
            waiting: Mutex::default(),
            changed: Notify::new(),
        });
        let mut queues = self.0.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        queue
    }

    fn queues(&self) -> Vec<Arc<ChangeQueue>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn has_subscriber(&self, uri: &str) -> bool {
        let queues = self.queues();
        let mut uris = queues.iter().flat_map(|queue| &queue.filter.uris);
        uris.any(|subscribed| subscribed == uri)
    }

    /// Passes a change to the subscriptions whose filter includes it.
    pub(crate) fn announce(&self, change: &ServerChange) {
        for queue in self.queues() {
            queue.add(change);
        }
    }

    /// Ends all subscriptions, because the server has lost them.
    pub(crate) fn end_all(&self) {
        for queue in self.queues() {
            queue.waiting.lock().has_ended = true;
            queue.changed.notify_one();
        }
    }
}

/// Whether a URI is that of a resource, or of a part of it.
fn is_part_of(uri: &str, resource: &str) -> bool {
    uri.strip_prefix(resource).is_some_and(|rest| {
        rest.is_empty() || resource.ends_with('/') || rest.starts_with(['/', '?', '#'])
    })
}

impl ChangeQueue {
    fn add(&self, change: &ServerChange) {
        let filter = &self.filter;
        let is_subscribed = match change {
            ServerChange::Tools => filter.tools,
            ServerChange::Prompts => filter.prompts,
            ServerChange::Resources => filter.resources,
            ServerChange::Resource(uri) => filter.uris.iter().any(|other| is_part_of(uri, other)),
            ServerChange::Task(_) => false,
        };
        let changes = &mut self.waiting.lock().changes;
        if !is_subscribed || changes.contains(change) {
            return;
        }
        if changes.len() == WAITING_MAX {
            limited_event!(WARN, ?change, "change dropped: too many unread changes");
            return;
        }
        changes.push_back(change.clone());
        self.changed.notify_one();
    }

    async fn next(&self) -> Option<ServerChange> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                let change = waiting.changes.pop_front();
                if change.is_some() || waiting.has_ended {
                    return change;
                }
            }
            self.changed.notified().await;
        }
    }
}

/// A subscription to changes of a legacy server. Dropping it unsubscribes from its resources.
pub(crate) struct LegacySubscription {
    inner: Arc<ClientInner>,
    queue: Arc<ChangeQueue>,
}

impl LegacySubscription {
    /// Subscribes, and returns the changes that the server has agreed to announce.
    pub(crate) async fn open(
        inner: &Arc<ClientInner>,
        legacy: &Legacy,
        filter: &Filter,
    ) -> Result<(Self, Filter), ErrorKind> {
        // The ping renews a lost session. Without resources, the subscription sends no request that would.
        match inner.ping().await {
            Ok(()) | Err(ErrorKind::Rpc(_)) => {}
            Err(error) => return Err(error),
        }
        let mut granted = offered(inner.connection.server(), filter);
        let _guard = legacy.subscription_lock.lock().await;
        let filter = Filter {
            uris: granted.uris.clone(),
            ..filter.clone()
        };
        let subscription = Self {
            inner: Arc::clone(inner),
            queue: inner.setup.notifications.changes.subscribe(filter),
        };
        let mut rejected = Vec::new();
        for uri in &granted.uris {
            match inner.request(Request::subscribe(uri)).await {
                Ok(_) => {}
                Err(ErrorKind::Rpc(failure)) => {
                    tracing::debug!(uri, %failure, "subscription rejected");
                    rejected.push(uri.clone());
                }
                Err(error) => return Err(error),
            }
        }
        granted.uris.retain(|uri| !rejected.contains(uri));
        Ok((subscription, granted))
    }

    pub(crate) async fn next(&self) -> Option<ServerChange> {
        self.queue.next().await
    }
}

impl Drop for LegacySubscription {
    fn drop(&mut self) {
        let uris = self.queue.filter.uris.clone();
        let has_ended = self.queue.waiting.lock().has_ended;
        if let (false, false, Ok(runtime)) = (uris.is_empty(), has_ended, Handle::try_current()) {
            runtime.spawn(unsubscribe(Arc::clone(&self.inner), uris));
        }
    }
}

/// Unsubscribes from resources that have no other subscriber.
async fn unsubscribe(inner: Arc<ClientInner>, uris: Vec<String>) {
    let Some(legacy) = inner.connection.legacy() else {
        return;
    };
    // Another subscription may be in progress.
    let _guard = legacy.subscription_lock.lock().await;
    for uri in uris {
        if !inner.setup.notifications.changes.has_subscriber(&uri)
            && let Err(error) = inner.request(Request::unsubscribe(&uri)).await
        {
            tracing::debug!(uri, %error, "failed to unsubscribe");
        }
    }
}

/// The part of a filter that the server offers.
fn offered(server: &ServerInfo, filter: &Filter) -> Filter {
    let offers = |list: &str, feature: &str| {
        let capability = server.capabilities.get(list);
        capability.is_some_and(|capability| capability[feature] == Value::Bool(true))
    };
    Filter {
        tools: filter.tools && offers("tools", "listChanged"),
        prompts: filter.prompts && offers("prompts", "listChanged"),
        resources: filter.resources && offers("resources", "listChanged"),
        uris: match offers("resources", "subscribe") {
            true => filter.uris.clone(),
            false => Vec::new(),
        },
        tasks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_part_of;

    #[test]
    fn update_of_a_part_is_an_update_of_the_resource() {
        for part in ["file:///a", "file:///a/b", "file:///a#b"] {
            assert!(is_part_of(part, "file:///a"), "{part}");
        }
        assert!(is_part_of("file:///a/b", "file:///a/"));
        assert!(!is_part_of("file:///ab", "file:///a"));
    }
}
