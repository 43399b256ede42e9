//! Errors of a run.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use refrain_server::BuildError;
use refrain_store::OpenStoreError;
use refrain_store::test_postgres::TestPostgresError;
use tokio::task::JoinError;

use crate::load::Workload;
use crate::wire::WireError;

/// A failed run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "no server at {}: build it with `cargo build --profile dist`, name another with --refrain, \
         or measure the floor alone with --floor-only",
        path.display()
    )]
    NoServer { path: PathBuf },
    /// A server did not start or stop correctly.
    #[error("{server} {what}; last lines of its log:\n{tail}")]
    Server {
        server: &'static str,
        what: String,
        tail: String,
    },
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    /// A file of /proc lacks a field.
    #[error("{path}: missing or invalid {field}")]
    Unreadable { path: String, field: &'static str },
    #[error("{server}, {workload}: {source}")]
    WrongReply {
        server: &'static str,
        workload: Workload,
        source: WireError,
    },
    #[error("{what} took longer than {limit:?}")]
    TimedOut { what: String, limit: Duration },
    #[error("valgrind --tool={tool} printed no total for {server}; its log:\n{log}")]
    NoTotal {
        tool: &'static str,
        server: &'static str,
        log: String,
    },
    #[error("{0}; use `--store sqlite` to skip Postgres")]
    Cluster(#[from] TestPostgresError),
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
    #[error("the database contains {0} tasks; the benchmark needs an empty one")]
    InUse(i64),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("a client failed: {0}")]
    Client(#[from] JoinError),
    #[error("malformed reply: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("expected {expected}, got {reply}")]
    Unexpected {
        expected: &'static str,
        reply: String,
    },
    #[error("only {completed} of {lives} tasks were completed")]
    Incomplete { completed: u64, lives: u64 },
    #[error("the worker of the floor failed")]
    FloorWorker,
    #[error("the idle instance exited with {0}")]
    IdleInstance(ExitStatus),
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Adds the failed operation to an I/O error.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// An invalid command-line argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgumentError {
    #[error("expected a number of seconds between 0.01 and 3600")]
    Seconds,
    #[error("expected `sqlite`, `postgres`, `sqlite:FILE` or `postgres://..`")]
    Store,
}
