//! Stores of tasks and replay logs: memory, SQLite and Postgres.
//!
//! [`open`] takes a URL. The types of a store of your own are in [`runtime::store`](crate::runtime::store).

pub use refrain_core::ReplayLog;
#[cfg(feature = "postgres")]
pub use refrain_store::PgStore;
#[cfg(feature = "sqlite")]
pub use refrain_store::SqliteStore;
pub use refrain_store::{MemoryStore, OpenError, Store, StoreError, TaskStore, open};
