//! Programs of others, which `scripts/tools` installs. Where it cannot, the tests that need them fail: a program that did
//! not run has shown nothing.

use super::root;
use std::ffi::OsStr;
use std::process::{Output, Stdio};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Time for them to be installed in seconds, which is done once.
const TOOLS_TIME: &str = "1500";

/// Runs a program with this as its first arguments and then `args`, for so many seconds at most, and gives what it
/// printed.
pub(crate) async fn run_tool(time: &str, program: &[&str], args: &[&OsStr]) -> String {
    installed().await;
    run(time, program, args).await
}

/// Runs a program as [`run_tool`] does, which must fail without having printed anything, and gives its reason.
pub(crate) async fn tool_fails(time: &str, program: &[&str], args: &[&OsStr]) -> String {
    installed().await;
    let output = output(time, program, args).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(output.stdout, b"", "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn installed() {
    static TOOLS: OnceCell<()> = OnceCell::const_new();
    TOOLS
        .get_or_init(async || drop(run(TOOLS_TIME, &["scripts/tools"], &[]).await))
        .await;
}

async fn run(time: &str, program: &[&str], args: &[&OsStr]) -> String {
    let output = output(time, program, args).await;
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{} {args:?}: {}\n{out}{}",
        program.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    out.into_owned()
}

async fn output(time: &str, program: &[&str], args: &[&OsStr]) -> Output {
    let root = root();
    Command::new("timeout")
        .args(["--kill-after=5", time])
        .args(program.iter().map(|part| root.join(part)))
        .args(args)
        .env_remove("REFRAIN_KEYS")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("timeout(1) can be started")
}
