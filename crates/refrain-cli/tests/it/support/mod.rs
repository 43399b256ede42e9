//! Shared helpers: instances as processes, a balancer, and a client that answers asks.

pub(crate) mod client;
pub(crate) mod gateway;
pub(crate) mod instance;
pub(crate) mod ledger;
pub(crate) mod load;
pub(crate) mod reverse_proxy;
pub(crate) mod tasks;
pub(crate) mod terminal;

pub(crate) use client::{Call, Client, Finished, Reply};
pub(crate) use gateway::BackendLedger;
pub(crate) use instance::{
    Instance, Serve, config_check, ended, program, refrain, run, run_command, sqlite,
    without_settings,
};
pub(crate) use ledger::Ledger;
pub(crate) use load::Load;
pub(crate) use refrain_testkit::net::installed::{root, run_tool, tool_fails};
pub(crate) use refrain_testkit::net::issuer::{self, Signer};
pub(crate) use refrain_testkit::net::process::{Output, Process};
pub(crate) use refrain_testkit::net::{
    Balancer, Certificate, FakeServer, PATIENCE, Request, Respond, http, serve_forever, until,
    within,
};

use std::path::PathBuf;
use tempfile::TempDir;

/// A temporary directory for the files of one test.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file in the temporary directory");
        path
    }

    /// Makes a certificate for this host.
    pub(crate) fn certificate(&self, host: &str) -> Certificate {
        Certificate::new(self.0.path(), host, host)
    }

    /// Creates a key file with the binary under test.
    pub(crate) fn keys(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let made = refrain(["keys".as_ref(), "new".as_ref(), path.as_os_str()]);
        assert!(made.ok, "{made:?}");
        path
    }
}
