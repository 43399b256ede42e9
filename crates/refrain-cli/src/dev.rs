//! `refrain dev`: builds and runs the server of a crate, restarts it when a source changes, and
//! shows a menu of its tools to call.
//!
//! | module | contents |
//! | --- | --- |
//! | `build` | runs cargo, and returns the program and its sources, or that the build failed |
//! | `sources` | the files whose changes start a build |
//! | `server` | the process of the server |
//!
//! The server runs until the next successful build. After a restart it has the same address, keys and store, so calls and
//! tasks continue.

mod build;
mod server;
mod sources;

use crate::client::{self, print_line};
use crate::style::{BOLD, WARNING};
use crate::terminal::Terminal;
use crate::{AppError, runtime};
use build::{Build, BuildOutcome};
use clap::Args;
use server::{RunningServer, ServerSettings};
use sources::Sources;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often sources are checked for changes.
const POLL: Duration = Duration::from_millis(300);

#[derive(Args)]
#[command(override_usage = "refrain dev [OPTIONS] [-- SERVE_FLAGS...]")]
pub(crate) struct DevOptions {
    /// The port on 127.0.0.1 to serve on [default: a free port].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The package to run, in a workspace.
    #[arg(short, long, value_name = "NAME")]
    package: Option<String>,
    /// The program to run, if the package has several.
    #[arg(long, value_name = "NAME")]
    bin: Option<String>,
    /// Flags for the program's command `serve`.
    #[arg(last = true, value_name = "SERVE_FLAGS")]
    serve: Vec<OsString>,
}

pub(crate) fn run(options: &DevOptions) -> Result<ExitCode, AppError> {
    let _telemetry = client::start_log()?;
    let sources = Sources::of_this_crate()?;
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let address = address(options.port)?;
        let (ready, is_ready) = watch::channel(false);
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut server = None;
        let url = format!("http://{address}/mcp");
        let ended = tokio::select! {
            failed = develop(options, sources, address, &mut server, &ready) => failed,
            failed = call_tools(&url, is_ready) => failed,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
            _ = hangup.recv() => Ok(()),
        };
        if let Some(server) = server {
            RunningServer::stop(server).await;
        }
        ended
    });
    // A thread that reads the terminal is not waited for.
    runtime.shutdown_background();
    ended.map(|()| ExitCode::SUCCESS)
}

/// The address of the server, which stays the same after a restart.
fn address(port: Option<u16>) -> std::io::Result<SocketAddr> {
    match port {
        Some(port) => Ok(([127, 0, 0, 1], port).into()),
        None => std::net::TcpListener::bind("127.0.0.1:0")?.local_addr(),
    }
}

/// Builds and runs the server whenever sources change. `ready` is true while a server runs and no build is in progress.
/// Returns only with an error.
async fn develop(
    options: &DevOptions,
    mut sources: Sources,
    address: SocketAddr,
    server: &mut Option<RunningServer>,
    ready: &watch::Sender<bool>,
) -> Result<(), AppError> {
    let build = Build::new(options.package.as_deref(), options.bin.as_deref());
    let settings = ServerSettings::new(address, &options.serve);
    loop {
        let mut built = sources.snapshot();
        ready.send_replace(false);
        match build.run().await? {
            BuildOutcome::Failed if server.is_some() => {
                warn("build failed; the previous server keeps running");
            }
            BuildOutcome::Failed => warn("build failed; waiting for a change"),
            BuildOutcome::Built(program) => {
                sources.add(program.sources(), &mut built);
                if !program.is_fresh || server.is_none() {
                    if let Some(old) = server.take() {
                        old.stop().await;
                    }
                    *server = settings.start(&program.path).await?;
                }
            }
        }
        loop {
            if server.is_some() {
                ready.send_replace(true);
            }
            tokio::select! {
                () = sources.changed(&built, POLL) => break,
                status = exited(server) => {
                    *server = None;
                    ready.send_replace(false);
                    warn(&format!("the server exited: {status}; waiting for a change"));
                }
            }
        }
        note("sources changed");
    }
}

/// Waits for the exit of the server; forever if no server runs.
async fn exited(server: &mut Option<RunningServer>) -> String {
    match server {
        Some(server) => server.exited().await,
        None => std::future::pending().await,
    }
}

/// Lets the user call tools at the terminal. Without a terminal, it waits forever.
async fn call_tools(url: &str, is_ready: watch::Receiver<bool>) -> Result<(), AppError> {
    match Terminal::detect() {
        Some(terminal) => client::call_picked_tools(&terminal, url, is_ready).await,
        None => std::future::pending().await,
    }
}

fn note(text: &str) {
    print_line(&format!("{BOLD}refrain dev:{BOLD:#} {text}"));
}

fn warn(text: &str) {
    print_line(&format!("{WARNING}refrain dev:{WARNING:#} {text}"));
}
