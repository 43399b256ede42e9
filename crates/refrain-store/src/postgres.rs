//! A store in a database of Postgres.
//!
//! What always holds: times are those of the database's clock, as it was when a statement began.

/// The time, in microseconds since 1970.
macro_rules! now {
    () => {
        "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
    };
}

mod connections;
mod database;
mod log;
mod operators;
mod schema;
mod tasks;
mod telling;
mod text;

use crate::open::{OpenError, UrlError};
use crate::sql::{impl_store, within};
use crate::store::{StoreError, StoreFuture, TaskStore};
use crate::task::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, NewTask, Swept, Task,
    TaskId, TaskRow,
};
use database::Database;
use refrain_core::{Keep, LogFuture, LogKey, Principal, Recorded, ReplayLog};
use sqlx::postgres::PgConnectOptions;
use std::fmt;
use std::time::Duration;
use tokio::sync::broadcast;

/// A store in a database of Postgres, for a fleet.
///
/// Hints reach every instance, by `NOTIFY`. It holds at most ten connections, one that listens and one that tells.
pub struct PgStore {
    database: Database,
}

impl PgStore {
    /// Connects to the database of this URL, `postgres://user:password@host/database`. Its tables are made or brought
    /// up to date.
    ///
    /// The parameters of the URL are those of `psql`: with `sslmode=verify-full` the server has to have a certificate
    /// for its name, of an authority that browsers trust or that `sslrootcert` names.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        // The parser's error may repeat parts of the URL, and of its password.
        let options: PgConnectOptions = url.parse().map_err(|_| UrlError::Postgres)?;
        let opened = tokio::time::timeout(OPENING, Database::open(options)).await;
        let database = opened.map_err(|_| StoreError::timed_out(OPENING))??;
        Ok(Self { database })
    }

    fn subscribe(&self) -> broadcast::Receiver<Hint> {
        self.database.hints.subscribe()
    }
}

/// The time limit of opening, which may have to wait for other instances that migrate the tables.
const OPENING: Duration = Duration::from_secs(60);

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").finish_non_exhaustive()
    }
}

impl_store!(PgStore);
