//! The `refrain` binary: a server with the demo tools, the demo, the gateway, and a client.

mod browser;
mod client;
mod demo;
mod dev;
mod exact_number;
mod gateway;
mod new;
mod own_server;
mod process_group;
mod style;
mod terminal;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use refrain_app::App;
use refrain_demo_tools::{Ledger, LedgerError, drafts, server};
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) use refrain_app::{AppError, print_error, runtime};

/// A runtime for MCP calls that take more than one round trip.
#[derive(Parser)]
#[command(name = "refrain", version, propagate_version = true)]
#[command(mut_subcommands(name_demo_tools))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a crate with a server of your own.
    New(new::NewOptions),
    /// Run the server of the crate in this directory, restart it when its sources change, and call
    /// its tools.
    Dev(dev::DevOptions),
    #[command(flatten)]
    App(refrain_app::Command<ToolFlags>),
    /// Serve existing MCP servers at one endpoint that speaks MCP 2026-07-28.
    Gateway(gateway::GatewayOptions),
    /// Run three instances that share a key, and watch them serve the rounds of several calls.
    Demo(demo::DemoOptions),
    #[command(flatten)]
    Client(client::ClientCommand),
}

/// Says in the help that this program's `serve` and `worker` have the demo tools.
fn name_demo_tools(command: clap::Command) -> clap::Command {
    match command.get_name() {
        "serve" => {
            command.about("Serve the demo tools over HTTP, or over standard input and output")
        }
        "worker" => command.about("Run tasks of the demo tools without serving clients"),
        _ => command,
    }
}

#[derive(Args)]
struct ToolFlags {
    /// The version of the demo tools `accounts` and `accounts_task`: 1 or 2.
    #[arg(long, value_name = "VERSION", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    accounts: u8,
    /// A file to which the demo tools append a line for every effect.
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
}

impl ToolFlags {
    fn ledger(&self) -> Result<Ledger, LedgerError> {
        Ledger::open(self.ledger.as_deref())
    }
}

fn app() -> App<ToolFlags> {
    App::with_flags("refrain", |flags: &ToolFlags| {
        own_server::warn_if_here();
        Ok(server(flags.ledger()?, flags.accounts))
    })
    .with_drafts(|flags, draft| Ok(drafts::server(draft, flags.ledger()?, flags.accounts)))
    .command_line(Cli::command)
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|mut error| {
        // clap's tip to put an unknown flag after `--` is wrong: the command of --stdio follows it.
        if error.kind() == ErrorKind::UnknownArgument {
            error.remove(ContextKind::Suggested);
            refrain_app::remove_distant_tip(&mut error);
        }
        if error.use_stderr() {
            client::print_usage_error_as_json(&error);
        }
        error.exit()
    });
    let done = match cli.command {
        Command::New(options) => new::run(&options),
        Command::Dev(options) => dev::run(&options),
        Command::App(command) => app().run(command),
        Command::Gateway(options) => gateway::run(options),
        Command::Demo(options) => demo::run(options),
        Command::Client(command) => client::run(command),
    };
    done.unwrap_or_else(|error| {
        let message = error.to_string();
        client::print_error_as_json(&message);
        print_error(&message);
        ExitCode::FAILURE
    })
}
