//! Tasks: flows whose home is a store.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `options` | how tasks are run and kept |
//! | `vault` | what tasks hold, as it lies in the store |

mod options;
mod vault;

pub use options::TaskOptions;

use refrain_store::TaskStore;
use std::sync::Arc;

/// What a server needs for tasks.
pub(crate) struct Tasks {
    pub(crate) store: Arc<dyn TaskStore>,
    pub(crate) options: TaskOptions,
}
