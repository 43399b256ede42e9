//! The crash test: worker processes are killed while they run tasks, and their work is checked afterwards.
//!
//! ```text
//! cargo build --profile dist -p refrain-crash
//! target/dist/refrain-crash run --store sqlite
//! target/dist/refrain-crash run --store postgres
//! target/dist/refrain-crash run --store postgres --failover
//! ```
//!
//! The tasks ask, step and sleep ([`plan`]). Clients create them, and misbehave as far as the protocol allows
//! ([`client`]). Meanwhile workers are killed, stopped and restarted, connections are cut, and the database is restarted or
//! replaced by its standby ([`disruptions`]). Every effect is written to a ledger under the step's idempotency key
//! ([`ledger`]). Each worker records its leases, its writes and its attempts at effects ([`record`]). At the end all these
//! records must agree ([`check`]).
//!
//! `refrain-crash soak` runs mixed load for longer, kills instances in turn, and checks that nothing leaks ([`soak`]).
//!
//! A seed reproduces the tasks, the clients and the disruptions, but not the timing.

mod check;
mod client;
mod clock;
mod disruptions;
mod error;
mod fleet;
mod history;
mod ledger;
mod plan;
mod random;
mod record;
mod rounds;
mod run;
mod soak;
mod worker;

use crate::error::CrashError;
use crate::worker::WorkerOptions;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Kills instances under load, and checks the results.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run tasks, disrupt them, check, and print the counts and the faults as JSON. The exit code is 1 if a check fails.
    Run(CrashOptions),
    /// Run mixed load while instances are killed, and check results, effects and leaks. The exit code is 1 if a check
    /// fails.
    Soak(soak::SoakOptions),
    /// Run a worker process. `run` and `soak` start these.
    #[command(hide = true)]
    Worker(WorkerOptions),
}

#[derive(Args)]
struct CrashOptions {
    /// The database of a new task store.
    #[arg(long, value_name = "STORE", default_value = "sqlite")]
    store: StoreKind,
    /// The number of tasks.
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tasks: u32,
    /// The seed of an earlier run [default: random].
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Kill the Postgres server during the run and promote its synchronous standby, instead of a restart. Prints how long no
    /// task was written.
    #[arg(long)]
    failover: bool,
    /// The number of tasks in flight.
    #[arg(long, value_name = "COUNT", default_value = "150", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    at_once: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum StoreKind {
    /// A new file.
    Sqlite,
    /// A new server.
    Postgres,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Worker(options) => worker::work(options).await.map(|()| true),
        Command::Run(options) if options.failover && options.store != StoreKind::Postgres => {
            Err("--failover requires --store postgres".into())
        }
        Command::Run(options) => {
            let seed = options.seed;
            supervise(seed, async |seed, dir| {
                let report = run::run(options, seed, dir).await?;
                let text = serde_json::to_string_pretty(&report)? + "\n";
                Ok((text, report.findings.faults.is_empty()))
            })
            .await
        }
        Command::Soak(options) => {
            let (seed, json) = (options.seed, options.json);
            supervise(seed, async |seed, dir| {
                let report = soak::run(options, seed, dir).await?;
                let text = match json {
                    true => serde_json::to_string_pretty(&report)? + "\n",
                    false => report.table(),
                };
                Ok((text, report.faults.is_empty()))
            })
            .await
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(anstream::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a test in a new directory and prints its report. `test` returns the report and whether all checks passed.
async fn supervise(
    seed: Option<u64>,
    test: impl AsyncFnOnce(u64, &Path) -> Result<(String, bool), CrashError>,
) -> Result<bool, CrashError> {
    let dir = tempfile::Builder::new()
        .prefix("refrain-crash-")
        .tempdir()?;
    // A seed that is easy to write down.
    let seed = seed.unwrap_or_else(|| clock::micros() % 1_000_000_000);
    let mut terminate = signal(SignalKind::terminate())?;
    // Dropping the test ends its child processes.
    let report = tokio::select! {
        report = test(seed, dir.path()) => report,
        _ = terminate.recv() => Err("interrupted".into()),
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    let has_passed = report.as_ref().is_ok_and(|(_, has_passed)| *has_passed);
    if !has_passed {
        let kept = dir.keep();
        let _ = writeln!(
            anstream::stderr(),
            "hint: repeat with --seed {seed}; the files of the run are in {}",
            kept.display()
        );
    }
    std::io::stdout().write_all(report?.0.as_bytes())?;
    Ok(has_passed)
}
