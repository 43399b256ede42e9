//! The attempts table and the ledger: what was tried, and what was done.
//!
//! For a task store in Postgres they are tables of the same database, on connections of their own. For one in a file of
//! SQLite they are in another file, so that the store's own lock is not what is tested.

use crate::error::Error;
use crate::plan::Effect;
use refrain::runtime::store::{OpenError, UrlError};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::sqlite::{SqlitePool, SqlitePoolOptions};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one operation is tried before the run has failed.
const PATIENCE: Duration = Duration::from_secs(120);

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS crash_attempts (
        id BIGINT NOT NULL PRIMARY KEY,
        effect TEXT NOT NULL,
        idempotency_key TEXT NOT NULL,
        run BIGINT NOT NULL,
        turn BIGINT NOT NULL,
        at BIGINT NOT NULL,
        retried BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS crash_ledger (
        idempotency_key TEXT NOT NULL PRIMARY KEY,
        effect TEXT NOT NULL,
        attempt BIGINT NOT NULL)",
];

/// One attempt at an effect. It is there before anything is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttemptRow {
    /// Its number: that of the run of the worker, and how many that run had made before.
    pub(crate) id: i64,
    /// What is tried, as text.
    pub(crate) effect: String,
    /// The step's idempotency key.
    pub(crate) idempotency_key: String,
    /// The run of a worker that tries it.
    pub(crate) run: i64,
    /// The turn of the handler in that run.
    pub(crate) turn: i64,
    /// When it began.
    pub(crate) at: i64,
    /// Did it ask to be tried again? 0 or 1.
    pub(crate) retried: i64,
}

/// One effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectRow {
    /// The step's idempotency key.
    pub(crate) idempotency_key: String,
    /// What was done, as text.
    pub(crate) effect: String,
    /// The attempt that did it.
    pub(crate) attempt: i64,
}

/// Where attempts and effects are written down.
#[derive(Clone, Debug)]
pub(crate) enum Ledger {
    /// In a file.
    Sqlite(SqlitePool),
    /// In the database of the task store.
    Postgres(PgPool),
}

/// Does the same with whichever pool there is. The statements are the same for both.
macro_rules! on {
    ($ledger:expr, $pool:ident => $work:expr) => {
        match $ledger {
            Ledger::Sqlite($pool) => $work,
            Ledger::Postgres($pool) => $work,
        }
    };
}

impl Ledger {
    /// Opens the ledger beside a task store: `file` is for those that are not in Postgres.
    pub(crate) async fn open(store: &str, file: &Path) -> Result<Self, Error> {
        let postgres = store.starts_with("postgres:") || store.starts_with("postgresql:");
        let opened = if postgres {
            // What the parser says may repeat a part of the URL, and of its password.
            let parsed: Result<PgConnectOptions, _> = store.parse();
            let options = parsed.map_err(|_| OpenError::Url(UrlError::Postgres))?;
            let options = options.disable_statement_logging();
            let pool = PgPoolOptions::new().max_connections(4);
            Self::Postgres(pool.connect_lazy_with(options))
        } else {
            let options = SqliteConnectOptions::new()
                .filename(file)
                .create_if_missing(true)
                .busy_timeout(PATIENCE)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .disable_statement_logging();
            let pool = SqlitePoolOptions::new().max_connections(1);
            Self::Sqlite(pool.connect_lazy_with(options))
        };
        Ok(opened)
    }

    /// Makes the tables.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        for table in TABLES {
            let made = on!(self, pool => sqlx::query(table).execute(pool).await.map(drop));
            made?;
        }
        Ok(())
    }

    /// Writes down that something is tried. Until that is on the disk, nothing is done.
    pub(crate) async fn attempt(&self, attempt: &AttemptRow) -> Result<(), Error> {
        const INSERT: &str = "
            INSERT INTO crash_attempts (id, effect, idempotency_key, run, turn, at, retried)
            VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
        until_done(|| async {
            on!(self, pool => sqlx::query(INSERT)
                .bind(attempt.id)
                .bind(&attempt.effect)
                .bind(&attempt.idempotency_key)
                .bind(attempt.run)
                .bind(attempt.turn)
                .bind(attempt.at)
                .bind(attempt.retried)
                .execute(pool).await.map(drop))
        })
        .await
    }

    /// How many attempts with this key have asked to be tried again?
    pub(crate) async fn retries(&self, key: &str) -> Result<i64, Error> {
        const COUNT: &str =
            "SELECT count(*) FROM crash_attempts WHERE idempotency_key = $1 AND retried = 1";
        until_done(|| async {
            on!(self, pool => sqlx::query_scalar(COUNT).bind(key).fetch_one(pool).await)
        })
        .await
    }

    /// Writes down that this attempt asks to be tried again.
    pub(crate) async fn retried(&self, attempt: i64) -> Result<(), Error> {
        const UPDATE: &str = "UPDATE crash_attempts SET retried = 1 WHERE id = $1";
        until_done(|| async {
            on!(self, pool => sqlx::query(UPDATE).bind(attempt).execute(pool).await.map(drop))
        })
        .await
    }

    /// The effect itself: once for each key, however often it is tried.
    pub(crate) async fn effect(
        &self,
        key: &str,
        effect: Effect,
        attempt: i64,
    ) -> Result<(), Error> {
        const INSERT: &str = "
            INSERT INTO crash_ledger (idempotency_key, effect, attempt)
            VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        let effect = effect.to_string();
        until_done(|| async {
            on!(self, pool => sqlx::query(INSERT)
                .bind(key)
                .bind(&effect)
                .bind(attempt)
                .execute(pool).await.map(drop))
        })
        .await
    }

    /// All attempts.
    pub(crate) async fn attempts(&self) -> Result<Vec<AttemptRow>, Error> {
        const ALL: &str = "
            SELECT id, effect, idempotency_key, run, turn, at, retried
            FROM crash_attempts ORDER BY at, id";
        type Row = (i64, String, String, i64, i64, i64, i64);
        let rows: Vec<Row> =
            until_done(|| async { on!(self, pool => sqlx::query_as(ALL).fetch_all(pool).await) })
                .await?;
        let attempt = |(id, effect, idempotency_key, run, turn, at, retried): Row| AttemptRow {
            id,
            effect,
            idempotency_key,
            run,
            turn,
            at,
            retried,
        };
        Ok(rows.into_iter().map(attempt).collect())
    }

    /// All effects.
    pub(crate) async fn effects(&self) -> Result<Vec<EffectRow>, Error> {
        const ALL: &str = "SELECT idempotency_key, effect, attempt FROM crash_ledger";
        let rows: Vec<(String, String, i64)> =
            until_done(|| async { on!(self, pool => sqlx::query_as(ALL).fetch_all(pool).await) })
                .await?;
        let effect = |(idempotency_key, effect, attempt)| EffectRow {
            idempotency_key,
            effect,
            attempt,
        };
        Ok(rows.into_iter().map(effect).collect())
    }

    /// Cuts the connections of some of the others, as many as are asked for. Gives how many were.
    pub(crate) async fn cut_connections(&self, most: i64) -> Result<u64, Error> {
        const CUT: &str = "
            SELECT count(pg_terminate_backend(pid)) FROM (
                SELECT pid FROM pg_stat_activity
                WHERE pid <> pg_backend_pid() AND datname = current_database()
                  AND backend_type = 'client backend'
                ORDER BY random() LIMIT $1) AS chosen";
        let Self::Postgres(pool) = self else {
            return Ok(0);
        };
        let cut = until_done(|| async {
            let query = sqlx::query_scalar::<_, i64>(CUT).bind(most);
            query.fetch_one(pool).await
        });
        Ok(cut.await?.unsigned_abs())
    }
}

/// Does something again and again until it succeeds: a connection may be cut at any time, and the database restarted.
async fn until_done<T, F>(mut work: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let begun = Instant::now();
    loop {
        match work().await {
            Ok(done) => return Ok(done),
            Err(error) if begun.elapsed() > PATIENCE || is_mistake(&error) => {
                return Err(error.into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Is it the statement that is wrong? Postgres has a class of codes for that.
fn is_mistake(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code.len() == 5 && code.starts_with("42"))
}
