//! The backend of the gateways under test: `backend.py` of `refrain-gateway`.

use super::{Files, root};
use serde_json::json;
use std::path::PathBuf;

/// The file in which the backend notes each run of a tool.
pub(crate) struct BackendLedger(PathBuf);

impl BackendLedger {
    pub(crate) fn new(files: &Files) -> Self {
        Self(files.path("backend ledger"))
    }

    /// The command of the backend, as a TOML array.
    pub(crate) fn command(&self, flags: &[&str]) -> String {
        let script = root().join("crates/refrain-gateway/tests/backend.py");
        let mut command = vec!["python3", script.to_str().expect("a path in UTF-8")];
        command.push(self.0.to_str().expect("a path in UTF-8"));
        command.extend(flags);
        json!(command).to_string()
    }

    /// The number of processes of the backend.
    pub(crate) fn processes(&self) -> usize {
        let ledger = self.0.as_os_str().as_encoded_bytes();
        let processes = std::fs::read_dir("/proc").expect("the processes");
        let commands =
            processes.filter_map(|it| std::fs::read(it.ok()?.path().join("cmdline")).ok());
        let is_backend =
            |command: &Vec<u8>| command.split(|byte| *byte == 0).any(|it| it == ledger);
        commands.filter(is_backend).count()
    }

    /// How often the backends ran a tool that leaves this line.
    pub(crate) fn count(&self, line: &str) -> usize {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter(|written| *written == line).count()
    }
}
