//! The store of tasks, replay logs and tokens that are too large to travel.
//!
//! | module | contents |
//! | --- | --- |
//! | `task` | tasks as a store keeps them |
//! | `store` | the trait of a store |
//! | `open` | opening a store by its URL |
//! | `memory`, `sqlite`, `postgres` | the stores |
//! | `sql` | the common parts of SQLite and Postgres |
//! | `contract` | the checks that every store must pass |
//! | `cluster` | a Postgres server for tests |

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
pub use refrain_core::{LogError, LogFuture, LogKey, RecordState, ReplayLog, Retention};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{Store, StoreError, StoreFuture, TaskStore};
pub use task::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Next, Swept, Task,
    TaskId, TaskRow, TaskStatus,
};

/// The number of hints that wait for a slow listener before the oldest is lost.
const HINTS: usize = 1024;
