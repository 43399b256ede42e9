//! Stores of tasks, replay logs and tokens that are too large for the client.
//!
//! | module | contents |
//! | --- | --- |
//! | `task` | the data types of tasks |
//! | `store` | the trait of a store |
//! | `layer` | a store around another one |
//! | `quota` | limits of the data in a store |
//! | `open` | opening a store by its URL |
//! | `memory`, `sqlite`, `postgres` | the stores |
//! | `sql` | the common parts of SQLite and Postgres |
//! | `contract` | the checks that every store must pass |
//! | `test_postgres` | a Postgres server for tests |

#[cfg(feature = "contract")]
pub mod contract;
mod layer;
mod memory;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
mod quota;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod task;
#[cfg(feature = "test-postgres")]
pub mod test_postgres;
mod time;

pub use bytes::Bytes;
pub use layer::StoreLayer;
pub use memory::MemoryStore;
pub use open::{OpenStoreError, UrlError, check_url, open};
#[cfg(feature = "postgres")]
pub use postgres::PgStore;
pub use quota::{Quota, QuotaReached, is_anonymous_account};
pub use refrain_core::{LogError, LogFuture, LogKey, RecordState, ReplayLog, Retention};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{Store, StoreError, StoreFuture, TaskStore};
pub use task::{
    Claim, ClaimedTask, Commit, CommitResult, Creation, Delivery, Hint, Lease, ListTasks, NewTask,
    Next, OpenAsks, StoredStatus, StoredTask, SweepCounts, TaskId, TaskRow,
};

/// The capacity of a channel of hints. When it is full, hints are lost.
const HINT_CAPACITY: usize = 1024;
