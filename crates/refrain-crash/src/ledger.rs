//! The tables of attempts and of effects, in a SQLite file separate from the task store.

use crate::clock::{PATIENCE, retry};
use crate::error::CrashError;
use crate::plan::Effect;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::sqlite::{SqlitePool, SqlitePoolOptions};
use std::path::Path;

const TABLES: &str = "
CREATE TABLE crash_attempts (
    id BIGINT NOT NULL PRIMARY KEY,
    effect TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    run BIGINT NOT NULL,
    turn BIGINT NOT NULL,
    at BIGINT NOT NULL,
    retried BIGINT NOT NULL);
CREATE TABLE crash_ledger (
    idempotency_key TEXT NOT NULL PRIMARY KEY,
    effect TEXT NOT NULL,
    attempt BIGINT NOT NULL);";

/// An attempt at an effect, written before the effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttemptRow {
    /// The run of the worker, and the serial number of the attempt in that run.
    pub(crate) id: i64,
    pub(crate) effect: Effect,
    pub(crate) idempotency_key: String,
    pub(crate) run: u32,
    /// The handler's turn in that run.
    pub(crate) turn: u64,
    /// The start time.
    pub(crate) at: u64,
}

/// One effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectRow {
    pub(crate) idempotency_key: String,
    pub(crate) effect: Effect,
    /// The attempt that caused the effect.
    pub(crate) attempt: i64,
}

/// The database of attempts and effects.
#[derive(Clone, Debug)]
pub(crate) struct EffectLedger(SqlitePool);

impl EffectLedger {
    /// Opens the ledger in the directory of a run.
    pub(crate) fn open(dir: &Path) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(dir.join("ledger.db"))
            .create_if_missing(true)
            .busy_timeout(PATIENCE)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let pool = SqlitePoolOptions::new().max_connections(1);
        Self(pool.connect_lazy_with(options))
    }

    /// Creates the tables.
    pub(crate) async fn prepare(&self) -> Result<(), CrashError> {
        sqlx::raw_sql(TABLES).execute(&self.0).await?;
        Ok(())
    }

    /// Writes an attempt and waits until it is on disk.
    pub(crate) async fn attempt(&self, attempt: &AttemptRow) -> Result<(), CrashError> {
        const INSERT: &str = "
            INSERT INTO crash_attempts (id, effect, idempotency_key, run, turn, at, retried)
            VALUES ($1, $2, $3, $4, $5, $6, 0) ON CONFLICT DO NOTHING";
        let insert = || {
            sqlx::query(INSERT)
                .bind(attempt.id)
                .bind(attempt.effect.to_string())
                .bind(&attempt.idempotency_key)
                .bind(attempt.run)
                .bind(attempt.turn as i64)
                .bind(attempt.at as i64)
                .execute(&self.0)
        };
        retry(is_temporary, insert).await?;
        Ok(())
    }

    /// The number of attempts with this key that asked for a retry.
    pub(crate) async fn retries(&self, key: &str) -> Result<i64, CrashError> {
        const COUNT: &str =
            "SELECT count(*) FROM crash_attempts WHERE idempotency_key = $1 AND retried = 1";
        let count = || sqlx::query_scalar(COUNT).bind(key).fetch_one(&self.0);
        Ok(retry(is_temporary, count).await?)
    }

    /// Marks an attempt as one that asked for a retry.
    pub(crate) async fn retried(&self, attempt: i64) -> Result<(), CrashError> {
        const UPDATE: &str = "UPDATE crash_attempts SET retried = 1 WHERE id = $1";
        let update = || sqlx::query(UPDATE).bind(attempt).execute(&self.0);
        retry(is_temporary, update).await?;
        Ok(())
    }

    /// Writes the effect, at most once per key.
    pub(crate) async fn effect(&self, attempt: &AttemptRow) -> Result<(), CrashError> {
        const INSERT: &str = "
            INSERT INTO crash_ledger (idempotency_key, effect, attempt)
            VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        let insert = || {
            sqlx::query(INSERT)
                .bind(&attempt.idempotency_key)
                .bind(attempt.effect.to_string())
                .bind(attempt.id)
                .execute(&self.0)
        };
        retry(is_temporary, insert).await?;
        Ok(())
    }

    /// All attempts by start time.
    pub(crate) async fn attempts(&self) -> Result<Vec<AttemptRow>, CrashError> {
        const ALL: &str = "
            SELECT id, effect, idempotency_key, run, turn, at FROM crash_attempts ORDER BY at, id";
        type Row = (i64, String, String, u32, i64, i64);
        let rows: Vec<Row> = sqlx::query_as(ALL).fetch_all(&self.0).await?;
        let attempt = |(id, effect, idempotency_key, run, turn, at): Row| {
            Ok(AttemptRow {
                id,
                effect: parse(&effect)?,
                idempotency_key,
                run,
                turn: turn.unsigned_abs(),
                at: at.unsigned_abs(),
            })
        };
        rows.into_iter().map(attempt).collect()
    }

    /// All effects.
    pub(crate) async fn effects(&self) -> Result<Vec<EffectRow>, CrashError> {
        const ALL: &str = "SELECT idempotency_key, effect, attempt FROM crash_ledger";
        type Row = (String, String, i64);
        let rows: Vec<Row> = sqlx::query_as(ALL).fetch_all(&self.0).await?;
        let effect = |(idempotency_key, effect, attempt): Row| {
            Ok(EffectRow {
                idempotency_key,
                effect: parse(&effect)?,
                attempt,
            })
        };
        rows.into_iter().map(effect).collect()
    }
}

fn parse(effect: &str) -> Result<Effect, CrashError> {
    let malformed = || sqlx::Error::Decode(format!("malformed effect {effect}").into());
    Ok(Effect::parse(effect).ok_or_else(malformed)?)
}

/// Whether a retry can help. Only errors in the statement itself are permanent.
fn is_temporary(error: &sqlx::Error) -> bool {
    // Code 1 of SQLite: an error in the statement or a missing table.
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_none_or(|code| code != "1")
}
