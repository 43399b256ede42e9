//! The program around a server: its name, its commands, and how flags become a server.

use crate::instance::Common;
use crate::{Failure, config, keys, serve, tasks, worker};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use refrain::server::{Draft, ServerBuilder};
use std::path::Path;
use std::process::ExitCode;

type Build<F> = dyn Fn(&F, Option<Draft>) -> Result<ServerBuilder, Failure>;

/// A program that serves what a [`ServerBuilder`] describes. `F` are flags that it adds to `serve` and `worker`.
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
///     let app = App::with_flags("weather", |flags: &Flags, _draft| {
///         Ok(Server::builder("weather", "1.0").title(&flags.city))
///     });
///     app.main()
/// }
/// ```
pub struct App<F: Args = NoFlags> {
    /// The name that messages begin with.
    pub(crate) name: &'static str,
    version: Option<&'static str>,
    /// Builds the server of `/mcp`, or that of a draft.
    pub(crate) build: Box<Build<F>>,
}

/// No flags beside those of the shell.
#[derive(Args, Clone, Copy, Debug)]
pub struct NoFlags {}

/// The commands of the shell. A program with more commands flattens this into its own `clap::Subcommand`.
#[derive(Subcommand)]
pub enum Command<F: Args = NoFlags> {
    /// Serve clients over HTTP, or over standard input and output.
    Serve(Box<serve::Options<F>>),
    /// Work on tasks without a port for clients.
    Worker(Box<Common<F>>),
    /// List, show, cancel and requeue the tasks of a store.
    Tasks(tasks::Options),
    /// Make and rotate the keys that a fleet shares.
    Keys(keys::Options),
    /// Check a configuration file, or print one with the defaults.
    Config(config::Options),
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
        let executable = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&executable).file_name().unwrap_or_default();
        // clap keeps names for the life of the process, and there is one App in it.
        let name = name.to_string_lossy().into_owned().leak();
        let version = Some(&*builder.version().to_owned().leak());
        Self {
            name,
            version,
            build: Box::new(move |_, _| Ok(builder.clone())),
        }
    }
}

impl<F: Args> App<F> {
    /// Adds the flags `F`. `build` returns the server of `/mcp`, and with `--drafts` the server of each draft.
    pub fn with_flags(
        name: &'static str,
        build: impl Fn(&F, Option<Draft>) -> Result<ServerBuilder, Failure> + 'static,
    ) -> Self {
        Self {
            name,
            version: None,
            build: Box::new(build),
        }
    }

    /// Parses the command line, runs the command and prints its error. The exit code is that of the process.
    pub fn main(&self) -> ExitCode {
        let mut command = Cli::<F>::command().name(self.name);
        if let Some(version) = self.version {
            command = command.version(version);
        }
        let matches = command.get_matches();
        let cli = Cli::<F>::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        self.run(cli.command).unwrap_or_else(|error| {
            anstream::eprintln!("{}: {error}", self.name);
            ExitCode::FAILURE
        })
    }

    /// Runs one command of the shell.
    pub fn run(&self, command: Command<F>) -> Result<ExitCode, Failure> {
        match command {
            Command::Serve(options) => serve::run(self, &options),
            Command::Worker(options) => worker::run(self, &options),
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
    fn flags_do_not_contradict_each_other() {
        Cli::<NoFlags>::command().debug_assert();
    }
}
