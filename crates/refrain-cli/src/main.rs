//! The `refrain` binary: the application shell with the demo's tools, the demo, and the client.

mod client;
mod demo;
mod number;
mod style;
mod terminal;

use clap::{Args, Parser, Subcommand};
use refrain_app::App;
use refrain_demo_tools::Ledger;
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) use refrain_app::{Failure, runtime};

/// A runtime for MCP calls that take more than one round trip.
#[derive(Parser)]
#[command(name = "refrain", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    App(refrain_app::Command<ToolFlags>),
    /// Watch three instances that share nothing but a key serve one call after another.
    Demo(demo::Options),
    #[command(flatten)]
    Client(client::Command),
}

#[derive(Args)]
struct ToolFlags {
    /// The version of the `accounts` tools.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    accounts: u8,
    /// A file to which every effect of a step is appended as a line.
    #[arg(long)]
    ledger: Option<PathBuf>,
}

fn app() -> App<ToolFlags> {
    App::with_flags("refrain", |flags: &ToolFlags, draft| {
        let ledger = Ledger::open(flags.ledger.as_deref())?;
        Ok(refrain_demo_tools::server(ledger, flags.accounts, draft))
    })
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        if error.use_stderr() {
            client::tell_programs(error.to_string().trim_end());
        }
        error.exit()
    });
    let done = match cli.command {
        Command::App(command) => app().run(command),
        Command::Demo(options) => demo::run(options),
        Command::Client(command) => client::run(command),
    };
    done.unwrap_or_else(|error| {
        client::tell_programs(&error.to_string());
        anstream::eprintln!("refrain: {error}");
        ExitCode::FAILURE
    })
}
