//! Why a run could not be finished. What a run finds at fault is no error: it is in the report.

use std::io;
use std::process::ExitStatus;

/// A run that could not be finished.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The task store cannot be used.
    #[error("the task store cannot be used: {reason}")]
    Store { reason: String },
    /// The ledger cannot be used.
    #[error("the ledger could not {what}: {source}")]
    Ledger {
        what: &'static str,
        source: sqlx::Error,
    },
    /// There is no Postgres to be had.
    #[error(transparent)]
    Cluster(#[from] refrain::store::cluster::ClusterError),
    /// A worker ended, and nobody had ended it.
    #[error("the worker of run {run} ended by itself ({status}); its last lines:\n{tail}")]
    WorkerEnded {
        run: u32,
        status: ExitStatus,
        tail: String,
    },
    /// The server could not be built.
    #[error("the server could not be built: {0}")]
    Build(#[from] refrain::BuildError),
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
    /// What a run has written down cannot be read.
    #[error("the record of run {run} cannot be read: {reason}")]
    Record { run: u32, reason: String },
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

    /// Wraps an error of a database with what was being done.
    pub(crate) fn ledger(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Ledger { what, source }
    }
}
