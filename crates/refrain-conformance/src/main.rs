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
//! Each scenario of the suite names a tool, prompt or resource and its answer. They are written here as any user of the
//! crate would write them.

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
use std::error::Error;
use std::io;
use std::net::SocketAddr;
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
async fn main() {
    let result = run(Cli::parse().command).await;
    if let Err(error) = &result {
        eprintln!("refrain-conformance: {error}");
    }
    // Standard input is read by a thread that cannot be stopped.
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
                served.map_err(|error| format!("{listen}: {error}"))?;
            }
        }
        Command::Messages(options) => println!("{}", messages::check(&options)?),
        Command::Client(instructions) => {
            client::run(&instructions).await?;
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
    let server = jobs::register(features::register(server));
    let server = resources::register(prompts::register(server));
    let server = inline::register(server);
    // The suite takes the first entry of a list for a plain one, so these come last.
    let server = shown::register(extras::register(server));
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
