//! Tasks: flows whose home is a store.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `options` | how tasks are run and kept |
//! | `create` | a flow becomes a task |
//! | `crew` | the tasks that an instance runs |
//! | `space` | tools of the same name in one store |
//! | `spill` | tokens that are too large to travel |
//! | `resume` | a task that was claimed is taken up |
//! | `run` | one task at work |
//! | `failures` | what a task fails of that is not its handler's doing |
//! | `worker` | what takes tasks that are due and looks after those that run |
//! | `request` | what clients ask about their tasks |
//! | `vault` | what tasks hold, as it lies in the store |
//! | `watch` | clients that listen for what becomes of their tasks |

mod create;
mod crew;
mod failures;
mod options;
mod request;
mod resume;
mod run;
mod space;
mod spill;
mod vault;
mod watch;
mod worker;

pub use options::TaskOptions;
pub(crate) use request::answer;
pub(crate) use space::Space;
pub(crate) use watch::TaskNews;
pub(crate) use worker::Worker;

pub(crate) use create::{Creating, Made, Seed, cannot_create};

use crate::server::Server;
use crew::Crew;
use refrain_core::Source;
use refrain_store::TaskStore;
use std::sync::Arc;
use watch::Watch;

/// What a server needs for tasks.
pub(crate) struct Tasks {
    pub(crate) store: Arc<dyn TaskStore>,
    pub(crate) options: TaskOptions,
    pub(crate) crew: Crew,
    space: Space,
    watch: Watch,
}

impl Tasks {
    pub(crate) fn new(
        store: Arc<dyn TaskStore>,
        options: TaskOptions,
        space: Space,
        source: &dyn Source,
    ) -> Self {
        let mut random = [0; 4];
        source.fill(&mut random);
        Self {
            store,
            crew: Crew::new(random, options.concurrent),
            space,
            watch: Watch::default(),
            options,
        }
    }
}

impl Server {
    pub(crate) fn has_room_for_task(&self) -> bool {
        let tasks = self.0.tasks.as_ref();
        !self.is_draining() && tasks.is_some_and(|tasks| tasks.crew.has_room())
    }
}
