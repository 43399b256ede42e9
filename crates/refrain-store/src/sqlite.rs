//! A store in a SQLite file.
//!
//! One connection writes, several queued writes in one transaction; others read concurrently (WAL).
//! A confirmed write is on disk (`synchronous=FULL`).

mod outbox;
mod tasks;

use crate::open::OpenStoreError;
use crate::sql::{
    ADD_SCHEMA_VERSION, GroupCommit, SCHEMA_VERSION, SharedReceiver, WriteSender, impl_store,
    pending_migrations,
};
use crate::store::StoreError;
use crate::time::micros;
use sqlx::query::{Query, QueryAs};
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions,
    SqliteRow, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, FromRow, Sqlite};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// How long a statement waits for the write lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long opening is retried while other processes open the file.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of connections that read.
const READERS: u32 = 4;

/// A store in a SQLite file, for one instance or for several processes of one machine.
///
/// The clock is the machine's. Hints reach only listeners of this process; other processes poll.
pub struct SqliteStore {
    writes: WriteSender<Sqlite>,
    readers: SqlitePool,
    quota: parking_lot::Mutex<Quota>,
    hints: broadcast::Sender<Hint>,
}

impl SqliteStore {
    /// Opens this file, and creates or migrates its tables. A new file is readable by its owner only.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenStoreError> {
        let path = path.as_ref();
        create(path).map_err(|source| OpenStoreError::Create {
            path: path.to_owned(),
            source,
        })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .busy_timeout(BUSY_TIMEOUT)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let mut writer = options.connect().await?;
        prepare(&mut writer).await?;
        stop_waiting_for_locks(&mut writer).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(BUSY_TIMEOUT)
            // Otherwise sqlx logs each slow acquire.
            .acquire_slow_threshold(BUSY_TIMEOUT)
            .test_before_acquire(false)
            .connect_lazy_with(options.clone().pragma("query_only", "ON"));
        let (writes, receiver) = WriteSender::new();
        tokio::spawn(write_batches(receiver, writer, options));
        Ok(Self {
            writes,
            readers,
            quota: parking_lot::Mutex::default(),
            hints: broadcast::Sender::new(crate::HINT_CAPACITY),
        })
    }

    /// Runs a read-only query.
    async fn fetch<T>(&self, query: QueryAs<'_, Sqlite, T, SqliteArguments>) -> Result<Vec<T>>
    where
        T: for<'r> FromRow<'r, SqliteRow> + Send + Unpin,
    {
        Ok(query.fetch_all(&self.readers).await?)
    }

    fn hint(&self, task: &TaskId, due: bool, own: bool) {
        let task = task.clone();
        // Fails if there is no listener.
        let _ = self.hints.send(Hint { task, due, own });
    }
}

impl_store!(SqliteStore, Sqlite);

impl GroupCommit for Sqlite {
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    // While small writes are queued, large ones take about a third of the time.
    const LARGE_PAUSE_FACTOR: u32 = 2;
    const LOCK_TIMEOUT: Duration = BUSY_TIMEOUT;
    // A write may be several statements.
    const IMPLICIT: bool = false;

    async fn fetch(
        connection: &mut SqliteConnection,
        query: Query<'static, Sqlite, SqliteArguments>,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        query.fetch_all(connection).await
    }
}

/// Commits writes until the store is dropped.
async fn write_batches(
    receiver: SharedReceiver<Sqlite>,
    mut connection: SqliteConnection,
    options: SqliteConnectOptions,
) {
    while let Some(mut batch) = receiver.next().await {
        // The connection was left in a transaction, or reports one after the disk was full.
        if connection.is_in_transaction() {
            match connect_writer(&options).await {
                Ok(new) => connection = new,
                Err(error) => {
                    let _ = batch.reply(Err(error.into()));
                    continue;
                }
            }
        }
        if let Err(error) = batch.commit(&mut connection).await {
            tracing::debug!(%error, "failed to write");
        }
    }
}

async fn connect_writer(options: &SqliteConnectOptions) -> Result<SqliteConnection, sqlx::Error> {
    let mut writer = options.connect().await?;
    stop_waiting_for_locks(&mut writer).await?;
    Ok(writer)
}

/// SQLite's own waits for a lock grow to 100 ms. A group commit waits for the lock itself, in short steps.
async fn stop_waiting_for_locks(writer: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    writer.execute("PRAGMA busy_timeout = 0").await?;
    Ok(())
}

/// Text is stored unchanged: SQLite accepts any text, and indexes any length.
mod text {
    pub(super) fn encode(text: &str) -> &str {
        text
    }

    pub(super) fn decode(text: String) -> String {
        text
    }

    pub(super) fn encode_indexed<'a>(_: &str, text: &'a str) -> super::Result<&'a str> {
        Ok(text)
    }
}

/// The time, in microseconds since 1970.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    micros(now.unwrap_or_default())
}

/// Creates the file if it is missing. SQLite gives its other files the same permissions.
fn create(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Switches to WAL and migrates. The switch fails while another process does the same, so it is retried.
async fn prepare(writer: &mut SqliteConnection) -> Result<(), OpenStoreError> {
    let begun = Instant::now();
    loop {
        match migrate(writer).await {
            Err(OpenStoreError::Store(StoreError::Unavailable(_)))
                if begun.elapsed() < OPEN_TIMEOUT =>
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            prepared => return prepared,
        }
    }
}

async fn migrate(writer: &mut SqliteConnection) -> Result<(), OpenStoreError> {
    let mode = sqlx::query_scalar("PRAGMA journal_mode = WAL");
    let mode: String = mode.fetch_one(&mut *writer).await?;
    if mode != "wal" {
        let failed = format!("the file system does not support WAL (journal mode {mode})");
        return Err(StoreError::Failed(failed.into()).into());
    }
    let mut tx = writer.begin_with(Sqlite::BEGIN).await?;
    tx.execute(
        "CREATE TABLE IF NOT EXISTS refrain_schema (version INTEGER NOT NULL PRIMARY KEY) STRICT",
    )
    .await?;
    let found = sqlx::query_scalar(SCHEMA_VERSION);
    for (version, migration) in pending_migrations(found.fetch_one(&mut *tx).await?)? {
        let migration = AssertSqlSafe(migration.for_sqlite());
        sqlx::raw_sql(migration).execute(&mut *tx).await?;
        let add = sqlx::query(ADD_SCHEMA_VERSION).bind(version);
        add.execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}
