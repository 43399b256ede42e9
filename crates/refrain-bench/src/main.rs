//! Benchmarks Refrain's server against a minimal server (the floor), and its tasks against hand-written SQL.
//!
//! ```text
//! cargo build --profile dist
//! target/dist/refrain-bench run --allocations
//! target/dist/refrain-bench run --slices 0 --memory 1000000
//! target/dist/refrain-bench tasks
//! target/dist/refrain-bench capacity
//! target/dist/refrain-bench gateway --url http://127.0.0.1:3001/mcp
//! ```
//!
//! The floor ([`floor`]) is a minimal server for the same dialogue. The servers run on one core and the load ([`load`])
//! on another. Slices of both servers alternate, so that other load on the machine affects both. Throughput and CPU time
//! are medians of slices. Instructions and allocations ([`counts`]) come from valgrind.
//!
//! To measure the noise of the machine, compare the floor with itself: `--refrain target/dist/refrain-bench` should yield
//! ratios of 1.
//!
//! [`tasks`] are measured in this process, on real databases. [`capacity`] drives Refrain at fixed rates, and compares it
//! with a queueing model. [`gateway`] compares calls through the gateway with direct ones.

mod capacity;
mod counts;
mod error;
mod floor;
mod gateway;
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
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use indicatif::ProgressBar;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::capacity::CapacityReport;
use crate::error::Error;
use crate::report::SpeedReport;

/// Benchmarks Refrain's server against a minimal server (the floor), and its tasks against hand-written SQL.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the floor: raw hyper, one parse, one seal or open, a fixed reply.
    // The alias lets `--refrain` name this program.
    #[command(alias = "serve")]
    Floor {
        /// The address to listen on.
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
    /// Measure both servers and print a table.
    Run(run::RunOptions),
    /// Measure tasks and the same work in hand-written SQL, and print a table.
    Tasks(tasks::TaskBenchOptions),
    /// Drive Refrain's server at several rates, and print the times and the CPU use beside those of a queueing model.
    Capacity(capacity::CapacityOptions),
    /// Make the same calls of a server directly and through the gateway, and print the times.
    Gateway(gateway::GatewayBenchOptions),
    /// Run the idle instance that `tasks` measures.
    #[command(hide = true)]
    Instance(tasks::InstanceOptions),
}

/// A progress line on stderr, hidden unless stderr is a terminal.
static PROGRESS: LazyLock<ProgressBar> = LazyLock::new(ProgressBar::new_spinner);

fn parse_seconds(text: &str) -> Result<f64, Error> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds between 0.01 and 3600".into()),
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Floor { listen } => run_on(Builder::new_current_thread(), floor::serve(listen)),
        Command::Run(options) => measure(options.load_core, run::run(&options), SpeedReport::text),
        Command::Capacity(options) => measure(
            options.load_core,
            capacity::run(&options),
            CapacityReport::text,
        ),
        Command::Tasks(options) => {
            let measured = unless_interrupted(tasks::run(&options));
            run_on(Builder::new_multi_thread(), measured).and_then(|report| print(&report.text()))
        }
        Command::Gateway(options) => {
            let measured = unless_interrupted(gateway::run(&options));
            run_on(Builder::new_multi_thread(), measured).and_then(|report| print(&report.text()))
        }
        Command::Instance(options) => run_on(Builder::new_multi_thread(), tasks::instance(options)),
    };
    match result {
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
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    builder.enable_all().build()?.block_on(work)
}

/// Waits for SIGTERM or SIGINT.
async fn interrupted() -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Runs a measurement until it is interrupted. Dropping it stops its child processes.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::select! {
        done = work => done,
        signal = interrupted() => signal.and(Err("interrupted".into())),
    }
}

/// Runs a measurement with the load on this core, and prints its report.
fn measure<T>(
    load_core: usize,
    work: impl Future<Output = Result<T, Error>>,
    text: impl Fn(&T) -> String,
) -> Result<(), Error> {
    machine::pin(load_core)?;
    let report = run_on(Builder::new_current_thread(), unless_interrupted(work))?;
    print(&text(&report))
}

fn print(text: &str) -> Result<(), Error> {
    PROGRESS.finish_and_clear();
    Ok(anstream::stdout().write_all(text.as_bytes())?)
}
