//! The common parts of the SQLite and Postgres stores: error mapping, statements, row mapping.

mod delegate;
mod rows;
mod statements;

use crate::open::OpenError;
use crate::store::StoreError;
pub(crate) use delegate::impl_store;
pub(crate) use rows::*;
pub(crate) use statements::*;
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The time limit of one operation, so that a dead connection becomes an error.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs an operation within [`TIMEOUT`].
pub(crate) async fn within<T, E: From<StoreError>>(
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, E> {
    let done = tokio::time::timeout(TIMEOUT, work).await;
    let done = done.unwrap_or_else(|_| Err(StoreError::timed_out(TIMEOUT)));
    Ok(done?)
}

/// Numbers the commits of this process. One that was given up while it was under way may reach the tables after the one
/// that was written in its place; its lower number then keeps it out.
pub(crate) fn next_commit() -> i64 {
    static COMMITS: AtomicI64 = AtomicI64::new(1);
    COMMITS.fetch_add(1, Ordering::Relaxed)
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error;
        let kind = match &error {
            Error::Io(_) | Error::Tls(_) | Error::Protocol(_) => Self::Unavailable,
            Error::PoolTimedOut | Error::PoolClosed | Error::WorkerCrashed => Self::Unavailable,
            Error::ColumnDecode { .. } | Error::Decode(_) => Self::Corrupt,
            Error::Database(error) => error
                .code()
                .map_or(Self::Failed as Kind, |code| kind(&code)),
            _ => Self::Failed,
        };
        kind(error.into())
    }
}

/// A variant of [`StoreError`] that has a source.
type Kind = fn(Box<dyn std::error::Error + Send + Sync>) -> StoreError;

/// The kind of error that a database reports with this code.
fn kind(code: &str) -> Kind {
    if code.len() == 5 {
        // Postgres: connections, resources, shutdown, a standby after a failover, lost races, timeouts; corrupted data.
        return match code {
            "57P01" | "57P02" | "57P03" | "57P05" | "57014" => StoreError::Unavailable,
            "25006" | "40001" | "40P01" | "55P03" => StoreError::Unavailable,
            "XX001" | "XX002" => StoreError::Corrupt,
            _ if code.starts_with("08") || code.starts_with("53") => StoreError::Unavailable,
            _ => StoreError::Failed,
        };
    }
    // SQLite: busy, locked, disk full; corrupt, not a database. The lower byte is the primary code.
    match code.parse::<u32>().map(|code| code & 0xff) {
        Ok(5 | 6 | 13) => StoreError::Unavailable,
        Ok(11 | 26) => StoreError::Corrupt,
        _ => StoreError::Failed,
    }
}

/// The migrations that tables of the version `found` lack, with their versions.
pub(crate) fn pending_migrations(
    found: i64,
    versions: &'static [&'static str],
) -> Result<impl Iterator<Item = (i64, &'static str)>, OpenError> {
    let known = versions.len() as i64;
    if found > known {
        return Err(OpenError::Newer { found, known });
    }
    let all = (1..).zip(versions.iter().copied());
    Ok(all.filter(move |(version, _)| *version > found))
}
