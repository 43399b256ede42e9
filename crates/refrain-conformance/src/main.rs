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
mod extras;
mod features;
mod inline;
mod jobs;
mod messages;
mod prompts;
mod resources;
mod rounds;
mod samples;
mod shown;
mod tools;

use clap::{Parser, Subcommand};
use refrain::server::{AllowedHosts, BuildError, Server, ServerLimits, serve, serve_stdio};
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::io::BufReader;
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
        /// Speak over standard input and output instead of HTTP.
        #[arg(long, conflicts_with = "listen")]
        stdio: bool,
        /// The entries of a page of a list.
        #[arg(long, value_name = "NUMBER", default_value_t = ServerLimits::default().page_size)]
        page_size: usize,
    },
    /// Check every message that was sent while the tests ran against the protocol's schema.
    Messages(messages::Messages),
    /// Do what one of the suite's client scenarios asks for, against the suite's own server.
    Client(client::Instructions),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Server {
            listen,
            stdio,
            page_size,
        } => run_server((!stdio).then_some(listen), page_size).await,
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

/// Serves on an address, or without one on standard input and output.
async fn run_server(listen: Option<SocketAddr>, page_size: usize) -> ExitCode {
    let server = match server(page_size) {
        Ok(server) => server,
        Err(error) => return fail(&error),
    };
    let Some(listen) = listen else {
        let served = run_stdio(server).await;
        if let Err(error) = &served {
            fail(error);
        }
        // Standard input is read by a thread of its own, which cannot be ended from here.
        std::process::exit(i32::from(served.is_err()));
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

fn server(page_size: usize) -> Result<Server, BuildError> {
    let server = Server::builder("refrain-conformance", env!("CARGO_PKG_VERSION"));
    let server = server.limits(ServerLimits {
        page_size,
        ..ServerLimits::default()
    });
    let server = tools::register(server);
    let server = rounds::register(server);
    let server = features::register(server);
    let server = jobs::register(server);
    let server = prompts::register(server);
    let server = resources::register(server);
    let server = inline::register(server);
    // After those of the suite, which takes the first of a list for a plain one.
    let server = extras::register(server);
    shown::register(server).build()
}

/// Ends when the program is interrupted or told to terminate.
fn told_to_stop() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Serves until it is told to stop. The line on stderr tells the port that was taken.
async fn run(listen: SocketAddr, server: Server) -> io::Result<()> {
    let stop = told_to_stop()?;
    let listener = TcpListener::bind(listen).await?;
    eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    serve(listener, server, AllowedHosts::local(), stop).await
}

/// Serves until the input ends or it is told to stop.
async fn run_stdio(server: Server) -> io::Result<()> {
    let stop = told_to_stop()?;
    let input = BufReader::new(tokio::io::stdin());
    serve_stdio(server, input, tokio::io::stdout(), stop).await
}
