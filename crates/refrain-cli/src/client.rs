//! The commands of the client.
//!
//! The result goes to standard output, everything else to standard error. With `--save`, a pending call is on disk before
//! the command ends.

mod answerer;
mod arguments;
mod call;
mod connection;
mod dialect;
mod exit;
mod interrupt;
mod json;
mod lists;
mod login;
mod logins;
mod options;
mod output;
mod picked_calls;
mod preset_answers;
mod sampler;
mod sanitize;
mod saved_call;
mod stderr;
mod task;
mod trace;
mod unanswered;

pub(crate) use picked_calls::call_picked_tools;
pub(crate) use stderr::print as print_line;

use crate::{AppError, print_error, runtime};
use clap::Subcommand;
use dialect::{ProtocolOption, protocol_hint};
use exit::CommandError;
pub(crate) use options::secrets;
use refrain_app::log::{self, LogFormat};
use refrain_app::telemetry::{Telemetry, in_span};
use refrain_wire::Implementation;
use std::process::ExitCode;
use std::time::Duration;
use stderr::LogLines;

/// The usage of a command that connects to a server: at a URL, or started with `--stdio`.
macro_rules! usage {
    ($command:literal, $words:literal) => {
        concat!(
            "refrain ",
            $command,
            " [OPTIONS] URL",
            $words,
            "\n       refrain ",
            $command,
            " [OPTIONS] --stdio",
            $words,
            " -- COMMAND..."
        )
    };
}
use usage;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
pub(crate) enum ClientCommand {
    /// Call a tool and answer its questions (asks).
    Call(Box<call::ToolOptions>),
    /// Get a prompt and answer its questions (asks).
    Prompt(Box<call::PromptOptions>),
    /// Read a resource and answer its questions (asks).
    Read(Box<call::ReadOptions>),
    /// Continue a call that was saved in a file.
    Resume(Box<call::ResumeOptions>),
    #[command(flatten)]
    List(lists::ListCommand),
    /// Show a task of a server, wait for its end, or cancel it.
    Task(Box<task::TaskCommandOptions>),
    /// Log in to a server that uses OAuth, in a browser.
    Login(login::LoginOptions),
    /// Forget the login for a server.
    Logout(login::LogoutOptions),
}

impl ClientCommand {
    /// The name of the command in traces.
    fn name(&self) -> &'static str {
        match self {
            Self::Call(_) => "refrain call",
            Self::Prompt(_) => "refrain prompt",
            Self::Read(_) => "refrain read",
            Self::Resume(_) => "refrain resume",
            Self::List(_) => "refrain list",
            Self::Task(_) => "refrain task",
            Self::Login(_) => "refrain login",
            Self::Logout(_) => "refrain logout",
        }
    }
}

pub(crate) fn run(command: ClientCommand) -> Result<ExitCode, AppError> {
    let _telemetry = start_log()?;
    let runtime = runtime()?;
    let done = runtime.block_on(in_span(command.name(), async {
        match command {
            ClientCommand::Call(options) => call::tool(*options).await,
            ClientCommand::Prompt(options) => call::prompt(*options).await,
            ClientCommand::Read(options) => call::read(*options).await,
            ClientCommand::Resume(options) => call::resume(*options).await,
            ClientCommand::List(command) => lists::run(command).await,
            ClientCommand::Task(options) => task::run(*options).await,
            ClientCommand::Login(options) => login::login(&options).await,
            ClientCommand::Logout(options) => login::logout(&options),
        }
    }));
    // Ends a server process whose connection was not closed. A thread that reads standard input is not waited for.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    let code = done.unwrap_or_else(|error| {
        let error = print_as_json(error.with_server_lines(&stderr::server_lines()));
        print_error(&error.to_string());
        error.code
    });
    Ok(code.into())
}

/// Starts logging. Log lines are held back while a question is shown at the terminal.
pub(crate) fn start_log() -> Result<Telemetry, AppError> {
    log::start("refrain client", "warn", LogFormat::Text, || LogLines)
}

/// Prints the error of invalid command line arguments as JSON if `--json` was given.
pub(crate) fn print_usage_error_as_json(error: &clap::Error) {
    print_as_json(CommandError::from_clap(error));
}

/// Prints the error of a command outside of the client as JSON if `--json` was given. `text` is that of an [`AppError`].
pub(crate) fn print_error_as_json(text: &str) {
    print_as_json(CommandError::from_text(text));
}

/// Prints an error as JSON if `--json` was given.
fn print_as_json(error: CommandError) -> CommandError {
    let mut words = std::env::args_os().take_while(|word| word != "--");
    if words.any(|word| word == "--json")
        && let Some(json) = error.to_json()
        && let Err(failed) = output::print_json(&json)
    {
        return error.note(failed.message);
    }
    error
}

/// The name and version that servers see.
fn own_info() -> Implementation {
    Implementation {
        name: "refrain".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Implementation::default()
    }
}

fn expect_end(mut words: impl Iterator<Item = String>) -> Result<(), CommandError> {
    match words.next() {
        None => Ok(()),
        Some(word) => Err(CommandError::usage(format!("unexpected argument {word:?}"))
            .hint("with --stdio, leave out the URL")),
    }
}
