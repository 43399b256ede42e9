//! Programs that `scripts/tools` installs: clients, servers and test suites of other projects.
//!
//! A test fails if they cannot be installed.

use super::process::Process;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Limit for the installation, in seconds.
const INSTALL_SECONDS: &str = "1500";
/// The log line of a server that is up, before its URL.
const LISTENING: &str = "listening on ";

pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace is in place")
}

pub async fn install() {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    INSTALLED
        .get_or_init(async || {
            let script = Command::new(root().join("scripts/tools"));
            run(INSTALL_SECONDS, &script).await;
        })
        .await;
}

/// Runs `program[0]` with the arguments `program[1..]`, which are all paths in the workspace, and then `args`. Returns its
/// standard output.
pub async fn run_tool(seconds: &str, program: &[&str], args: &[&OsStr]) -> String {
    run(seconds, &tool(program, args).await).await
}

/// Runs a program as [`run_tool`] does. It must fail without output; returns its standard error.
pub async fn tool_fails(seconds: &str, program: &[&str], args: &[&OsStr]) -> String {
    let output = output(seconds, &tool(program, args).await).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(output.stdout, b"", "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn tool(program: &[&str], args: &[&OsStr]) -> Command {
    install().await;
    let root = root();
    let mut command = Command::new(root.join(program[0]));
    command
        .args(program[1..].iter().map(|file| root.join(file)))
        .args(args);
    command
}

/// Runs a command that must succeed, and returns its output.
pub async fn run(seconds: &str, command: &Command) -> String {
    let output = output(seconds, command).await;
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    out.into_owned()
}

/// Runs a command in the root of the workspace, with a time limit.
pub async fn output(seconds: &str, command: &Command) -> Output {
    let command = command.as_std();
    Command::new("timeout")
        .args(["--kill-after=5", seconds])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(root())
        .env_remove("REFRAIN_KEYS")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("timeout(1) can be started")
}

/// Starts a server that prints its URL, and returns the URL.
pub async fn listening(command: Command) -> (Process, String) {
    let (process, line) = Process::start(command, LISTENING, None).await;
    let (_, url) = line.split_once(LISTENING).expect("a URL");
    (process, url.to_owned())
}
