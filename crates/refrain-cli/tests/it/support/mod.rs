//! What the tests share: instances as processes, a balancer in front of them, and a client that answers rounds.

pub(crate) mod balancer;
pub(crate) mod client;
pub(crate) mod http;
pub(crate) mod instance;
pub(crate) mod issuer;
pub(crate) mod ledger;
pub(crate) mod tasks;
pub(crate) mod terminal;
pub(crate) mod told;
pub(crate) mod tools;

pub(crate) use balancer::Balancer;
pub(crate) use client::{Call, Client, Finished, Reply};
pub(crate) use instance::{Instance, Said, Serve, program, refrain, run, said, sqlite};
pub(crate) use issuer::Issuer;
pub(crate) use ledger::Ledger;
pub(crate) use told::{Say, Told};
pub(crate) use tools::{run_tool, tool_fails};

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine, and shorter than the limits of a minute that an instance has where
/// nothing else is set.
pub(crate) const PATIENCE: Duration = Duration::from_secs(50);

/// A directory for the files of one test, which goes away with it.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file and gives its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file in the temporary directory");
        path
    }

    /// Makes a key file, with the binary under test.
    pub(crate) fn keys(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let made = refrain(["keys".as_ref(), "new".as_ref(), path.as_os_str()]);
        assert!(made.ok, "{made:?}");
        path
    }
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace is where it was built")
}

/// Waits for something that must happen, and not for ever.
pub(crate) async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| panic!("{what}: not after {PATIENCE:?}"))
}
