//! Why a run could not be finished. What a run finds at fault is no error: it is in the report.

use refrain::runtime::store::cluster::ClusterError;
use refrain::runtime::store::{OpenError, StoreError};
use std::io;
use std::process::ExitStatus;

/// A run that could not be finished.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The task store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The task store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The task store contains the tasks of somebody else.
    #[error("the task store has tasks or attempts already: name an empty one")]
    NotEmpty,
    /// The ledger failed.
    #[error("ledger failed: {0}")]
    Ledger(#[from] sqlx::Error),
    /// Postgres could not be started.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A worker ended, and nobody had ended it.
    #[error("the worker of run {run} ended by itself ({status}); its last lines:\n{tail}")]
    WorkerEnded {
        run: u32,
        status: ExitStatus,
        tail: String,
    },
    /// The server could not be built.
    #[error("the server could not be built: {0}")]
    Build(#[from] refrain::server::BuildError),
    /// A reply was not what the protocol calls for.
    #[error("task {number}: {method} was answered with {reply}")]
    Reply {
        number: u32,
        method: &'static str,
        reply: String,
    },
    /// A request was not answered, however often it was sent.
    #[error(
        "task {number}: {method} was not answered within {seconds} seconds; the last error: {last}"
    )]
    NoReply {
        number: u32,
        method: &'static str,
        seconds: u64,
        last: String,
    },
    /// Something of the system could not be used.
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    /// A record is malformed.
    #[error("malformed record of run {run}: {source}")]
    Record { run: u32, source: serde_json::Error },
    /// The user or the system asked the run to end.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Adds to an I/O error what was being done.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// Why an argument of the command line is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgumentError {
    #[error("expected `sqlite`, `postgres`, or a URL that begins with `sqlite:` or `postgres:`")]
    Store,
    #[error("expected a time from `100ms` to `600s`")]
    Time,
}
