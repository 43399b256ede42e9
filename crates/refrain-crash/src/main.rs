//! The crash test: worker processes are killed while they run tasks, and what they did is checked afterwards.
//!
//! ```text
//! cargo build --profile dist -p refrain-crash
//! target/dist/refrain-crash run --store sqlite
//! target/dist/refrain-crash run --store postgres --json
//! ```
//!
//! The tasks ask, step and sleep ([`plan`]). They are made by calls to the workers, and looked after by clients that are as
//! bad as the protocol allows ([`client`]). Meanwhile workers are killed, stopped and started again, connections are cut
//! and the database is restarted ([`trouble`]). Every attempt at an effect is appended to a table before anything is done,
//! every effect to a ledger under the step's idempotency key ([`ledger`]); each worker writes down which leases it had and
//! what it wrote under them ([`record`]). In the end all of it must fit together ([`check`]).
//!
//! A seed repeats what the tasks do, what their clients do and what is done to the workers; not what the machine does
//! meanwhile.

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

use crate::error::{ArgumentError, Error};
use crate::report::Report;
use crate::run::{Kind, Orders};
use crate::worker::WorkerOptions;
use clap::{Args, Parser, Subcommand};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Kills workers while they run tasks, and checks what they did.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run tasks, make trouble, check, and print a table. The exit code is 1 if anything does not hold.
    Run(RunOptions),
    /// Be one of the workers. The run starts these by itself.
    #[command(hide = true)]
    Worker(WorkerOptions),
}

#[derive(Debug, Args)]
struct RunOptions {
    /// Where tasks are kept: `sqlite` or `postgres` for one of its own, or the URL of an empty one.
    #[arg(long, value_name = "STORE", default_value = "sqlite", value_parser = kind)]
    store: Kind,
    /// How many tasks.
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tasks: u32,
    /// How many worker processes.
    #[arg(long, value_name = "COUNT", default_value = "3", value_parser = clap::value_parser!(u8).range(1..=32))]
    workers: u8,
    /// Repeats a run [default: another one each time].
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// How often a worker is killed, about: `500ms`, `1s`.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    kill_every: Duration,
    /// How long a worker has a task before another may take it.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    lease: Duration,
    /// How many tasks are under way at the same time.
    #[arg(long, value_name = "COUNT", default_value = "150", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    at_once: u16,
    /// Keep the files of the run here; without it they are kept only if something does not hold.
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

fn kind(text: &str) -> Result<Kind, ArgumentError> {
    match text.split_once(':') {
        None if text == "sqlite" => Ok(Kind::Sqlite),
        None if text == "postgres" => Ok(Kind::Postgres),
        Some(("sqlite" | "postgres" | "postgresql", _)) => Ok(Kind::Url(text.to_owned())),
        _ => Err(ArgumentError::Store),
    }
}

fn time(text: &str) -> Result<Duration, ArgumentError> {
    let number = |digits: &str| digits.parse::<u64>().ok();
    let millis = match text.strip_suffix("ms") {
        Some(digits) => number(digits),
        None => text
            .strip_suffix('s')
            .and_then(number)
            .and_then(|seconds| seconds.checked_mul(1000)),
    };
    match millis {
        Some(millis) if (100..=600_000).contains(&millis) => Ok(Duration::from_millis(millis)),
        _ => Err(ArgumentError::Time),
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
    let temporary = tempfile::Builder::new().prefix("refrain-crash-").tempdir();
    let temporary = temporary.map_err(Error::system("no directory for the run"))?;
    let dir = match &options.dir {
        Some(dir) => {
            let what = dir.display().to_string();
            std::fs::create_dir_all(dir).map_err(Error::system(what))?;
            dir.clone()
        }
        None => temporary.path().to_owned(),
    };
    let orders = Orders {
        store: options.store,
        tasks: options.tasks,
        workers: options.workers.into(),
        seed: options.seed.unwrap_or_else(another_seed),
        kill_every: options.kill_every,
        lease: options.lease,
        at_once: options.at_once.into(),
    };
    let seed = orders.seed;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(Error::system("no handler for SIGTERM"))?;
    // Dropping the run ends its children.
    let report = tokio::select! {
        report = run::run(orders, &dir) => report,
        _ = terminate.recv() => Err(Error::Interrupted),
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    };
    let holds = report.as_ref().is_ok_and(Report::holds);
    if !holds && options.dir.is_none() {
        let kept = temporary.keep();
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

/// A seed that is easy to write down.
fn another_seed() -> u64 {
    clock::micros() % 1_000_000_000
}
