//! The client's commands.
//!
//! The result is on standard output and everything else on standard error. A call that waits is on the disk before the
//! command ends, if it was to be saved.

mod answerer;
mod arguments;
mod call;
mod caller;
mod exit;
mod interrupt;
mod json;
mod lists;
mod open_asks;
mod options;
mod output;
mod preset_answers;
mod sampler;
mod saved_call;
mod screen;
mod task;
mod text;
mod trace;

use crate::{Failure, runtime};
use clap::Subcommand;
use exit::Stop;
use refrain_app::log::{self, LogFormat};
use screen::LogLines;
use std::process::ExitCode;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Call a tool of a server, and answer what it asks.
    Call(Box<call::ToolOptions>),
    /// Get a prompt of a server, and answer what it asks.
    Prompt(Box<call::PromptOptions>),
    /// Read a resource of a server, and answer what it asks.
    Read(Box<call::ReadOptions>),
    /// Take up a call that was kept in a file.
    Resume(Box<call::ResumeOptions>),
    #[command(flatten)]
    List(lists::Command),
    /// Show a task at a server, wait for it, or call it off.
    Task(Box<task::Options>),
}

pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    // Log lines are held back while a person is asked.
    log::start("warn", LogFormat::Text, || LogLines)?;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        match command {
            Command::Call(options) => call::tool(*options).await,
            Command::Prompt(options) => call::prompt(*options).await,
            Command::Read(options) => call::read(*options).await,
            Command::Resume(options) => call::resume(*options).await,
            Command::List(command) => lists::run(command).await,
            Command::Task(options) => task::run(*options).await,
        }
    });
    // A thread that reads standard input cannot be ended, and is not waited for.
    runtime.shutdown_background();
    let code = done.unwrap_or_else(|stop| {
        let stop = tell(stop);
        anstream::eprintln!("refrain: {stop}");
        stop.code
    });
    Ok(code.into())
}

/// Prints the error of any command as JSON, if `--json` was given.
pub(crate) fn tell_programs(why: &str) {
    tell(Stop::usage(why));
}

fn tell(stop: Stop) -> Stop {
    let mut words = std::env::args_os().take_while(|word| word != "--");
    if words.any(|word| word == "--json")
        && let Some(told) = stop.to_json()
        && let Err(untold) = output::print_json(&told)
    {
        return stop.and(&untold.message);
    }
    stop
}

fn nothing_more(mut words: impl Iterator<Item = String>) -> Result<(), Stop> {
    match words.next() {
        None => Ok(()),
        Some(word) => Err(Stop::usage(format!(
            "{word:?} is one word too many; with --stdio there is no URL"
        ))),
    }
}
