//! The servers, each as a process of its own.

use refrain_client::{Client, ClientBuilder, Error};
use refrain_testkit::net::process::Process;
use refrain_testkit::net::tools::{install, listening, root, run};
use std::path::{Path, PathBuf};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Time for the example to be built, in seconds, if that was not done before.
const BUILD_TIME: &str = "1500";

/// A server that can be started.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Program {
    /// A script of the workspace, and the program that runs it.
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
pub(crate) const OLDER: Program =
    Program::Script([".tools/bin/python-older", "tests/servers/older_server.py"]);
pub(crate) const EVERYTHING: Program = Program::Installed(".tools/bin/everything");

/// Where a server is.
pub(crate) enum Target {
    /// At this URL.
    Http(String),
    /// In a process that each connection starts.
    Stdio(Program),
}

impl Target {
    /// A connection of its own.
    pub(crate) async fn connect(&self, client: ClientBuilder) -> Result<Client, Error> {
        match self {
            Self::Http(url) => client.connect(url).await,
            Self::Stdio(program) => client.spawn(program.command("--stdio").await).await,
        }
    }
}

/// A server on a port of its own. Dropping it kills it.
pub(crate) struct Listening {
    url: String,
    _process: Process,
}

impl Listening {
    pub(crate) fn target(&self) -> Target {
        Target::Http(self.url.clone())
    }
}

impl Program {
    /// The command that starts it for one of the transports, once everything it needs is there.
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

    /// Starts it on a port of its own.
    pub(crate) async fn listen(self) -> Listening {
        let (process, url) = listening(self.command("--http").await).await;
        Listening {
            url,
            _process: process,
        }
    }
}

/// An example of this crate, newer than its source. `cargo test` has built it, unless it was asked for one target only.
async fn example(name: &str) -> PathBuf {
    static BUILT: OnceCell<()> = OnceCell::const_new();
    let this = std::env::current_exe().expect("a test is a program");
    let profile = this.ancestors().nth(2).expect("in target/PROFILE/deps");
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
