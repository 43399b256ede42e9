//! Measures Refrain's server against a sealing floor, and its tasks against hand-written SQL.
//!
//! ```text
//! cargo build --profile dist
//! target/dist/refrain-bench run --allocations --json speed.json
//! target/dist/refrain-bench run --slices 0 --memory 1000000
//! target/dist/refrain-bench tasks --json tasks.json
//! ```
//!
//! The floor ([`floor`]) is the least a server can do for the same dialogue. Each server is pinned
//! to one core and the load ([`load`]) to another; slices of both servers are interleaved, so that
//! whatever else the machine does, it does to both. Throughput and processor time are medians of
//! slices; instructions and allocations ([`counts`]) come from valgrind and do not depend on how
//! busy the machine is.
//!
//! To see how far the machine itself strays, measure the floor against itself: the program answers
//! to `serve` as well, so `--refrain target/dist/refrain-bench` should give ratios of 1.
//!
//! [`tasks`] are measured in this process, on real databases.

mod child;
mod counts;
mod error;
mod floor;
mod load;
mod machine;
mod memory;
mod report;
mod requests;
mod run;
mod table;
mod tasks;
mod wire;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressFinish};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{ArgumentError, Error};
use crate::report::Settings;
use crate::run::Plan;

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
    Run(RunOptions),
    /// Measure tasks and the same written by hand, and print a table.
    Tasks(TasksOptions),
    /// Serve as the instance that is left alone with tasks that wait.
    #[command(hide = true)]
    Instance,
}

#[derive(Debug, Args)]
struct RunOptions {
    /// Refrain's binary, started as `PATH serve --listen ADDRESS` [default: `refrain` beside this program].
    #[arg(long, value_name = "PATH", conflicts_with = "floor_only")]
    refrain: Option<PathBuf>,
    /// Measure the floor alone.
    #[arg(long)]
    floor_only: bool,
    /// Length of a slice. Below one second the clock of /proc is too coarse for CPU times.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds_per_slice: f64,
    /// Slices for each workload and server; 0 leaves out throughput and CPU time.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    slices: usize,
    /// Connections of the load.
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// The core the servers are pinned to.
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    server_core: usize,
    /// The core the load is pinned to.
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    load_core: usize,
    /// Count heap allocations and instructions per request as well, with valgrind.
    #[arg(long)]
    allocations: bool,
    /// Leave this many dialogues waiting and watch Refrain's resident memory meanwhile.
    #[arg(long, value_name = "DIALOGUES", conflicts_with = "floor_only", value_parser = clap::value_parser!(u64).range(10..))]
    memory: Option<u64>,
    /// Write everything measured, every slice included, to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct TasksOptions {
    /// Where: `sqlite` for a file of its own, `postgres` for a server of its own, or the URL of an empty database, which
    /// is left full [default: both of their own].
    #[arg(long = "store", value_name = "STORE", value_parser = tasks::Choice::parse)]
    stores: Vec<tasks::Choice>,
    /// Length of a slice. Below one second the clock of /proc is too coarse for CPU times.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds_per_slice: f64,
    /// Slices for each store and side; 0 leaves out throughput and CPU time.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    slices: usize,
    /// Clients at a time.
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u16).range(1..))]
    concurrent: u16,
    /// Leave up to so many tasks waiting and watch what that costs an instance; 0 leaves it out.
    #[arg(long, value_name = "TASKS", default_value_t = 100_000)]
    idle: u64,
    /// How long to watch it each time.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    idle_seconds: f64,
    /// Write everything measured, every slice included, to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
        Command::Run(options) => measure(options),
        Command::Tasks(options) => measure_tasks(options),
        Command::Instance => run_on(Builder::new_multi_thread(), tasks::instance()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(anstream::stderr(), "refrain-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a future and the tasks that it spawns on a new runtime.
fn run_on<T>(
    mut builder: Builder,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let runtime = builder.enable_all().build();
    let runtime = runtime.map_err(Error::system("could not start the runtime"))?;
    runtime.block_on(work)
}

/// A line on stderr that says what is going on; hidden if stderr is not a terminal.
fn spinner() -> ProgressBar {
    ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear)
}

/// Does a measurement, unless it is told to stop. Dropping one ends its children.
async fn until_told<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let mut terminate =
        signal(SignalKind::terminate()).map_err(Error::system("no handler for SIGTERM"))?;
    tokio::select! {
        done = work => done,
        _ = terminate.recv() => Err(Error::Interrupted),
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    }
}

fn measure(options: RunOptions) -> Result<(), Error> {
    machine::pin_load(options.load_core)?;
    let refrain = match (options.floor_only, options.refrain) {
        (true, _) => None,
        (false, Some(path)) => Some(path),
        (false, None) => Some(beside_this_program()?),
    };
    let plan = Plan {
        refrain,
        settings: Settings {
            slices: options.slices,
            seconds_per_slice: options.seconds_per_slice,
            connections: options.connections.into(),
            server_core: options.server_core,
            load_core: options.load_core,
        },
        counts: options.allocations,
        memory: options.memory,
    };
    let report = run_on(Builder::new_current_thread(), until_told(run::run(plan)))?;
    print(&table::render(&report), &report.json(), options.json)
}

fn measure_tasks(options: TasksOptions) -> Result<(), Error> {
    let settings = tasks::Settings {
        slices: options.slices,
        seconds_per_slice: options.seconds_per_slice,
        concurrent: options.concurrent.into(),
        idle: options.idle,
        idle_seconds: options.idle_seconds,
    };
    let stores = match options.stores {
        stores if stores.is_empty() => tasks::Choice::OWN.into(),
        stores => stores,
    };
    let measured = until_told(tasks::run(&stores, settings));
    let report = run_on(Builder::new_multi_thread(), measured)?;
    print(&report.render(), &report.json(), options.json)
}

/// Prints a report, and writes it to a file where asked for.
fn print(text: &str, json: &Value, path: Option<PathBuf>) -> Result<(), Error> {
    anstream::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::system("could not print the table"))?;
    match path {
        Some(path) => write_json(&path, json),
        None => Ok(()),
    }
}

fn beside_this_program() -> Result<PathBuf, Error> {
    let this = std::env::current_exe().map_err(Error::system("this program has no path"))?;
    Ok(this.with_file_name("refrain"))
}

fn write_json(path: &Path, report: &Value) -> Result<(), Error> {
    let what = format!("could not write {}", path.display());
    std::fs::write(path, format!("{report:#}\n")).map_err(Error::system(what))
}
