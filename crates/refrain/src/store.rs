//! Task stores and replay logs: memory, SQLite and Postgres.
//!
//! [`open`] opens the store of a URL. The types for a custom store are in [`runtime::store`](crate::runtime::store).

pub use refrain_core::ReplayLog;
#[cfg(feature = "postgres")]
pub use refrain_store::PgStore;
#[cfg(feature = "sqlite")]
pub use refrain_store::SqliteStore;
pub use refrain_store::{MemoryStore, OpenStoreError, Store, StoreError, TaskStore, open};
