//! Where a flow waits when it does not wait with its client: tasks, replay logs, and tokens that are too large to travel.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `task` | what a task is to a store |
//! | `store` | the trait that every store implements |
//! | `memory` | a store in the memory of one process |

#[cfg(feature = "contract")]
pub mod contract;
mod memory;
mod store;
mod task;
mod time;

pub use memory::MemoryStore;
pub use refrain_core::{Keep, LogError, LogFuture, LogKey, Recorded, ReplayLog};
pub use store::{Store, StoreError, StoreFuture, TaskStore};
pub use task::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Next, Swept, Task,
    TaskId, TaskRow, TaskStatus,
};

/// Hints that wait for a slow listener before it loses the oldest.
const HINTS: usize = 1024;
