//! The file of a store: opening it, and who may write.

use super::schema;
use crate::open::OpenError;
use crate::sql::{ADD_SCHEMA_VERSION, SCHEMA_VERSION, pending_migrations};
use crate::store::StoreError;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Executor, Sqlite, Transaction};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// How long a statement waits for another process to be done writing.
const BUSY: Duration = Duration::from_secs(5);
/// How long opening goes on when others open the file at the same time.
const OPENING: Duration = Duration::from_secs(30);
/// Connections that read.
const READERS: u32 = 4;

pub(super) struct File {
    options: SqliteConnectOptions,
    writer: Mutex<SqliteConnection>,
    pub(super) readers: SqlitePool,
}

impl File {
    pub(super) async fn open(path: &Path) -> Result<Self, OpenError> {
        create(path).map_err(|source| OpenError::Create {
            path: path.to_owned(),
            source,
        })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .busy_timeout(BUSY)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let mut writer = options.connect().await?;
        prepare(&mut writer).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(BUSY)
            .test_before_acquire(false)
            .connect_lazy_with(options.clone().pragma("query_only", "ON"));
        Ok(Self {
            options,
            writer: Mutex::new(writer),
            readers,
        })
    }

    /// The connection that writes, for a single statement. One that somebody left in the middle of a transaction, or that
    /// believes so since the disk was full, is left for another.
    pub(super) async fn writer(&self) -> Result<MutexGuard<'_, SqliteConnection>, StoreError> {
        let mut writer = self.writer.lock().await;
        if writer.is_in_transaction() {
            *writer = self.options.connect().await?;
        }
        Ok(writer)
    }
}

/// Begins to write more than one statement.
pub(super) async fn begin(
    writer: &mut SqliteConnection,
) -> Result<Transaction<'_, Sqlite>, sqlx::Error> {
    writer.begin_with("BEGIN IMMEDIATE").await
}

/// Makes the file, unless it is there. SQLite gives the files it puts beside it the same permissions.
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

/// Makes the file ready. Switching to WAL does not wait for others that do so at the same time, so it is tried again.
async fn prepare(writer: &mut SqliteConnection) -> Result<(), OpenError> {
    let begun = Instant::now();
    loop {
        match try_to_prepare(writer).await {
            Err(OpenError::Store(StoreError::Unavailable(_))) if begun.elapsed() < OPENING => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            prepared => return prepared,
        }
    }
}

async fn try_to_prepare(writer: &mut SqliteConnection) -> Result<(), OpenError> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode = WAL")
        .fetch_one(&mut *writer)
        .await?;
    if mode != "wal" {
        let failed = format!("the file system does not support WAL (journal mode {mode})");
        return Err(StoreError::Failed(failed.into()).into());
    }
    migrate(writer).await
}

/// Brings the tables up to date, in one transaction.
async fn migrate(writer: &mut SqliteConnection) -> Result<(), OpenError> {
    let mut tx = begin(writer).await?;
    tx.execute(
        "CREATE TABLE IF NOT EXISTS refrain_schema (version INTEGER NOT NULL PRIMARY KEY) STRICT",
    )
    .await?;
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
