//! The crash test: worker processes are killed while they run tasks, and their work is checked afterwards.
//!
//! ```text
//! cargo build --profile dist -p refrain-crash
//! target/dist/refrain-crash run --store sqlite
//! target/dist/refrain-crash run --store postgres --json
//! ```
//!
//! The tasks ask, step and sleep ([`plan`]). They are created by calls to the workers, and followed by clients that are as
//! bad as the protocol allows ([`client`]). Meanwhile workers are killed, stopped and started again, connections are cut
//! and the database is restarted ([`trouble`]). Every attempt at an effect is appended to a table before anything is done,
//! every effect to a ledger under the step's idempotency key ([`ledger`]); each worker records its leases and its writes
//! under them ([`record`]). In the end all of it must fit together ([`check`]).
//!
//! A seed repeats the tasks, their clients and the trouble; not the timing of the machine.

mod check;
mod client;
mod clock;
mod error;
mod fleet;
mod history;
mod ledger;
mod plan;
mod random;
mod record;
mod report;
mod run;
mod trouble;
mod worker;

use crate::error::{Error, InvalidStore};
use crate::report::Report;
use crate::worker::WorkerOptions;
use clap::{Args, Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Kills workers while they run tasks, and checks what they did.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run tasks, make trouble, check, and print a table. The exit code is 1 if anything does not hold.
    Run(RunOptions),
    /// Be one of the workers. The run starts these by itself.
    #[command(hide = true)]
    Worker(WorkerOptions),
}

#[derive(Args)]
struct RunOptions {
    /// Where tasks are kept: `sqlite` or `postgres` for a new store, or the URL of an empty one.
    #[arg(long, value_name = "STORE", default_value = "sqlite", value_parser = StoreArgument::parse)]
    store: StoreArgument,
    /// How many tasks.
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tasks: u32,
    /// Repeats a run [default: another one each time].
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// How many tasks are under way at the same time.
    #[arg(long, value_name = "COUNT", default_value = "150", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    at_once: u16,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// The task store as the command line names it. A URL may contain a password, so there is no `Debug`.
#[derive(Clone)]
enum StoreArgument {
    /// A new file.
    Sqlite,
    /// A new server.
    Postgres,
    /// An existing store, which must be empty.
    Url(String),
}

impl StoreArgument {
    fn parse(text: &str) -> Result<Self, InvalidStore> {
        match text.split_once(':') {
            None if text == "sqlite" => Ok(Self::Sqlite),
            None if text == "postgres" => Ok(Self::Postgres),
            Some(("sqlite" | "postgres" | "postgresql", _)) => Ok(Self::Url(text.to_owned())),
            _ => Err(InvalidStore),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Postgres => "Postgres",
            Self::Url(url) if url.starts_with("postgres") => "Postgres",
            Self::Sqlite | Self::Url(_) => "SQLite",
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Worker(options) => worker::work(options).await.map(|()| true),
        Command::Run(options) => run_all(options).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(anstream::stderr(), "refrain-crash: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the test. `true` if everything holds.
async fn run_all(options: RunOptions) -> Result<bool, Error> {
    let json = options.json;
    let dir = tempfile::Builder::new().prefix("refrain-crash-").tempdir();
    let dir = dir.map_err(Error::system("no directory for the run"))?;
    // A seed that is easy to write down.
    let seed = options
        .seed
        .unwrap_or_else(|| clock::micros() % 1_000_000_000);
    let mut terminate =
        signal(SignalKind::terminate()).map_err(Error::system("no handler for SIGTERM"))?;
    // Dropping the run ends its child processes.
    let report = tokio::select! {
        report = run::run(options, seed, dir.path()) => report,
        _ = terminate.recv() => Err(Error::Interrupted),
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    };
    let holds = report.as_ref().is_ok_and(Report::holds);
    if !holds {
        let kept = dir.keep();
        let _ = writeln!(
            anstream::stderr(),
            "refrain-crash: seed {seed}; the files of the run are in {}",
            kept.display()
        );
    }
    let report = report?;
    let text = if json { report.json() } else { report.table() };
    anstream::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::system("could not print the report"))?;
    Ok(holds)
}
