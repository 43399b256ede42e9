//! The program around a Refrain server: its command line, configuration and operation.
//!
//! [`run`] turns a [`ServerBuilder`] into a program: command-line flags, a TOML file, keys, a task store,
//! authentication, limits, metrics, logs, draining on SIGTERM, and reloading of keys, certificates and callers on SIGHUP.
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
//! | command | purpose |
//! | --- | --- |
//! | `serve` | serves clients over HTTP, or with `--stdio` over standard input and output |
//! | `worker` | runs tasks without serving clients |
//! | `store tasks` | lists, shows, cancels and requeues the tasks in a store |
//! | `keys` | creates and rotates the keys that a fleet shares |
//! | `config` | checks a configuration file, or prints one with all defaults |
//! | `completions`, `man` | prints shell completions, writes manual pages |
//!
//! The configuration overrides the builder's limits, token lifetimes and task store. It overrides
//! the keys, the authentication and the audience of tokens only if it sets them.
//!
//! A program that adds flags, settings or commands uses [`App`] and [`Command`]; the page "A whole
//! server program" of the book shows one.

mod app;
mod auth;
mod config;
mod drafts;
mod error;
pub mod input_file;
mod instance;
mod keys;
pub mod log;
pub mod sanitize;
pub mod secret_file;
mod serve;
mod servers;
mod setup;
mod shell_files;
mod signals;
mod store;
mod tasks;
pub mod telemetry;
mod tls;
mod webhooks;
mod worker;

pub use app::{App, Command, NoFlags, NoSettings};
pub use config::ConfigOptions;
pub use error::{AppError, print_error, remove_distant_tip, with_hint};
pub use serve::ServeOptions;
pub use servers::KEYS;
pub use setup::Setup;
pub use store::STORE;

use drafts::{BuildEndpoint, EndpointFlags, Endpoints};
use refrain::server::ServerBuilder;
use std::process::ExitCode;

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
