//! The servers, each as a process of its own.

use refrain_client::{Client, ClientBuilder, Error};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The line that tells where a server is, up to the URL.
const LISTENING: &str = "listening on ";
/// Time for a server to print that line.
const START_TIME: Duration = Duration::from_secs(120);
/// Time for everything to be installed, in seconds, which is done once.
const TOOLS_TIME: &str = "1500";
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

/// A server on a port of its own, which is killed when the test is over, however it ends.
pub(crate) struct Listening {
    url: String,
    _process: Child,
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
        let mut process = self
            .command("--http")
            .await
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the server could not be started");
        let stdout = process.stdout.take().expect("stdout is a pipe");
        let mut lines = BufReader::new(stdout).lines();
        let url = async {
            while let Some(line) = lines.next_line().await.expect("stdout can be read") {
                if let Some(url) = line.strip_prefix(LISTENING) {
                    return url.to_owned();
                }
            }
            panic!("the server ended without saying where it listens");
        };
        let url = timeout(START_TIME, url)
            .await
            .expect("the server did not say where it listens");
        // Reads on until the server has ended, so that it can always write.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("server: {line}");
            }
        });
        Listening {
            url,
            _process: process,
        }
    }
}

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Sees to it that the SDKs are installed.
pub(crate) async fn install() {
    static TOOLS: OnceCell<()> = OnceCell::const_new();
    TOOLS
        .get_or_init(async || {
            run(TOOLS_TIME, &mut Command::new(root().join("scripts/tools"))).await;
        })
        .await;
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

/// Runs a command for so many seconds at most. It must end well.
async fn run(seconds: &str, command: &mut Command) {
    let command = command.as_std();
    let output = Command::new("timeout")
        .args(["--kill-after=5", seconds])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(root())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("timeout(1) can be started");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
