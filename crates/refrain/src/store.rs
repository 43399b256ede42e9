//! Task stores and replay logs: memory, SQLite and Postgres, and the traits of your own.

pub use refrain_core::{Keep, LogError, LogFuture, LogKey, MemoryReplayLog, Recorded, ReplayLog};
pub use refrain_store::*;
