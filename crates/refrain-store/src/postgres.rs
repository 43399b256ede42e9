//! A store in a Postgres database.
//!
//! The clock is the database's, at the start of a statement.

/// The time, in microseconds since 1970.
macro_rules! now {
    () => {
        "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
    };
}

mod connections;
mod hints;
mod tasks;
mod text;

use crate::open::{OpenStoreError, UrlError};
use crate::sql::{ADD_SCHEMA_VERSION, SCHEMA_VERSION, impl_store, pending_migrations};
use crate::store::StoreError;
use crate::time::micros;
use connections::Connections;
use hints::Notifier;
use parking_lot::Mutex;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::query::{Query, QueryAs};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, FromRow, Postgres};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The number of connections for operations. One more listens for hints, and one sends them.
const CONNECTIONS: usize = 10;
/// The time limit of opening, which may wait for a migration by another instance.
const OPENING: Duration = Duration::from_secs(60);
/// The advisory lock of a migration.
const MIGRATION: i64 = 0x7265_6672_6169_6e00;

/// A store in a Postgres database, for a fleet.
///
/// Hints reach every instance by `NOTIFY`. The store holds at most twelve connections.
pub struct PgStore {
    connections: Connections,
    quota: Mutex<Quota>,
    hints: broadcast::Sender<Hint>,
    notifier: Notifier,
    listener: AbortHandle,
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
    /// The parameters of the URL are the same as for `psql`. With `sslmode=verify-full` the server needs a certificate for
    /// its name, issued by a public authority or by the authority in `sslrootcert`.
    pub async fn open(url: &str) -> Result<Self, OpenStoreError> {
        // The parser's error may contain parts of the password.
        let options: PgConnectOptions = url.parse().map_err(|_| UrlError::Postgres)?;
        let opened = tokio::time::timeout(OPENING, Self::connect(options)).await;
        opened.map_err(|_| StoreError::timed_out(OPENING))?
    }

    async fn connect(options: PgConnectOptions) -> Result<Self, OpenStoreError> {
        let options = options.application_name("refrain");
        let options = options.disable_statement_logging();
        let connections = Connections::new(options.clone(), CONNECTIONS);
        connections.run(migrate).await?;
        let hints = broadcast::Sender::new(crate::HINTS);
        let notifier = Notifier::start(Connections::new(options.clone(), 1), hints.clone());
        let listener = notifier.listen(options).await?;
        Ok(Self {
            connections,
            quota: Mutex::default(),
            hints,
            notifier,
            listener,
        })
    }

    /// Runs one statement, and returns the number of changed rows.
    async fn execute(&self, query: Query<'_, Postgres, PgArguments>) -> Result<u64> {
        let run = async |connection: &mut PgConnection| -> Result<u64> {
            Ok(query.execute(connection).await?.rows_affected())
        };
        self.connections.run(run).await
    }

    /// Runs one statement that returns rows.
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

impl_store!(PgStore);

/// Migrates the tables in one transaction. An advisory lock excludes other instances.
async fn migrate(connection: &mut PgConnection) -> Result<(), OpenStoreError> {
    let mut tx = connection.begin().await?;
    // Another instance's migration, or a large table, may take long.
    tx.execute("SET LOCAL statement_timeout = 0").await?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION);
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
