//! The database of a store: connecting, its tables, and what it has to say.

use super::connections::{Connections, WAIT};
use super::schema;
use super::telling::{CHANNEL, Telling, Words};
use crate::open::OpenError;
use crate::sql::{ADD_SCHEMA_VERSION, SCHEMA_VERSION, TIMEOUT, pending_migrations};
use crate::store::StoreError;
use crate::task::{Hint, TaskId};
use sqlx::postgres::{
    PgArguments, PgConnectOptions, PgConnection, PgListener, PgPoolOptions, PgRow,
};
use sqlx::query::{Query, QueryAs};
use sqlx::{ConnectOptions, Connection, Executor, FromRow, Postgres};
use std::time::Duration;
use tokio::sync::{broadcast, oneshot};
use tokio::task::AbortHandle;

/// Connections at most. One more listens, and one tells.
const CONNECTIONS: usize = 10;
/// How long a listener waits before it connects anew.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a listener hears nothing before it asks whether its connection still is one. It is shorter than [`TIMEOUT`]: a
/// runtime that has to wake for this anyway need not be told of the limit of each operation.
const SILENCE: Duration = Duration::from_secs(10);
/// What stands for this program among the advisory locks of a database.
const MIGRATION: i64 = 0x7265_6672_6169_6e00;

pub(super) struct Database {
    connections: Connections,
    pub(super) hints: broadcast::Sender<Hint>,
    listener: AbortHandle,
    telling: Telling,
}

impl Drop for Database {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Database {
    pub(super) async fn open(options: PgConnectOptions) -> Result<Self, OpenError> {
        let options = options
            .application_name("refrain")
            .disable_statement_logging();
        let connections = Connections::new(options.clone(), CONNECTIONS);
        connections.run(migrate).await?;
        let hints = broadcast::Sender::new(crate::HINTS);
        let one = Connections::new(options.clone(), 1);
        let telling = Telling::begin(one, hints.clone());
        let (ready, listens) = oneshot::channel();
        let listening = listen(options, telling.words(), hints.clone(), ready);
        let listener = tokio::spawn(listening).abort_handle();
        let database = Self {
            connections,
            hints,
            listener,
            telling,
        };
        let listens = listens
            .await
            .unwrap_or_else(|_| Err(StoreError::Failed("the listener ended".into())));
        listens.map(|()| database).map_err(OpenError::from)
    }

    /// Runs one operation on a connection of its own.
    pub(super) async fn run<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.connections.run(work).await
    }

    pub(super) async fn execute(
        &self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<(), StoreError> {
        self.run(async |connection| {
            query.execute(connection).await?;
            Ok(())
        })
        .await
    }

    pub(super) async fn fetch_all<T>(
        &self,
        query: QueryAs<'_, Postgres, T, PgArguments>,
    ) -> Result<Vec<T>, StoreError>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        self.run(async |connection| Ok(query.fetch_all(connection).await?))
            .await
    }

    /// Tells all instances that something happened to a task.
    pub(super) fn hint(&self, task: &TaskId, due: bool, own: bool) {
        let task = task.clone();
        self.telling.tell(Hint { task, due, own });
    }
}

/// Brings the tables up to date, in one transaction. An advisory lock keeps other instances from doing so meanwhile.
async fn migrate(connection: &mut PgConnection) -> Result<(), OpenError> {
    let mut tx = connection.begin().await?;
    // Other instances or a large table may take long.
    tx.execute("SET LOCAL statement_timeout = 0").await?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION);
    lock.execute(&mut *tx).await?;
    let exists: bool = sqlx::query_scalar("SELECT to_regclass('refrain_schema') IS NOT NULL")
        .fetch_one(&mut *tx)
        .await?;
    if !exists {
        tx.execute("CREATE TABLE refrain_schema (version BIGINT NOT NULL PRIMARY KEY)")
            .await?;
    }
    let found: Option<i64> = sqlx::query_scalar(SCHEMA_VERSION)
        .fetch_one(&mut *tx)
        .await?;
    for (version, statements) in pending_migrations(found.unwrap_or(0), schema::VERSIONS)? {
        sqlx::raw_sql(statements).execute(&mut *tx).await?;
        let add = sqlx::query(ADD_SCHEMA_VERSION).bind(version);
        add.execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Passes on what the database says, for as long as somebody may want to hear it. What is said while the connection is
/// lost is not heard; those who need to know look by themselves, too.
async fn listen(
    options: PgConnectOptions,
    words: Words,
    hints: broadcast::Sender<Hint>,
    ready: oneshot::Sender<Result<(), StoreError>>,
) {
    let mut ready = Some(ready);
    loop {
        match connect_listener(options.clone()).await {
            Ok(mut listener) => {
                if let Some(ready) = ready.take() {
                    let _ = ready.send(Ok(()));
                }
                let error = pass_on(&mut listener, &words, &hints).await;
                tracing::warn!(%error, "the connection that listens for hints was lost");
            }
            Err(error) => {
                if let Some(ready) = ready.take() {
                    let _ = ready.send(Err(error.into()));
                    return;
                }
                tracing::debug!(%error, "no connection to listen for hints");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn connect_listener(options: PgConnectOptions) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(WAIT)
        .connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Passes on hints until the connection is lost.
async fn pass_on(
    listener: &mut PgListener,
    words: &Words,
    hints: &broadcast::Sender<Hint>,
) -> sqlx::Error {
    loop {
        match tokio::time::timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(said))) => {
                if let Some(hint) = words.read(said.payload()) {
                    // An error means that nobody listens.
                    let _ = hints.send(hint);
                }
            }
            // It was lost, and is there again.
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return error,
            Err(_) => {
                let alive = tokio::time::timeout(TIMEOUT, listener.execute("SELECT 1")).await;
                match alive {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => return error,
                    Err(_) => return sqlx::Error::PoolTimedOut,
                }
            }
        }
    }
}
