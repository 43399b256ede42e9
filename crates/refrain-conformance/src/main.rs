//! The server and the client that the official MCP conformance suite tests.
//!
//! ```text
//! cargo run --release -p refrain-conformance -- server --listen 127.0.0.1:8080
//! scripts/conformance http://127.0.0.1:8080/mcp
//!
//! .tools/bin/conformance client --command "target/release/refrain-conformance client" \
//!     --spec-version 2026-07-28 --force --scenario tools_call
//! ```
//!
//! The suite defines the tools, prompts and resources that the server must have, and their results.

mod client;
mod client_fixtures;
mod features;
mod legacy;
mod messages;
mod metadata;
mod prompts;
mod resources;
mod rounds;
mod samples;
mod tasks;
mod tools;

use clap::{Parser, Subcommand};
use refrain::server::{AllowedHosts, BuildError, Server, ServerLimits, serve, serve_stdio};
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use tokio::io::BufReader;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// The server and the client that the official MCP conformance suite tests.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the suite's server scenarios at /mcp.
    Server {
        /// The address to listen on. Port 0 selects a free port.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
        /// Use standard input and output instead of HTTP.
        #[arg(long, conflicts_with = "listen")]
        stdio: bool,
        /// The number of entries in a page of a list.
        #[arg(long, value_name = "NUMBER", default_value_t = ServerLimits::default().page_size)]
        page_size: usize,
    },
    /// Validate all messages that were recorded during a test run against the protocol's schema.
    Messages(messages::CheckOptions),
    /// Run one of the suite's client scenarios against the suite's server.
    Client(client::ScenarioOptions),
}

#[tokio::main]
async fn main() {
    let result = run(Cli::parse().command).await;
    if let Err(error) = &result {
        eprintln!("error: {error}");
    }
    // A blocked read of standard input would keep the runtime from shutting down.
    std::process::exit(i32::from(result.is_err()));
}

async fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Server {
            listen,
            stdio,
            page_size,
        } => {
            let server = server(page_size)?;
            let stop = stop_signal()?;
            if stdio {
                let input = BufReader::new(tokio::io::stdin());
                serve_stdio(server, input, tokio::io::stdout(), stop).await?;
            } else {
                let served = serve_http(listen, server, stop).await;
                served.map_err(|error| format!("could not serve on {listen}: {error}"))?;
            }
        }
        Command::Messages(options) => println!("{}", messages::check(&options)?),
        Command::Client(options) => {
            client::run(&options).await?;
            // The suite does not always check the exit status.
            println!("done");
        }
    }
    Ok(())
}

fn server(page_size: usize) -> Result<Server, BuildError> {
    let server = Server::builder("refrain-conformance", env!("CARGO_PKG_VERSION"));
    let server = server.limits(ServerLimits {
        page_size,
        ..ServerLimits::default()
    });
    let server = rounds::register(tools::register(server));
    let server = tasks::register(features::register(server));
    let server = resources::register(prompts::register(server));
    let server = legacy::register(server);
    // Last, because the suite calls the first entry of a list without arguments.
    let server = metadata::register(client_fixtures::register(server));
    server.build()
}

/// Completes at SIGINT or SIGTERM.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

async fn serve_http(
    listen: SocketAddr,
    server: Server,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    serve(listener, server, AllowedHosts::local(), stop).await
}
