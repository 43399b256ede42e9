//! Measures Refrain's server against a sealing floor, and its tasks against hand-written SQL.
//!
//! ```text
//! cargo build --profile dist
//! target/dist/refrain-bench run --allocations --json speed.json
//! target/dist/refrain-bench run --slices 0 --memory 1000000
//! target/dist/refrain-bench tasks --json tasks.json
//! ```
//!
//! The floor ([`floor`]) is the minimal server for the same dialogue. Each server is pinned to one core and the load
//! ([`load`]) to another. Slices of both servers alternate, so other work on the machine slows down both.
//! Throughput and processor time are medians of slices; instructions and allocations ([`counts`]) come from valgrind and
//! do not depend on how busy the machine is.
//!
//! To see the noise of the machine, measure the floor against itself: this program also has a command `serve`, so
//! `--refrain target/dist/refrain-bench` should give ratios near 1.
//!
//! [`tasks`] are measured in this process, on real databases.

mod counts;
mod error;
mod floor;
mod load;
mod machine;
mod report;
mod run;
mod server;
mod stats;
mod table;
mod tasks;
mod wire;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressFinish};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{ArgumentError, BenchError};

/// Measures Refrain's server against a sealing floor, and its tasks against hand-written SQL.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the sealing floor: raw hyper, one parse, one seal or open, a fixed reply.
    #[command(alias = "serve")]
    Floor {
        /// The address to listen on.
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
    /// Measure both servers and print a table.
    Run(run::ServerBenchOptions),
    /// Measure tasks against hand-written SQL and print a table.
    Tasks(tasks::TaskBenchOptions),
    /// Run the idle instance of `tasks`.
    #[command(hide = true)]
    Instance(tasks::InstanceOptions),
}

fn seconds(text: &str) -> Result<f64, ArgumentError> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(ArgumentError::Seconds),
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Floor { listen } => run_on(Builder::new_current_thread(), floor::serve(listen)),
        Command::Run(options) => measure(&options),
        Command::Tasks(options) => measure_tasks(&options),
        Command::Instance(options) => run_on(Builder::new_multi_thread(), tasks::instance(options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(anstream::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a future and the tasks that it spawns on a new runtime.
fn run_on<T>(
    mut builder: Builder,
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    let runtime = builder.enable_all().build();
    let runtime = runtime.map_err(BenchError::system("could not start the runtime"))?;
    runtime.block_on(work)
}

/// A progress line on stderr; hidden if stderr is not a terminal.
fn spinner() -> ProgressBar {
    ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear)
}

/// Waits for SIGTERM or SIGINT.
async fn interrupted() -> Result<(), BenchError> {
    let handler = |kind| signal(kind).map_err(BenchError::system("could not handle signals"));
    let mut terminate = handler(SignalKind::terminate())?;
    let mut interrupt = handler(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Measures until done or interrupted. Dropping the work ends its child processes.
async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    tokio::select! {
        done = work => done,
        signal = interrupted() => signal.and(Err(BenchError::Interrupted)),
    }
}

fn measure(options: &run::ServerBenchOptions) -> Result<(), BenchError> {
    machine::pin(options.load_core)?;
    let measured = unless_interrupted(run::run(options));
    let report = run_on(Builder::new_current_thread(), measured)?;
    print(&report.text(), &report.json(), options.json.as_deref())
}

fn measure_tasks(options: &tasks::TaskBenchOptions) -> Result<(), BenchError> {
    let measured = unless_interrupted(tasks::run(options));
    let report = run_on(Builder::new_multi_thread(), measured)?;
    print(&report.text(), &report.json(), options.json.as_deref())
}

/// Prints a report, and writes its JSON to a file if there is one.
fn print(text: &str, json: &Value, path: Option<&Path>) -> Result<(), BenchError> {
    anstream::stdout()
        .write_all(text.as_bytes())
        .map_err(BenchError::system("could not print the table"))?;
    let Some(path) = path else { return Ok(()) };
    let what = format!("could not write {}", path.display());
    std::fs::write(path, format!("{json:#}\n")).map_err(BenchError::system(what))
}
