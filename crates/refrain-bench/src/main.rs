//! Measures Refrain's server against a sealing floor.
//!
//! ```text
//! cargo build --release
//! target/release/refrain-bench run --allocations --json speed.json
//! target/release/refrain-bench run --slices 0 --memory 1000000
//! ```
//!
//! The floor ([`floor`]) is the least a server can do for the same dialogue. Each server is pinned
//! to one core and the load ([`load`]) to another; slices of both servers are interleaved, so that
//! whatever else the machine does, it does to both. Throughput and processor time are medians of
//! slices; instructions and allocations ([`counts`]) come from valgrind and do not depend on how
//! busy the machine is.
//!
//! To see how far the machine itself strays, measure the floor against itself: the program answers
//! to `serve` as well, so `--refrain target/release/refrain-bench` should give ratios of 1.

mod child;
mod counts;
mod error;
mod floor;
mod load;
mod machine;
mod memory;
mod progress;
mod report;
mod requests;
mod run;
mod table;
mod wire;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::error::Error;
use crate::report::{Report, Settings};
use crate::run::Plan;

/// Measures Refrain's server against a sealing floor.
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

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds between 0.01 and 3600".to_owned()),
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Floor { listen } => on_this_thread(floor::serve(listen)),
        Command::Run(options) => measure(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(anstream::stderr(), "refrain-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a future, and whatever it spawns, on the one thread there is.
fn on_this_thread<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::system("no runtime"))?
        .block_on(work)
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
    let report = on_this_thread(async {
        let mut terminate =
            signal(SignalKind::terminate()).map_err(Error::system("no handler for SIGTERM"))?;
        // Dropping the run ends its children.
        tokio::select! {
            report = run::run(plan) => report,
            _ = terminate.recv() => Err(Error::Interrupted),
            _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
        }
    })?;
    anstream::stdout()
        .write_all(table::render(&report).as_bytes())
        .map_err(Error::system("could not print the table"))?;
    match options.json {
        Some(path) => write_json(&path, &report),
        None => Ok(()),
    }
}

fn beside_this_program() -> Result<PathBuf, Error> {
    let this = std::env::current_exe().map_err(Error::system("this program has no path"))?;
    Ok(this.with_file_name("refrain"))
}

fn write_json(path: &Path, report: &Report) -> Result<(), Error> {
    let what = format!("could not write {}", path.display());
    let mut text = format!("{:#}", report.json());
    text.push('\n');
    std::fs::write(path, text).map_err(Error::system(what))
}
