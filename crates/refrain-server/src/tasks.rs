//! Tasks: flows whose home is a store.
//!
//! | module | contents |
//! | --- | --- |
//! | `options` | settings for running and storing tasks |
//! | `create` | turns a flow into a task |
//! | `worker` | claims due tasks, renews leases, deletes expired tasks |
//! | `leases` | the leases that this instance holds |
//! | `resume` | restores the flow of a claimed task |
//! | `driver` | runs one task |
//! | `commit` | writes progress and results of a running task |
//! | `webhooks` | endpoints that are notified when a task has ended, and their signed requests |
//! | `deliveries` | deliveries to webhooks |
//! | `failures` | errors of tasks that their handlers did not cause |
//! | `request` | client requests: get, update, cancel |
//! | `notifications` | subscriptions to task states |
//! | `sealing` | the stored form of task contents |
//! | `namespace` | tool names of several servers in one store |
//! | `spill` | tokens that are too large to send |

mod commit;
mod create;
mod deliveries;
mod driver;
mod failures;
mod leases;
mod namespace;
mod notifications;
mod options;
mod outage;
mod request;
mod resume;
mod sealing;
mod spill;
#[cfg(test)]
mod turn_tests;
mod webhooks;
mod worker;

pub(crate) use create::{
    CallPermit, CreatedTask, Creating, DetachReason, TaskSeed, creation_error,
};
pub(crate) use namespace::Namespace;
pub(crate) use notifications::TaskSubscription;
pub use options::TaskOptions;
pub(crate) use request::store_error;
pub(crate) use spill::TokenFuture;
pub use webhooks::{Webhook, WebhookError};
pub(crate) use worker::Worker;

use crate::auth::Auth;
use crate::catalog::Catalog;
use crate::limits::{FairQueue, LimitKey};
use crate::rounds::Flows;
use crate::services::Services;
use deliveries::Webhooks;
use leases::{Leases, TaskSlot};
use notifications::TaskWatch;
use refrain_store::TaskStore;
use std::sync::Arc;

/// Maximum number of concurrent store operations for callers. A store has fewer connections, but can write several
/// operations at once.
const STORE_PERMITS: usize = 32;

/// The tasks of a server, and what they need to run.
pub(crate) struct Tasks {
    pub(crate) options: TaskOptions,
    pub(crate) store: Arc<dyn TaskStore>,
    /// The queue of callers in front of the store. The operations of workers do not wait in it.
    queue: Arc<FairQueue>,
    /// The turns of subscriptions to read a task: one of each caller at a time. A caller with many subscriptions to large tasks
    /// delays only itself.
    state_turns: Arc<FairQueue>,
    namespace: Namespace,
    leases: Arc<Leases>,
    watch: TaskWatch,
    webhooks: Webhooks,
    catalog: Arc<Catalog>,
    auth: Arc<Auth>,
    flows: Arc<Flows>,
    services: Services,
}

impl Tasks {
    pub(crate) fn new(
        (store, options): (Arc<dyn TaskStore>, TaskOptions),
        namespace: Namespace,
        webhooks: Vec<Webhook>,
        catalog: Arc<Catalog>,
        auth: Arc<Auth>,
        flows: Arc<Flows>,
        services: Services,
    ) -> Arc<Self> {
        store.set_quota(options.quota(services.limits.has_authenticator));
        Arc::new(Self {
            store,
            queue: FairQueue::new(STORE_PERMITS),
            state_turns: FairQueue::with_one_each(STORE_PERMITS),
            namespace,
            leases: Arc::new(Leases::new(
                services.random(),
                options.concurrent,
                services.limits.has_authenticator,
            )),
            watch: TaskWatch::default(),
            webhooks: Webhooks::new(webhooks),
            options,
            catalog,
            auth,
            flows,
            services,
        })
    }

    fn try_slot(&self, caller: &LimitKey) -> Option<TaskSlot> {
        match self.services.limits.is_draining() {
            true => None,
            false => self.leases.try_slot(&caller.account()),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.leases.len()
    }
}
