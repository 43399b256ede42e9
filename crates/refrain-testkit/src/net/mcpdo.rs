//! The `mcpdo` command of the MCP Inspector, and a private daemon for its connections that ends
//! with the test.

use super::installed::root;
use serde_json::Value;
use std::os::unix::fs::FileTypeExt;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};

/// The name of the connection, unless a test names another one.
const CONNECTION: &str = "refrain";
/// The timeout of a command, and of the next output of a running command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

pub struct Mcpdo {
    directory: TempDir,
    daemon: Child,
}

/// The output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// Its exit status.
    pub status: Option<i32>,
    /// The JSON on standard output, or null.
    pub out: Value,
    /// The reason on standard error.
    pub error: String,
}

impl Mcpdo {
    pub async fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let daemon = command(&directory, "mcpdod")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon can be started");
        let socket = directory.path().join("mcpdod.sock");
        let has_socket =
            || std::fs::metadata(&socket).is_ok_and(|file| file.file_type().is_socket());
        let ready = async {
            while !has_socket() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(COMMAND_TIMEOUT, ready)
            .await
            .expect("the daemon listens");
        Self { directory, daemon }
    }

    pub async fn connect(&self, target: &[&str]) {
        self.connect_as(CONNECTION, target).await;
    }

    /// Opens a connection with another name.
    pub async fn connect_as(&self, connection: &str, target: &[&str]) {
        let connect = ["connect", "--era", "modern", "--elicit", "both"];
        let output = self.run_on(connection, &[&connect, target].concat()).await;
        assert_eq!(output.out["protocolEra"], "modern", "{output:?}");
    }

    /// Runs a command to its end.
    pub async fn run(&self, args: &[&str]) -> CommandOutput {
        self.run_on(CONNECTION, args).await
    }

    /// Runs a command on another connection to its end.
    pub async fn run_on(&self, connection: &str, args: &[&str]) -> CommandOutput {
        let output = self.command(connection, args).output();
        let output = timeout(COMMAND_TIMEOUT, output).await;
        let output = output
            .expect("the command ends by itself")
            .expect("mcpdo can be started");
        CommandOutput {
            status: output.status.code(),
            out: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            error: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Starts a command that runs until it is dropped.
    pub fn follow(&self, args: &[&str]) -> RunningCommand {
        let mut process = self
            .command(CONNECTION, args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("mcpdo can be started");
        let stdout = process.stdout.take().expect("stdout is a pipe");
        RunningCommand {
            lines: BufReader::new(stdout).lines(),
            _process: process,
        }
    }

    fn command(&self, connection: &str, args: &[&str]) -> Command {
        let mut command = command(&self.directory, "mcpdo");
        command
            .args(["--format", "json", "--connection", connection])
            .args(args);
        command
    }

    /// Stops the daemon and its connections.
    pub async fn stop(mut self) {
        let output = self.run(&["daemon", "stop"]).await;
        assert_eq!(output.status, Some(0), "{output:?}");
        let ended = timeout(COMMAND_TIMEOUT, self.daemon.wait()).await;
        let status = ended.expect("the daemon ends").expect("it can be awaited");
        assert!(status.success(), "{status}");
    }
}

/// A running command.
pub struct RunningCommand {
    lines: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl RunningCommand {
    /// The next output: an object on several lines.
    pub async fn next(&mut self) -> Value {
        let mut text = String::new();
        let object = async {
            while let Some(line) = self.lines.next_line().await.expect("stdout can be read") {
                text.push_str(&line);
                if line == "}" {
                    return;
                }
            }
            panic!("the command ended");
        };
        timeout(COMMAND_TIMEOUT, object)
            .await
            .expect("output arrives in time");
        serde_json::from_str(&text).expect("the output is JSON")
    }
}

/// A program of the Inspector with its files in this directory. It is killed on drop.
fn command(directory: &TempDir, program: &str) -> Command {
    let mut command = Command::new(root().join(".tools/bin").join(program));
    for name in ["HOME", "MCP_STORAGE_DIR", "MCP_INSPECTOR_DAEMON_DIR"] {
        command.env(name, directory.path());
    }
    command
        .env("MCP_INSPECTOR_DAEMON_TOKEN", "test-token")
        .env("MCP_INSPECTOR_SECRET_STORE", "file")
        // Compiling takes a third of a command's time.
        .env("NODE_COMPILE_CACHE", directory.path().join("compiled"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}
