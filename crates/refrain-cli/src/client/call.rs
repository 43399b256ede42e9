//! `refrain call`, `refrain prompt`, `refrain read` and `refrain resume`.

use super::arguments::Arguments;
use super::connection::ServerConnection;
use super::exit::{Code, CommandError, EXIT_CODES};
use super::interrupt::Interrupt;
use super::options::{AnswerOptions, ConnectOptions, ServerTarget};
use super::saved_call::SavedCall;
use super::unanswered::quoted;
use super::{stderr, usage};
use clap::Args;
use refrain_client::{CallSpec, PendingCall};
use serde_json::Value;
use std::path::PathBuf;

/// The URL in hints: the default address of `serve`.
const EXAMPLE_URL: &str = "http://127.0.0.1:8080/mcp";

#[derive(Args)]
#[command(
    override_usage = usage!("call", " TOOL [ARGS]..."),
    after_help = EXIT_CODES
)]
pub(crate) struct ToolOptions {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    /// The tool to call.
    tool: Option<String>,
    /// The arguments: NAME=VALUE for each, one JSON object for all, or `-` to read an object from standard input. A VALUE
    /// is parsed as JSON if possible, unless the tool's schema expects a string.
    args: Vec<String>,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Args)]
#[command(
    override_usage = usage!("prompt", " NAME [ARGS]..."),
    after_help = EXIT_CODES
)]
pub(crate) struct PromptOptions {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    /// The prompt to get.
    name: Option<String>,
    /// The arguments: NAME=VALUE for each, one JSON object for all, or `-` to read an object from standard input.
    args: Vec<String>,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Args)]
#[command(
    override_usage = usage!("read", " URI"),
    after_help = EXIT_CODES
)]
pub(crate) struct ReadOptions {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    /// The URI of the resource to read.
    uri: Option<String>,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Args)]
#[command(
    override_usage = "refrain resume [OPTIONS] FILE\n       refrain resume [OPTIONS] --stdio FILE -- COMMAND...",
    after_help = EXIT_CODES
)]
pub(crate) struct ResumeOptions {
    /// The file of the saved call. It is updated when the call waits again, and removed when the call is done.
    file: PathBuf,
    /// The URL of the server, if it has moved. Without --url, the token in $REFRAIN_TOKEN is not sent, because the address
    /// comes from FILE.
    #[arg(long, conflicts_with = "stdio")]
    url: Option<String>,
    #[command(flatten)]
    connect: ConnectOptions,
    #[command(flatten)]
    answers: AnswerOptions,
}

#[derive(Args)]
struct CallOptions {
    /// Save the call in FILE until it is done, so that `refrain resume FILE` can continue it. Anyone who can read FILE can
    /// answer for you.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectOptions,
    #[command(flatten)]
    answers: AnswerOptions,
}

fn is_http_url(word: &str) -> bool {
    word.starts_with("http://") || word.starts_with("https://")
}

impl CallOptions {
    fn interrupt(&self) -> Result<Interrupt, CommandError> {
        Interrupt::new(self.connect.deadline())
    }

    async fn connect(
        &self,
        interrupt: Interrupt,
        target: ServerTarget,
    ) -> Result<ServerConnection, CommandError> {
        let saved = self.save.as_deref().map(SavedCall::new).transpose()?;
        let (connect, answers) = (&self.connect, &self.answers);
        ServerConnection::for_call(interrupt, connect, target, answers, saved, 0).await
    }

    /// Reports a tool, prompt or resource in place of the server's URL.
    fn expect_url(
        &self,
        command: &str,
        words: &[String],
        is_target: impl Fn(&str) -> bool,
    ) -> Result<(), CommandError> {
        match words.first() {
            Some(first)
                if self.connect.command().is_some() && is_http_url(first) && command != "read" =>
            {
                let message = format!("a URL cannot be combined with --stdio: leave out {first:?}");
                Err(CommandError::usage(message))
            }
            Some(first) if self.connect.command().is_none() && is_target(first) => {
                let given = words[1..].iter().position(|word| is_http_url(word));
                let mut words = words.to_vec();
                let (url, hint) = match given {
                    Some(index) => (words.remove(index + 1), "the URL comes first:"),
                    None => (EXAMPLE_URL.to_owned(), "pass the URL before it, as in"),
                };
                let words: String = words
                    .iter()
                    .map(|word| format!(" {}", quoted(word)))
                    .collect();
                let message = format!("the first argument must be the server's URL, not {first:?}");
                let url = quoted(&url);
                let example = format!("refrain {command} {url}{words}");
                Err(CommandError::usage(message).hint(format!("{hint} `{example}`")))
            }
            _ => Ok(()),
        }
    }
}

/// Whether this may be the name of a tool or prompt, and is not the address of a server.
fn is_name(word: &str) -> bool {
    !word.is_empty() && !word.contains([':', '.']) && !word.starts_with("localhost")
}

pub(super) async fn tool(options: ToolOptions) -> Result<Code, CommandError> {
    let call_options = options.call;
    let words = options.url.into_iter().chain(options.tool);
    let words: Vec<String> = words.chain(options.args).collect();
    call_options.expect_url("call", &words, is_name)?;
    let mut words = words.into_iter();
    let target = call_options.connect.target(&mut words)?;
    let name = words.next().ok_or_else(|| missing("tool", "tools"))?;
    let words: Vec<_> = words.collect();
    let mut interrupt = call_options.interrupt()?;
    let arguments = interrupt.read(move || Arguments::read(&words)).await?;
    let mut connection = call_options.connect(interrupt, target).await?;
    let schema = match arguments.is_empty() {
        true => Value::Null,
        false => match schema(&mut connection, &name).await {
            Err(error) if arguments.need_schema() || error.code == Code::Interrupted => {
                return Err(error);
            }
            // The call itself will report an error of the server again.
            listed => listed.unwrap_or_default(),
        },
    };
    for warning in arguments.unlisted_warnings(&schema) {
        stderr::warn(&warning);
    }
    let call = CallSpec::tool(name).with_arguments(arguments.for_tool(&schema)?);
    connection.make(call).await
}

pub(super) async fn prompt(options: PromptOptions) -> Result<Code, CommandError> {
    let call_options = options.call;
    let words = options.url.into_iter().chain(options.name);
    let words: Vec<String> = words.chain(options.args).collect();
    call_options.expect_url("prompt", &words, is_name)?;
    let mut words = words.into_iter();
    let target = call_options.connect.target(&mut words)?;
    let name = words.next().ok_or_else(|| missing("prompt", "prompts"))?;
    let words: Vec<_> = words.collect();
    let mut interrupt = call_options.interrupt()?;
    let arguments = interrupt.read(move || Arguments::read(&words)).await?;
    let connection = call_options.connect(interrupt, target).await?;
    let call = CallSpec::prompt(name).with_arguments(arguments.for_prompt());
    connection.make(call).await
}

pub(super) async fn read(options: ReadOptions) -> Result<Code, CommandError> {
    let ReadOptions {
        url,
        uri,
        call: call_options,
    } = options;
    let words: Vec<String> = url.into_iter().chain(uri).collect();
    call_options.expect_url("read", &words, |word| {
        words.len() == 1 && word.contains("://") && !is_http_url(word)
    })?;
    let mut words = words.into_iter();
    let target = call_options.connect.target(&mut words)?;
    let uri = words.next().ok_or_else(|| missing("URI", "resources"))?;
    super::expect_end(words)?;
    let interrupt = call_options.interrupt()?;
    let connection = call_options.connect(interrupt, target).await?;
    connection.make(CallSpec::resource(uri)).await
}

pub(super) async fn resume(mut options: ResumeOptions) -> Result<Code, CommandError> {
    let mut interrupt = Interrupt::new(options.connect.deadline())?;
    let file = options.file.clone();
    let (saved, pending) = interrupt.read(move || SavedCall::read(&file)).await?;
    let target = match (options.connect.command(), options.url) {
        (Some(command), _) => command,
        (None, Some(url)) => ServerTarget::Url(url),
        (None, None) => {
            options.connect.is_saved_address = true;
            saved_address(&pending)?
        }
    };
    options.connect.protocol.or_saved(&pending);
    let rounds = pending.round();
    let (connect, answers) = (&options.connect, &options.answers);
    let saved = Some(saved);
    let connection =
        ServerConnection::for_call(interrupt, connect, target, answers, saved, rounds).await;
    let done = match connection {
        Ok(connection) => connection.finish(pending).await,
        Err(error) => {
            let file = options.file.display().to_string();
            let note = format!("the call is still saved in {file}");
            Err(error.note(note).with("saved", file))
        }
    };
    done.map_err(|error| match options.connect.is_saved_address {
        true => error.at_saved_address(),
        false => error,
    })
}

/// The address of a saved call. A saved command is never started.
fn saved_address(pending: &PendingCall) -> Result<ServerTarget, CommandError> {
    let address = pending.address();
    if address.starts_with("http://") || address.starts_with("https://") {
        return Ok(ServerTarget::Url(address.to_owned()));
    }
    Err(
        CommandError::usage(format!("the call was made to the command {address:?}"))
            .hint("start it again with --stdio -- COMMAND, or pass --url URL"),
    )
}

/// The schema of a tool's arguments; null if the server does not list the tool.
async fn schema(connection: &mut ServerConnection, name: &str) -> Result<Value, CommandError> {
    let tools = connection.client.tools();
    let tools = connection.interrupt.unless_stopped(tools).await?;
    let tool = tools.into_iter().find(|tool| tool.name == name);
    Ok(tool.map_or(Value::Null, |tool| tool.into_view().input_schema))
}

fn missing(what: &str, list: &str) -> CommandError {
    CommandError::usage(format!("missing {what}"))
        .hint(format!("`refrain {list} URL` lists the server's {list}"))
}
