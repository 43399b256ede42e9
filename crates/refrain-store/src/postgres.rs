//! A store in a Postgres database.
//!
//! All times are of the database's clock, at the start of a statement.

/// The time, in microseconds since 1970.
macro_rules! now {
    () => {
        "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
    };
}

mod connections;
mod hints;
mod hosts;
mod outbox;
mod parameters;
mod tasks;
mod text;

use crate::open::{OpenStoreError, UrlError};
use crate::sql::{
    ADD_SCHEMA_VERSION, GroupCommit, SCHEMA_VERSION, SharedReceiver, TIMEOUT, WriteSender,
    impl_store, pending_migrations,
};
use crate::store::StoreError;
use crate::time::micros;
use connections::Connections;
use hints::Notifier;
use hosts::Hosts;
use parking_lot::Mutex;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::{Query, QueryAs};
use sqlx::{AssertSqlSafe, Connection, Executor, FromRow, Postgres};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The number of connections for operations. One more listens for hints, and one sends them.
const CONNECTIONS: usize = 10;
/// The number of connections that commit queued writes at the same time.
const WRITERS: usize = 8;
/// The time limit for opening a store, which may wait for a migration by another instance.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// The key of the advisory lock of a migration.
const MIGRATION_LOCK: i64 = 0x7265_6672_6169_6e00;

/// A store in a Postgres database, for a fleet.
///
/// Hints reach every instance by `NOTIFY`. The store holds at most twelve connections.
pub struct PgStore {
    connections: Arc<Connections>,
    writes: WriteSender<Postgres>,
    quota: Mutex<Quota>,
    hints: broadcast::Sender<Hint>,
    notifier: Notifier,
    listener: AbortHandle,
}

pub(crate) fn check_url(url: &str) -> Result<(), UrlError> {
    Hosts::parse(url).map(|_| ())
}

impl Drop for PgStore {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl PgStore {
    /// Connects to the database of this URL, `postgres://user:password@host/database`, and creates or migrates its
    /// tables.
    ///
    /// With several hosts, `postgres://user:password@one:5432,two:5432/database`, the store uses the one that accepts writes,
    /// and searches for it again after an error. The URL may have these parameters of `psql`: `sslmode`, `sslrootcert`,
    /// `sslcert`, `sslkey`, `user`, `password`, `dbname`, `host`, `hostaddr`, `port`, `application_name` and `options`; and
    /// `statement-cache-capacity`, the number of prepared statements of a connection. With `sslmode=verify-full` the server
    /// needs a certificate for its name, issued by a public authority or by the authority in `sslrootcert`.
    pub async fn open(url: &str) -> Result<Self, OpenStoreError> {
        let opened = tokio::time::timeout(OPEN_TIMEOUT, Self::connect(Hosts::parse(url)?)).await;
        opened.map_err(|_| StoreError::timed_out(OPEN_TIMEOUT))?
    }

    async fn connect(hosts: Hosts) -> Result<Self, OpenStoreError> {
        let connections = Arc::new(Connections::new(hosts.clone(), CONNECTIONS));
        connections.run(migrate).await?;
        let (writes, receiver) = WriteSender::new();
        for _ in 0..WRITERS {
            tokio::spawn(write_batches(receiver.clone(), connections.clone()));
        }
        let hints = broadcast::Sender::new(crate::HINT_CAPACITY);
        let notifier = Notifier::start(Connections::new(hosts.clone(), 1), hints.clone());
        let listener = notifier.listen(hosts).await?;
        Ok(Self {
            connections,
            writes,
            quota: Mutex::default(),
            hints,
            notifier,
            listener,
        })
    }

    /// Runs one statement in its own transaction, and returns its rows.
    async fn fetch<T>(&self, query: QueryAs<'_, Postgres, T, PgArguments>) -> Result<Vec<T>>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let run = async |connection: &mut PgConnection| -> Result<_> {
            Ok(query.fetch_all(connection).await?)
        };
        self.connections.run(run).await
    }

    /// Notifies all instances that a task has changed.
    fn hint(&self, task: &TaskId, due: bool, own: bool) {
        let task = task.clone();
        self.notifier.send(Hint { task, due, own });
    }
}

impl_store!(PgStore, Postgres);

impl GroupCommit for Postgres {
    const BEGIN: &'static str = "BEGIN";
    // Several connections write, so small writes need no pause of large ones.
    const LARGE_PAUSE_FACTOR: u32 = 0;
    const LOCK_TIMEOUT: Duration = Duration::ZERO;
    const IMPLICIT: bool = true;

    async fn fetch(
        connection: &mut PgConnection,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        query.fetch_all(connection).await
    }
}

/// Commits writes until the store is dropped.
async fn write_batches(receiver: SharedReceiver<Postgres>, connections: Arc<Connections>) {
    while let Some(mut batch) = receiver.next().await {
        let commit = connections.run(async |connection| batch.commit(connection).await);
        let done = tokio::time::timeout(TIMEOUT, commit).await;
        if let Err(error) = done.unwrap_or_else(|_| Err(StoreError::timed_out(TIMEOUT))) {
            tracing::debug!(%error, "failed to write");
            let _ = batch.reply(Err(error));
        }
    }
}

/// Migrates the tables in one transaction. An advisory lock excludes other instances.
async fn migrate(connection: &mut PgConnection) -> Result<(), OpenStoreError> {
    let mut tx = connection.begin().await?;
    // Another instance's migration, or a large table, may take long.
    tx.execute("SET LOCAL statement_timeout = 0").await?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK);
    lock.execute(&mut *tx).await?;
    let exists = sqlx::query_scalar("SELECT to_regclass('refrain_schema') IS NOT NULL");
    if !exists.fetch_one(&mut *tx).await? {
        tx.execute("CREATE TABLE refrain_schema (version BIGINT NOT NULL PRIMARY KEY)")
            .await?;
    }
    let found = sqlx::query_scalar(SCHEMA_VERSION);
    for (version, migration) in pending_migrations(found.fetch_one(&mut *tx).await?)? {
        let migration = AssertSqlSafe(migration.for_postgres());
        sqlx::raw_sql(migration).execute(&mut *tx).await?;
        let add = sqlx::query(ADD_SCHEMA_VERSION).bind(version);
        add.execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}
