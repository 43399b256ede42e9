//! What can go wrong in a run, each with what to look at next.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use refrain_server::BuildError;
use refrain_store::OpenError;
use refrain_store::cluster::ClusterError;
use tokio::task::JoinError;

use crate::load::{WireError, Workload};

/// A run that could not be finished. Nothing is measured past the first of these.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A program could not be started at all.
    #[error("could not start {program}: {source}")]
    Start { program: String, source: io::Error },
    /// The server binary is not there.
    #[error(
        "no server at {}: build it with `cargo build --profile dist`, name another with --refrain, \
         or measure the floor alone with --floor-only",
        path.display()
    )]
    NoServer { path: PathBuf },
    /// A server ended before it was told to.
    #[error("{server} ended early ({status}); its last lines:\n{tail}")]
    EndedEarly {
        server: &'static str,
        status: ExitStatus,
        tail: String,
    },
    /// A server did not print its address in time.
    #[error("{server} did not print its URL on stderr within {limit:?}; its last lines:\n{tail}")]
    NotReady {
        server: &'static str,
        limit: Duration,
        tail: String,
    },
    /// A server was told to stop and did not, or not cleanly.
    #[error("{server} did not end cleanly on SIGTERM: {what}; its last lines:\n{tail}")]
    NotStopped {
        server: &'static str,
        what: String,
        tail: String,
    },
    /// Something of the system could not be used.
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    /// A file of the system did not look as expected.
    #[error("{path} has no readable {field}")]
    Unreadable { path: String, field: &'static str },
    /// Replies that were wrong or missing.
    #[error(
        "{server}, {workload}: {failed} of {connections} connections failed, the first with: {first}"
    )]
    WrongReplies {
        server: &'static str,
        workload: Workload,
        failed: usize,
        connections: usize,
        first: WireError,
    },
    /// Replies that did not come.
    #[error("{server}, {workload}: no end within {limit:?}")]
    Stuck {
        server: &'static str,
        workload: Workload,
        limit: Duration,
    },
    /// A tool of valgrind gave no total.
    #[error("valgrind --tool={tool} printed no total for {server}; its log:\n{log}")]
    NoTotal {
        tool: &'static str,
        server: &'static str,
        log: String,
    },
    /// The load generator runs on another core than asked for.
    #[error("the load generator could not be pinned to core {core}: it may run on {allowed}")]
    NotPinned { core: usize, allowed: String },
    /// There is no Postgres to measure on.
    #[error("{0}; leave it out with `--store sqlite`")]
    Cluster(#[from] ClusterError),
    /// A store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database failed the floor.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
    /// The store that was named is somebody's.
    #[error("the store holds {0} tasks: name a database of its own for the benchmark, without any")]
    InUse(i64),
    /// The server of the tasks could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A client ended abnormally.
    #[error("a client failed: {0}")]
    Client(#[from] JoinError),
    /// A reply is not JSON.
    #[error("malformed reply: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A reply is not the expected one.
    #[error("expected {expected}, got {reply}")]
    Unexpected {
        expected: &'static str,
        reply: String,
    },
    /// Something took too long.
    #[error("{what} took longer than {limit:?}")]
    TimedOut { what: String, limit: Duration },
    /// Tasks were not completed.
    #[error("{completed} of {lives} tasks are completed")]
    Incomplete { completed: u64, lives: u64 },
    /// The worker of the floor failed.
    #[error("the floor's worker failed")]
    FloorWorker,
    /// The idle instance failed.
    #[error("the idle instance ended with {0}")]
    IdleInstance(ExitStatus),
    /// The user or the system asked the run to end.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Wraps an I/O error with what was being done.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// Why an argument of the command line is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgumentError {
    #[error("expected a number of seconds between 0.01 and 3600")]
    Seconds,
    #[error("expected `sqlite`, `postgres`, `sqlite:FILE` or `postgres://..`")]
    Store,
}
