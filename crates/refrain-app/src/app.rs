//! The program around a server: its name, its commands and its flags.

use crate::error::program;
use crate::instance::InstanceFlags;
use crate::{AppError, BuildEndpoint, config, keys, print_error, serve, tasks, worker};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use refrain::server::ServerBuilder;
use std::process::ExitCode;

type BuildServer<F> = dyn Fn(&F) -> Result<ServerBuilder, AppError>;

/// A program that runs the server of a [`ServerBuilder`]. `F` are flags that it adds to `serve` and `worker`.
///
/// ```no_run
/// use refrain::prelude::*;
/// use refrain_app::App;
/// use std::process::ExitCode;
///
/// #[derive(clap::Args)]
/// struct Flags {
///     /// The city to serve.
///     #[arg(long, default_value = "Oslo")]
///     city: String,
/// }
///
/// fn main() -> ExitCode {
///     let app = App::with_flags("weather", |flags: &Flags| {
///         Ok(Server::builder("weather", "1.0").title(&flags.city))
///     });
///     app.main()
/// }
/// ```
pub struct App<F: Args = NoFlags> {
    /// The program's name, as in `NAME serve`.
    pub(crate) name: &'static str,
    version: Option<&'static str>,
    pub(crate) build: Box<BuildServer<F>>,
    pub(crate) build_endpoint: Option<Box<BuildEndpoint<F>>>,
}

/// No further flags.
#[derive(Args, Clone, Copy, Debug)]
pub struct NoFlags {}

/// The commands of every program. A program with more commands flattens this into its own `clap::Subcommand`.
#[derive(Subcommand)]
pub enum Command<F: Args = NoFlags> {
    /// Serve clients over HTTP, or over standard input and output.
    Serve(Box<serve::ServeOptions<F>>),
    /// Run tasks without serving clients.
    Worker(Box<InstanceFlags<F>>),
    /// List, show, cancel and requeue the tasks in a store (for operators).
    Tasks(tasks::TasksOptions),
    /// Create and rotate the keys that the instances of a fleet share.
    Keys(keys::KeysOptions),
    /// Check a configuration file, or print one with all defaults.
    Config(config::ConfigOptions),
}

/// An MCP server, and commands to operate it.
#[derive(Parser)]
struct Cli<F: Args> {
    #[command(subcommand)]
    command: Command<F>,
}

impl App {
    /// The program for this server. Its name is that of the executable.
    pub fn new(builder: ServerBuilder) -> Self {
        // clap needs names with a static lifetime, and a process has one App.
        let name = program().leak();
        let version = &*builder.version().to_owned().leak();
        let mut app = Self::with_flags(name, move |_| Ok(builder.clone()));
        app.version = Some(version);
        app
    }
}

impl<F: Args> App<F> {
    /// The program for the server that `build` returns for the flags `F`.
    pub fn with_flags(
        name: &'static str,
        build: impl Fn(&F) -> Result<ServerBuilder, AppError> + 'static,
    ) -> Self {
        Self {
            name,
            version: None,
            build: Box::new(build),
            build_endpoint: None,
        }
    }

    /// Parses the command line, runs the command and prints its error. Returns the exit code of the process.
    pub fn main(&self) -> ExitCode {
        let mut command = Cli::<F>::command().name(self.name);
        if let Some(version) = self.version {
            command = command.version(version);
        }
        let matches = command.get_matches();
        let cli = Cli::<F>::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        self.run(cli.command).unwrap_or_else(|error| {
            print_error(&error.to_string());
            ExitCode::FAILURE
        })
    }

    /// Runs one command.
    pub fn run(&self, command: Command<F>) -> Result<ExitCode, AppError> {
        match command {
            Command::Serve(options) => serve::run(self, &options),
            Command::Worker(flags) => worker::run(self, &flags),
            Command::Tasks(options) => tasks::run(self.name, &options),
            Command::Keys(options) => keys::run(options),
            Command::Config(options) => config::run(&options),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_do_not_conflict() {
        Cli::<NoFlags>::command().debug_assert();
    }
}
