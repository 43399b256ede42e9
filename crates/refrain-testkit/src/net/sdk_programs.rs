//! The servers in `tests/servers` and the clients in `tests/clients`, which are written with other SDKs.

use super::installed::{install, listening, root, run};
use super::process::Process;
use std::fs::read_dir;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tokio::process::Command;
use tokio::sync::Mutex;

/// The timeout for building an example, in seconds.
const BUILD_SECONDS: &str = "1500";

/// A test program written with another SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// An interpreter, and a script of the workspace.
    Script(&'static str, &'static str),
    /// An example of `refrain-client`, and its directory.
    Example(&'static str, &'static str),
    /// A program that `scripts/tools` installs.
    Installed(&'static str),
}

const NODE: &str = ".tools/bin/node";
const PYTHON_2: &str = ".tools/bin/python";
const PYTHON_1: &str = ".tools/bin/python-legacy";

// The servers of 2026-07-28.
pub const NPM: Program = Program::Script(NODE, "tests/servers/npm_server.mjs");
pub const PYTHON: Program = Program::Script(PYTHON_2, "tests/servers/python_server.py");
pub const FASTMCP: Program = Program::Script(PYTHON_2, "tests/servers/fastmcp_server.py");
pub const RMCP: Program = Program::Example("rmcp_server", "tests/servers/rmcp_server");

// The servers of 2025-11-25.
pub const LEGACY_PYTHON: Program = Program::Script(PYTHON_1, "tests/servers/legacy_server.py");
pub const LEGACY_NPM: Program = Program::Script(NODE, "tests/servers/legacy_npm_server.mjs");
pub const EVERYTHING: Program = Program::Installed(".tools/bin/everything");
pub const EVERYTHING_HTTP: Program = Program::Script(NODE, "tests/servers/everything_http.mjs");

// The drivers of clients.
pub const DRIVE_NPM: Program = Program::Script(NODE, "tests/clients/drive_npm.mjs");
pub const DRIVE_PYTHON: Program = Program::Script(PYTHON_2, "tests/clients/drive_python.py");
pub const DRIVE_RMCP: Program = Program::Example("drive_rmcp", "tests/clients/drive_rmcp");
pub const DRIVE_LEGACY_PYTHON: Program =
    Program::Script(PYTHON_1, "tests/clients/drive_legacy_python.py");
pub const DRIVE_LEGACY_NPM: Program = Program::Script(NODE, "tests/clients/drive_legacy_npm.mjs");

impl Program {
    /// Installs the program or its dependencies, and returns its command.
    pub async fn command(self) -> Command {
        match self {
            Self::Script(interpreter, script) => {
                install().await;
                let mut command = Command::new(root().join(interpreter));
                command.arg(root().join(script));
                command
            }
            Self::Example(name, sources) => {
                Command::new(example(name, &root().join(sources)).await)
            }
            Self::Installed(program) => {
                install().await;
                Command::new(root().join(program))
            }
        }
    }

    /// The command of a server over standard input and output.
    pub async fn stdio(self) -> Command {
        let mut command = self.command().await;
        if !matches!(self, Self::Installed(_)) {
            command.arg("--stdio");
        }
        command
    }

    /// Starts a server on a free port with a transport, such as `--http`. Returns its URL.
    pub async fn listen(self, transport: &str) -> (Process, String) {
        let mut command = self.command().await;
        command.arg(transport);
        listening(command).await
    }
}

/// The path of an example. Builds it if it is missing or older than its sources.
async fn example(name: &str, sources: &Path) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::const_new(());
    let test_binary = std::env::current_exe().expect("a test has an executable");
    let profile = test_binary
        .ancestors()
        .nth(2)
        .expect("the test is in target/PROFILE/deps");
    let program = profile.join("examples").join(name);
    let _building = BUILDING.lock().await;
    let entries = read_dir(sources).expect("the sources are in place");
    let files = entries.map(|entry| entry.expect("a file").path());
    if modified_at(&program) < files.filter_map(|file| modified_at(&file)).max() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--package", "refrain-client"]);
        if !profile.ends_with("debug") {
            cargo.arg("--profile").args(profile.file_name());
        }
        run(BUILD_SECONDS, cargo.args(["--example", name])).await;
    }
    program
}

fn modified_at(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|data| data.modified()).ok()
}
