//! The commands of the client, against `refrain serve` and against faulty servers.

mod answers;
mod bad_servers;
mod dialects;
mod dying_servers;
mod failures;
mod lists;
mod repeats;
mod saved;
mod stdio;
mod tasks;
mod terminal;
mod trace;

use crate::support::{Output, program, said};
use serde_json::Value;
use std::ffi::OsStr;

/// Standard output, as JSON.
fn json(said: &Output) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

/// Runs a command with an environment variable.
async fn with_env<S: AsRef<OsStr>>(name: &str, value: &str, args: &[S]) -> Output {
    let mut command = program();
    command.args(args).env(name, value);
    said(command).await
}

/// Checks the exit code, and that standard error contains all of these parts.
#[track_caller]
fn assert_says(said: &Output, code: i32, parts: &[&str]) {
    assert_eq!(said.code, code, "{said:?}");
    for part in parts {
        assert!(said.err.contains(part), "no {part:?} in {}", said.err);
    }
}
