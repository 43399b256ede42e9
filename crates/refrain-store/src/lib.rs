//! Where a flow waits when it does not wait with its client: tasks, replay logs, and tokens that are too large to travel.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `task` | what a task is to a store |
//! | `store` | the trait that every store implements |
//! | `open` | opening a store by its URL |
//! | `memory` | a store in the memory of one process |
//! | `sqlite` | a store in a file |
//! | `postgres` | a store in a database |
//! | `contract` | the checks that every store has to pass |
//! | `cluster` | a Postgres for tests |

#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "contract")]
pub mod contract;
mod memory;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod task;
mod time;

pub use memory::MemoryStore;
pub use open::{OpenError, UrlError, open};
#[cfg(feature = "postgres")]
pub use postgres::PgStore;
pub use refrain_core::{Keep, LogError, LogFuture, LogKey, Recorded, ReplayLog};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{Store, StoreError, StoreFuture, TaskStore};
pub use task::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Next, Swept, Task,
    TaskId, TaskRow, TaskStatus,
};

/// Hints that wait for a slow listener before it loses the oldest.
const HINTS: usize = 1024;
