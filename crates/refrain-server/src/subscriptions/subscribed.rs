//! The URIs of the resources that clients are subscribed to.

use super::Registry;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use tokio::sync::watch;

/// The number of subscriptions of each URI. The channel counts the changes of the set of URIs.
#[derive(Debug)]
pub(super) struct UriCounts {
    counts: HashMap<String, usize>,
    changes: watch::Sender<u64>,
}

impl Default for UriCounts {
    fn default() -> Self {
        Self {
            counts: HashMap::new(),
            changes: watch::Sender::new(0),
        }
    }
}

impl UriCounts {
    pub(super) fn add(&mut self, uris: &[String]) {
        let before = self.counts.len();
        for uri in uris {
            *self.counts.entry(uri.clone()).or_default() += 1;
        }
        self.report(before);
    }

    pub(super) fn remove(&mut self, uris: &[String]) {
        let before = self.counts.len();
        for uri in uris {
            if let Some(count) = self.counts.get_mut(uri) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(uri);
                }
            }
        }
        self.report(before);
    }

    /// Reports a change of the set of URIs. An operation only adds or only removes URIs, so the
    /// set changed if its size did.
    fn report(&self, before: usize) {
        if self.counts.len() != before {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }
}

/// The URIs of the resources that clients are subscribed to at one instance, from
/// [`Server::subscribed_resources`](crate::Server::subscribed_resources).
#[derive(Clone, Debug)]
pub struct SubscribedResources {
    registry: Weak<Registry>,
    changes: watch::Receiver<u64>,
}

impl SubscribedResources {
    pub(crate) fn new(registry: &Arc<Registry>) -> Self {
        let mut changes = registry.uris().changes.subscribe();
        changes.mark_changed();
        Self {
            registry: Arc::downgrade(registry),
            changes,
        }
    }

    /// The URIs that have a subscription now, as clients sent them.
    pub fn uris(&mut self) -> BTreeSet<String> {
        let Some(registry) = self.registry.upgrade() else {
            return BTreeSet::new();
        };
        // Before the URIs are read, so that no change is missed.
        self.changes.borrow_and_update();
        registry.uris().counts.keys().cloned().collect()
    }

    /// Waits until the URIs have changed since the last call of [`uris`](Self::uris). Returns `false` if the server is gone.
    pub async fn changed(&mut self) -> bool {
        self.changes.changed().await.is_ok()
    }
}
