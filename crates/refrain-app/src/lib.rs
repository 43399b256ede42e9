//! The application shell of a Refrain server.
//!
//! [`run`] makes a whole program of a [`ServerBuilder`]: command-line flags, a TOML file, keys, a task store,
//! authentication, limits, metrics, logs, draining on SIGTERM and new keys on SIGHUP.
//!
//! ```no_run
//! use refrain::prelude::*;
//! use std::process::ExitCode;
//!
//! #[derive(Deserialize, Elicit)]
//! struct Login { name: String }
//!
//! /// Greets the caller by name.
//! #[tool]
//! async fn hello(cx: Cx) -> Result<String> {
//!     let login: Login = cx.elicit("login", "What should I call you?").await?;
//!     Ok(format!("Hello, {}.", login.name))
//! }
//!
//! fn main() -> ExitCode {
//!     refrain_app::run(Server::builder("hello", "1.0").tool(hello()))
//! }
//! ```
//!
//! | command | what it does |
//! | --- | --- |
//! | `serve` | serves clients over HTTP, or with `--stdio` over standard input and output |
//! | `worker` | works on tasks without a port for clients |
//! | `tasks` | lists, shows, cancels and requeues the tasks of a store |
//! | `keys` | makes and rotates the keys that a fleet shares |
//! | `config` | checks a configuration file, or prints one with all defaults |
//!
//! The settings are described in `docs/operate/operating.md`. They replace what the builder says about limits, lifetimes of
//! tokens, keys, the task store and authentication; the audience of tokens is the builder's unless it is set.
//!
//! A program that adds flags or commands uses [`App`] and [`Command`].

mod app;
mod auth;
mod config;
mod instance;
mod keys;
pub mod log;
pub mod secret_file;
mod serve;
mod servers;
mod signals;
mod store;
mod tasks;
mod worker;

pub use app::{App, Command, NoFlags};

use refrain::server::ServerBuilder;
use std::process::ExitCode;

/// The error of a command: a message for the person who ran it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs a server as a program: parses the command line, runs the command and returns the exit code for `main`.
pub fn run(builder: ServerBuilder) -> ExitCode {
    App::new(builder).main()
}

/// A tokio runtime for this machine: single-threaded on one core, so that no work moves between threads.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let one_core = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    if one_core {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    }
    .enable_all()
    .build()
}
