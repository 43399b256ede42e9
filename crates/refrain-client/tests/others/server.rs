//! The server processes.

use refrain_client::{Client, ClientBuilder, Error};
use refrain_testkit::net::process::Process;
use refrain_testkit::net::tools::{install, listening, root, run};
use std::path::{Path, PathBuf};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// The timeout for building the example, in seconds.
const BUILD_TIME: &str = "1500";

/// A server program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Program {
    /// An interpreter, and a script of the workspace.
    Script([&'static str; 2]),
    /// An example of this crate.
    Example(&'static str),
    /// A program that `scripts/tools` installs.
    Installed(&'static str),
}

pub(crate) const NPM: Program =
    Program::Script([".tools/bin/node", "tests/servers/npm_server.mjs"]);
pub(crate) const PYTHON: Program =
    Program::Script([".tools/bin/python", "tests/servers/python_server.py"]);
pub(crate) const RMCP: Program = Program::Example("rmcp_server");
pub(crate) const LEGACY: Program =
    Program::Script([".tools/bin/python-legacy", "tests/servers/legacy_server.py"]);
pub(crate) const EVERYTHING: Program = Program::Installed(".tools/bin/everything");

/// How to reach a server.
pub(crate) enum Target {
    /// The URL of a running server.
    Http(String),
    /// A program that each connection starts.
    Stdio(Program),
}

impl Target {
    /// Opens a new connection.
    pub(crate) async fn connect(&self, client: ClientBuilder) -> Result<Client, Error> {
        match self {
            Self::Http(url) => client.connect(url).await,
            Self::Stdio(program) => client.spawn(program.command("--stdio").await).await,
        }
    }
}

/// A server that listens on a port. Dropping it kills the process.
pub(crate) struct HttpServer {
    url: String,
    _process: Process,
}

impl HttpServer {
    pub(crate) fn target(&self) -> Target {
        Target::Http(self.url.clone())
    }
}

impl Program {
    /// Installs the dependencies, and returns the command for one of the transports.
    async fn command(self, transport: &str) -> Command {
        let mut command = match self {
            Self::Script([program, script]) => {
                install().await;
                let mut command = Command::new(root().join(program));
                command.arg(root().join(script));
                command
            }
            Self::Example(name) => Command::new(example(name).await),
            Self::Installed(program) => {
                install().await;
                return Command::new(root().join(program));
            }
        };
        command.arg(transport);
        command
    }

    /// Starts it on a free port.
    pub(crate) async fn listen(self) -> HttpServer {
        let (process, url) = listening(self.command("--http").await).await;
        HttpServer {
            url,
            _process: process,
        }
    }
}

/// The path of an example of this crate. Builds it if it is missing or older than its source.
async fn example(name: &str) -> PathBuf {
    static BUILT: OnceCell<()> = OnceCell::const_new();
    let this = std::env::current_exe().expect("a test has an executable");
    let profile = this
        .ancestors()
        .nth(2)
        .expect("the test is in target/PROFILE/deps");
    let program = profile.join("examples").join(name);
    let source = root().join(format!("tests/servers/{name}.rs"));
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    BUILT
        .get_or_init(async || {
            if changed(&program) < changed(&source) {
                let mut cargo = Command::new(env!("CARGO"));
                cargo.args(["build", "--locked", "--package", env!("CARGO_PKG_NAME")]);
                if !profile.ends_with("debug") {
                    cargo.arg("--profile").args(profile.file_name());
                }
                run(BUILD_TIME, cargo.args(["--example", name])).await;
            }
        })
        .await;
    program
}
