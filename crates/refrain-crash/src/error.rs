//! Errors that end a run. Faults found by the check are in the report.

use refrain::runtime::store::test_postgres::TestPostgresError;
use refrain::runtime::store::{OpenStoreError, StoreError};
use std::io;
use std::process::ExitStatus;

/// Why a run could not finish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CrashError {
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("connections could not be cut: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error(transparent)]
    Cluster(#[from] TestPostgresError),
    #[error("the worker of run {run} ended by itself ({status}); its last lines:\n{tail}")]
    WorkerEnded {
        run: u32,
        status: ExitStatus,
        tail: String,
    },
    #[error("the server could not be built: {0}")]
    Build(#[from] refrain::server::BuildError),
    /// An unexpected reply, or no reply.
    #[error("task {number}: {method} was {what}")]
    Reply {
        number: u32,
        method: &'static str,
        what: String,
    },
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    #[error("interrupted")]
    Interrupted,
}

impl CrashError {
    /// Adds context to an I/O error.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
