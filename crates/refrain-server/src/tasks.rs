//! Tasks: flows whose home is a store.
//!
//! | module | contents |
//! | --- | --- |
//! | `options` | how tasks are run and kept |
//! | `create` | a flow becomes a task |
//! | `worker` | claims due tasks, renews leases, deletes expired tasks |
//! | `leases` | the leases that this instance holds |
//! | `resume` | a claimed task becomes a flow again |
//! | `driver` | runs one task |
//! | `commit` | writes what a running task has come to |
//! | `failures` | errors of tasks that their handlers did not cause |
//! | `request` | the requests of clients about their tasks |
//! | `notifications` | subscriptions to the state of tasks |
//! | `sealing` | the stored form of what tasks hold |
//! | `namespace` | tools of several servers in one store |
//! | `spill` | tokens that are too large to travel |

mod commit;
mod create;
mod driver;
mod failures;
mod leases;
mod namespace;
mod notifications;
mod options;
mod request;
mod resume;
mod sealing;
mod spill;
mod worker;

pub(crate) use create::{Creating, Made, Seed, cannot_create};
pub(crate) use namespace::Namespace;
pub(crate) use notifications::TaskNews;
pub use options::TaskOptions;
pub(crate) use spill::Fetching;
pub(crate) use worker::Worker;

use crate::auth::Auth;
use crate::catalog::Catalog;
use crate::rounds::Flows;
use crate::services::Services;
use leases::Leases;
use notifications::Watch;
use refrain_store::TaskStore;
use std::sync::Arc;

pub(crate) struct Tasks {
    pub(crate) options: TaskOptions,
    store: Arc<dyn TaskStore>,
    namespace: Namespace,
    leases: Leases,
    watch: Watch,
    catalog: Arc<Catalog>,
    auth: Arc<Auth>,
    flows: Arc<Flows>,
    services: Services,
}

impl Tasks {
    pub(crate) fn new(
        (store, options): (Arc<dyn TaskStore>, TaskOptions),
        namespace: Namespace,
        catalog: Arc<Catalog>,
        auth: Arc<Auth>,
        flows: Arc<Flows>,
        services: Services,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            namespace,
            leases: Leases::new(services.random(), options.concurrent),
            watch: Watch::default(),
            options,
            catalog,
            auth,
            flows,
            services,
        })
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.services.limits.is_draining() && self.leases.has_room()
    }

    pub(crate) fn running(&self) -> usize {
        self.leases.len()
    }
}
