//! Tasks: flows whose home is a store.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `options` | how tasks are run and kept |
//! | `request` | what clients ask about their tasks |
//! | `vault` | what tasks hold, as it lies in the store |
//! | `watch` | clients that listen for what becomes of their tasks |

mod options;
mod request;
mod vault;
mod watch;

pub use options::TaskOptions;
pub(crate) use request::answer;
pub(crate) use watch::TaskNews;

use refrain_store::TaskStore;
use std::sync::Arc;
use watch::Watch;

/// What a server needs for tasks.
pub(crate) struct Tasks {
    pub(crate) store: Arc<dyn TaskStore>,
    pub(crate) options: TaskOptions,
    watch: Watch,
}

impl Tasks {
    pub(crate) fn new(store: Arc<dyn TaskStore>, options: TaskOptions) -> Self {
        Self {
            store,
            options,
            watch: Watch::default(),
        }
    }
}
