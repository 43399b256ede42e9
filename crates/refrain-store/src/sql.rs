//! The common parts of the SQLite and Postgres stores.
//!
//! | module | contents |
//! | --- | --- |
//! | `group_commit` | the queue of writes, and their transactions |
//! | `outbox` | statements and rows of the outbox |
//! | `operations` | the implementation of the store traits |
//! | `rows` | conversion between tasks and columns |
//! | `schema` | the tables |
//! | `statements` | SQL |

mod group_commit;
mod operations;
mod outbox;
mod rows;
mod schema;
mod statements;

use crate::store::StoreError;
pub(crate) use group_commit::*;
pub(crate) use operations::impl_store;
pub(crate) use outbox::*;
pub(crate) use rows::*;
pub(crate) use schema::*;
pub(crate) use statements::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The time limit of one operation, so that a dead connection causes an error.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs an operation within [`TIMEOUT`].
pub(crate) fn run<'a, T, E: From<StoreError>>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'a,
) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>> {
    Box::pin(async {
        let done = tokio::time::timeout(TIMEOUT, work).await;
        Ok(done.unwrap_or_else(|_| Err(StoreError::timed_out(TIMEOUT)))?)
    })
}

/// Returns the number of a new commit. A commit that timed out may reach the database after its retry. It is then rejected,
/// since its number is lower. Only commits under one lease are compared.
pub(crate) fn next_commit() -> i64 {
    static COMMITS: AtomicI64 = AtomicI64::new(1);
    COMMITS.fetch_add(1, Ordering::Relaxed)
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error;
        let variant = match &error {
            Error::Io(_) | Error::Tls(_) | Error::Protocol(_) => Self::Unavailable,
            Error::PoolTimedOut | Error::PoolClosed | Error::WorkerCrashed => Self::Unavailable,
            Error::ColumnDecode { .. } | Error::Decode(_) => Self::Corrupt,
            Error::Database(error) => error
                .code()
                .map_or(Self::Failed as ErrorVariant, |code| error_variant(&code)),
            _ => Self::Failed,
        };
        #[cfg(feature = "postgres")]
        if let Error::Database(database) = &error
            && let Some(postgres) = database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        {
            let text = format!("{} ({})", postgres.message(), postgres.code());
            return variant(Box::new(PostgresError {
                text,
                source: error,
            }));
        }
        variant(error.into())
    }
}

/// An error of Postgres, with its code. The text of sqlx ends in a line number of Postgres' source code.
#[cfg(feature = "postgres")]
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct PostgresError {
    text: String,
    source: sqlx::Error,
}

/// A variant of [`StoreError`] that has a source.
type ErrorVariant = fn(Box<dyn std::error::Error + Send + Sync>) -> StoreError;

/// The variant for a database error code.
fn error_variant(code: &str) -> ErrorVariant {
    if code.len() == 5 {
        // Postgres: connections, resources, shutdown, read-only standby, serialization failures, timeouts; corrupt data.
        return match code {
            "57P01" | "57P02" | "57P03" | "57P05" | "57014" => StoreError::Unavailable,
            "25006" | "40001" | "40P01" | "55P03" => StoreError::Unavailable,
            "XX001" | "XX002" => StoreError::Corrupt,
            _ if code.starts_with("08") || code.starts_with("53") => StoreError::Unavailable,
            _ => StoreError::Failed,
        };
    }
    // SQLite: busy, locked, disk full; corrupt, not a database. The lower byte of the error code
    // is SQLite's primary code.
    match code.parse::<u32>().map(|code| code & 0xff) {
        Ok(5 | 6 | 13) => StoreError::Unavailable,
        Ok(11 | 26) => StoreError::Corrupt,
        _ => StoreError::Failed,
    }
}
