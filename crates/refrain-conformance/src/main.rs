//! The program that the protocol's official conformance suite is run against.
//!
//! ```text
//! cargo run --release -p refrain-conformance -- server --listen 127.0.0.1:8080
//! scripts/conformance http://127.0.0.1:8080/mcp
//!
//! .tools/bin/conformance client --command "target/release/refrain-conformance client" \
//!     --spec-version 2026-07-28 --force --scenario tools_call
//! ```
//!
//! What it serves is made of the suite's own texts: each scenario names a tool, prompt or resource and says what it
//! has to answer. They are written here as any user of the crate would write them.

mod client;
mod features;
mod messages;
mod prompts;
mod resources;
mod rounds;
mod samples;
mod tools;

use clap::{Parser, Subcommand};
use refrain::{AllowedHosts, BuildError, Server, serve};
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// The program that the protocol's official conformance suite is run against.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve everything that the suite's server scenarios call, at /mcp.
    Server {
        /// The address to listen on; port 0 takes a free one.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
    /// Check every message that was sent while the tests ran against the protocol's schema.
    Messages(messages::Messages),
    /// Do what one of the suite's client scenarios asks for, against the suite's own server.
    Client(client::Instructions),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Server { listen } => run_server(listen).await,
        Command::Messages(options) => match messages::check(&options) {
            Ok(report) => {
                println!("{report}");
                ExitCode::SUCCESS
            }
            Err(fault) => fail(&fault),
        },
        Command::Client(instructions) => run_client(&instructions).await,
    }
}

async fn run_server(listen: SocketAddr) -> ExitCode {
    let server = match server() {
        Ok(server) => server,
        Err(error) => return fail(&error),
    };
    match run(listen, server).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{listen}: {error}")),
    }
}

/// The line on stdout tells that the scenario was gone through to its end: the suite does not always look at the
/// exit status.
async fn run_client(instructions: &client::Instructions) -> ExitCode {
    match client::run(instructions).await {
        Ok(()) => {
            println!("done");
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

fn fail(reason: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("refrain-conformance: {reason}");
    ExitCode::FAILURE
}

fn server() -> Result<Server, BuildError> {
    let server = Server::builder("refrain-conformance", env!("CARGO_PKG_VERSION"));
    let server = tools::register(server);
    let server = rounds::register(server);
    let server = features::register(server);
    let server = prompts::register(server);
    resources::register(server).build()
}

/// Serves until it is interrupted or told to terminate. The line on stderr tells the port that was taken.
async fn run(listen: SocketAddr, server: Server) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let listener = TcpListener::bind(listen).await?;
    eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    serve(listener, server, AllowedHosts::local(), shutdown).await
}
