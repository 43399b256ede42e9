//! The commands of the client, against `refrain serve` and against faulty servers.

mod answers;
mod bad_servers;
mod dialects;
mod dying_servers;
mod json_errors;
mod lists;
mod login;
mod repeats;
mod saved;
mod stdio;
mod tasks;
mod terminal;
mod trace;

use crate::support::{Output, program, run_command};
use refrain_client::PendingCall;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;

/// Standard output, as JSON.
fn json(output: &Output) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn saved_call(file: &Path) -> PendingCall {
    let text = std::fs::read_to_string(file).expect("the call is saved");
    serde_json::from_str(&text).expect("the file is a saved call")
}

/// Runs a command with an environment variable.
async fn with_env<S: AsRef<OsStr>>(name: &str, value: &str, args: &[S]) -> Output {
    let mut command = program();
    command.args(args).env(name, value);
    run_command(command).await
}

/// Checks that a command succeeded, and its standard output.
#[track_caller]
fn assert_prints(output: &Output, text: &str) {
    assert_eq!((output.code, &*output.out), (0, text), "{output:?}");
}

/// Checks the exit code, and that standard error contains all of these parts.
#[track_caller]
fn assert_says(output: &Output, code: i32, parts: &[&str]) {
    assert_eq!(output.code, code, "{output:?}");
    for part in parts {
        assert!(output.err.contains(part), "no {part:?} in {}", output.err);
    }
}
