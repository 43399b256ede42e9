//! Errors that end a run. Faults that a run finds are in its report.

use refrain::runtime::store::cluster::ClusterError;
use refrain::runtime::store::{OpenError, StoreError};
use std::io;
use std::process::ExitStatus;

/// An error that ends a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the task store is not empty; use an empty one")]
    NotEmpty,
    #[error("ledger failed: {0}")]
    Ledger(#[from] sqlx::Error),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(
        "the worker of run {run} exited unexpectedly ({status}); last lines of its log:\n{tail}"
    )]
    WorkerEnded {
        run: u32,
        status: ExitStatus,
        tail: String,
    },
    #[error("could not build the server: {0}")]
    Build(#[from] refrain::server::BuildError),
    /// A reply that the protocol does not allow, or none at all.
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

impl Error {
    /// Adds the failed operation to an I/O error.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// An invalid argument for the task store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `sqlite`, `postgres`, or a URL that begins with `sqlite:` or `postgres:`")]
pub(crate) struct InvalidStore;
