//! The program around a server: its name, its commands and its flags.

use crate::config::{CheckOwn, Settings, UncheckedConfig};
use crate::error::{program, remove_distant_tip};
use crate::instance::InstanceFlags;
use crate::serve::ServeOptions;
use crate::setup::{BuildSetup, Setup};
use crate::shell_files::{self, CompletionsOptions, ManOptions};
use crate::store::StoreUrl;
use crate::{
    AppError, BuildEndpoint, EndpointFlags, config, keys, print_error, serve, tasks, worker,
};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use refrain::server::ServerBuilder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::ExitCode;

/// A program that runs the server of a [`ServerBuilder`]. `F` are flags that it adds to `serve` and `worker`, `C` are tables
/// that it adds to the configuration file.
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
pub struct App<F: Args = NoFlags, C = NoSettings> {
    /// The program's name, as in `NAME serve`.
    pub(crate) name: &'static str,
    version: Option<&'static str>,
    /// The program's own settings with their defaults.
    own_settings: &'static str,
    pub(crate) default_store: StoreUrl,
    pub(crate) build: Box<dyn BuildSetup<F, C>>,
    pub(crate) build_endpoint: Option<Box<BuildEndpoint<F>>>,
    check_settings: Box<CheckOwn<C>>,
    /// The command line with all commands, if the program has more than [`Command`].
    command_line: Option<fn() -> clap::Command>,
}

/// No further flags.
#[derive(Args, Clone, Copy, Debug)]
pub struct NoFlags {}

/// No further settings.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct NoSettings {}

/// The commands of every program. A program with more commands flattens this into its own `clap::Subcommand`.
#[derive(Subcommand)]
pub enum Command<F: Args = NoFlags> {
    /// Serve clients over HTTP, or over standard input and output.
    Serve(Box<serve::ServeCommand<F>>),
    /// Run tasks without serving clients.
    Worker(Box<InstanceFlags<F>>),
    /// List, show, cancel and requeue the tasks in a store (for operators).
    Store(tasks::StoreOptions),
    /// The former name of `store tasks`.
    #[command(hide = true)]
    Tasks(tasks::TasksOptions),
    /// Create and rotate the keys of a fleet. They encrypt the tokens that clients keep between
    /// rounds.
    Keys(keys::KeysOptions),
    /// Check a configuration file, or print one with all defaults.
    Config(config::ConfigOptions),
    /// Print the completions of a shell.
    Completions(CompletionsOptions),
    /// Write the manual pages of all commands.
    #[command(hide = true)]
    Man(ManOptions),
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
        Self::with_flags(name, move |_| Ok(builder.clone())).version(version)
    }
}

impl<F: Args> App<F> {
    /// The program for the server that `build` returns for the flags `F`.
    pub fn with_flags(
        name: &'static str,
        build: impl Fn(&F) -> Result<ServerBuilder, AppError> + 'static,
    ) -> Self {
        Self::configured(name, "", async move |flags: &F, _| build(flags))
    }
}

impl<F: Args, C: Serialize + DeserializeOwned> App<F, C> {
    /// The program for the server that `build` returns for the flags `F` and the program's own settings `C`. `build` runs
    /// inside the tokio runtime. It returns a [`ServerBuilder`], or a [`Setup`] with work to do at start and stop.
    ///
    /// `settings` is printed by `config defaults`. It contains all tables of `C` with their settings and defaults; settings
    /// without a default are commented out with `# `. A key in upper case stands for any key. `C` has the same tables as
    /// fields; its structs should have `deny_unknown_fields`. `config check` prints them as they are serialized.
    ///
    /// ```no_run
    /// use refrain::prelude::*;
    /// use refrain_app::{App, NoFlags};
    /// use serde::{Deserialize, Serialize};
    /// use std::collections::BTreeMap;
    ///
    /// const SETTINGS: &str = r#"
    /// [weather]
    /// refresh_seconds = 60                  # between two forecasts
    ///
    /// # [cities.NAME]
    /// # latitude = 59.9                     # in degrees
    /// # alias = "capital"                   # another name
    /// "#;
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Config {
    ///     weather: Weather,
    ///     #[serde(default)]
    ///     cities: BTreeMap<String, City>,
    /// }
    ///
    /// #[derive(Serialize, Deserialize)]
    /// #[serde(deny_unknown_fields, expecting = "a table")]
    /// struct Weather {
    ///     refresh_seconds: u64,
    /// }
    ///
    /// #[derive(Serialize, Deserialize)]
    /// #[serde(deny_unknown_fields, expecting = "a table")]
    /// struct City {
    ///     latitude: f64,
    ///     alias: Option<String>,
    /// }
    ///
    /// fn main() -> std::process::ExitCode {
    ///     let app = App::configured("weather", SETTINGS, async |_: &NoFlags, config: Config| {
    ///         let cities: Vec<String> = config.cities.into_keys().collect();
    ///         Ok(Server::builder("weather", "1.0").title(cities.join(", ")))
    ///     });
    ///     app.main()
    /// }
    /// ```
    pub fn configured<S: Into<Setup>>(
        name: &'static str,
        settings: &'static str,
        build: impl AsyncFn(&F, C) -> Result<S, AppError> + 'static,
    ) -> Self {
        let build = async move |flags: &F, config: C| build(flags, config).await.map(S::into);
        Self {
            name,
            version: None,
            own_settings: settings,
            default_store: StoreUrl::default(),
            build: Box::new(build),
            build_endpoint: None,
            check_settings: Box::new(|_| Vec::new()),
            command_line: None,
        }
    }

    /// The version that `--version` prints, as in `.version(env!("CARGO_PKG_VERSION"))`.
    pub fn version(mut self, version: &'static str) -> Self {
        self.version = Some(version);
        self
    }

    /// The store if neither a flag nor the file nor the environment sets one. Without this, `sqlite:refrain.db`.
    pub fn default_store(mut self, url: &str) -> Self {
        self.default_store = url.to_owned().into();
        self
    }

    /// Checks the program's own settings for `config check`, after their types. `check` returns the name of each invalid
    /// setting, such as `weather.refresh_seconds`, and the error.
    pub fn check_settings(mut self, check: impl Fn(&C) -> Vec<(String, String)> + 'static) -> Self {
        self.check_settings = Box::new(check);
        self
    }

    /// The whole command line of a program with more commands than [`Command`], such as `Cli::command` of a
    /// `clap::Parser`. The commands `completions` and `man` describe it.
    pub fn command_line(mut self, command: fn() -> clap::Command) -> Self {
        self.command_line = Some(command);
        self
    }

    fn build_command_line(&self) -> clap::Command {
        if let Some(command) = self.command_line {
            return command();
        }
        let command = Cli::<F>::command().name(self.name);
        match self.version {
            Some(version) => command.version(version),
            None => command,
        }
    }

    /// Parses the command line, runs the command and prints its error. Returns the exit code of the process.
    pub fn main(&self) -> ExitCode {
        let matches = self.build_command_line().try_get_matches();
        let matches = matches.unwrap_or_else(|mut error| {
            remove_distant_tip(&mut error);
            error.exit()
        });
        let cli = Cli::<F>::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        self.run(cli.command).unwrap_or_else(|error| {
            print_error(&error.to_string());
            ExitCode::FAILURE
        })
    }

    /// Reads the program's own settings from a configuration file, and checks the whole file.
    pub fn read_settings(&self, file: &Path) -> Result<C, AppError> {
        let settings = Settings::new(self.name, self.own_settings)?;
        let (_, own) = UncheckedConfig::<C>::read(&settings, file)?.check()?;
        Ok(own)
    }

    /// Serves clients like the command `serve`, without drafts. For a program with its own command for that:
    ///
    /// ```no_run
    /// use clap::Parser;
    /// use refrain::prelude::*;
    /// use refrain_app::{App, NoFlags, ServeOptions};
    ///
    /// #[derive(Parser)]
    /// enum Command {
    ///     /// Serve the weather.
    ///     Weather(Box<ServeOptions>),
    /// }
    ///
    /// fn main() -> Result<std::process::ExitCode, refrain_app::AppError> {
    ///     let Command::Weather(options) = Command::parse();
    ///     let app = App::with_flags("program weather", |_: &NoFlags| {
    ///         Ok(Server::builder("weather", "1.0"))
    ///     });
    ///     app.default_store("memory:").serve(&options)
    /// }
    /// ```
    pub fn serve(&self, options: &ServeOptions<F>) -> Result<ExitCode, AppError> {
        let settings = Settings::new(self.name, self.own_settings)?;
        serve::run(self, &settings, options, &EndpointFlags::default())
    }

    /// Runs one command.
    pub fn run(&self, command: Command<F>) -> Result<ExitCode, AppError> {
        let settings = Settings::new(self.name, self.own_settings)?;
        match command {
            Command::Serve(command) => command.run(self, &settings),
            Command::Worker(flags) => worker::run(self, &settings, &flags),
            Command::Store(options) => options.run(self, &settings),
            Command::Tasks(options) => {
                let program = self.name;
                anstream::eprintln!("note: `{program} tasks` is now `{program} store tasks`");
                tasks::run(self, &settings, &options)
            }
            Command::Keys(options) => keys::run(options),
            Command::Config(options) => config::run(&settings, &options, &*self.check_settings),
            Command::Completions(options) => {
                shell_files::print_completions(self.build_command_line(), options)
            }
            Command::Man(options) => shell_files::write_manual(self.build_command_line(), &options),
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
