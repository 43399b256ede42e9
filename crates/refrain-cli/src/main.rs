//! The `refrain` binary: `serve` one instance, let a `worker` work on tasks and look after the `tasks`, manage `keys`,
//! check the `config`, play the `demo`; and the client, which makes calls and answers what they ask.

mod auth;
mod client;
mod config;
mod demo;
mod instance;
mod keys;
mod log;
mod number;
mod secret;
mod serve;
mod store;
mod tasks;
mod terminal;
mod tools;
mod worker;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A runtime for MCP calls that take more than one round trip.
#[derive(Parser)]
#[command(name = "refrain", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start one instance with the documents' tools.
    Serve(Box<serve::Options>),
    /// Start a process that works on tasks and serves nobody.
    Worker(Box<worker::Options>),
    /// Look after the tasks of a store: list them, show one, call it off, have it run again.
    Tasks(tasks::Options),
    /// Make and rotate the keys that a fleet shares.
    Keys(keys::Options),
    /// Check a configuration file, or print one with the defaults.
    Config(config::Options),
    /// Watch three instances that share nothing but a key serve one call after another.
    Demo(demo::Options),
    #[command(flatten)]
    Client(client::Command),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        if error.use_stderr() {
            client::tell_programs(error.to_string().trim_end());
        }
        error.exit()
    });
    let done = match cli.command {
        Command::Serve(options) => serve::run(&options),
        Command::Worker(options) => worker::run(&options),
        Command::Tasks(options) => tasks::run(&options),
        Command::Keys(options) => keys::run(options),
        Command::Config(options) => config::run(&options),
        Command::Demo(options) => demo::run(options),
        Command::Client(command) => client::run(command),
    };
    done.unwrap_or_else(|error| {
        client::tell_programs(&error.to_string());
        anstream::eprintln!("refrain: {error}");
        ExitCode::FAILURE
    })
}

/// What a command fails with: a message that says what was wrong and what to do.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A runtime that uses what cores there are: on one core, no work is moved between threads.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let one_core = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    if one_core {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    }
    .enable_all()
    .build()
}
