//! `refrain call`, `refrain prompt`, `refrain read` and `refrain resume`.

use super::arguments::Arguments;
use super::caller::Caller;
use super::exit::{Code, EXIT_CODES, Stop};
use super::options::{Answering, Place, Reach};
use super::saved_call::SavedCall;
use super::screen;
use clap::Args;
use refrain_client::{CallSpec, PendingCall};
use serde_json::Value;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    override_usage = "refrain call [OPTIONS] URL TOOL [ARGS]...\n       refrain call [OPTIONS] --stdio TOOL [ARGS]... -- COMMAND...",
    after_help = EXIT_CODES
)]
pub(crate) struct ToolOptions {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    /// The tool to call.
    tool: Option<String>,
    /// Its arguments: NAME=VALUE for each, one JSON object for all, or `-` for an object on standard input. A value that
    /// is JSON is taken for that, unless the tool's schema says string.
    args: Vec<String>,
    #[command(flatten)]
    making: Making,
}

#[derive(Args)]
#[command(
    override_usage = "refrain prompt [OPTIONS] URL NAME [ARGS]...\n       refrain prompt [OPTIONS] --stdio NAME [ARGS]... -- COMMAND...",
    after_help = EXIT_CODES
)]
pub(crate) struct PromptOptions {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    /// The prompt to get.
    name: Option<String>,
    /// Its arguments: NAME=VALUE for each, one JSON object for all, or `-` for an object on standard input.
    args: Vec<String>,
    #[command(flatten)]
    making: Making,
}

#[derive(Args)]
#[command(
    override_usage = "refrain read [OPTIONS] URL URI\n       refrain read [OPTIONS] --stdio URI -- COMMAND...",
    after_help = EXIT_CODES
)]
pub(crate) struct ReadOptions {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    /// The URI of the resource to read.
    uri: Option<String>,
    #[command(flatten)]
    making: Making,
}

#[derive(Args)]
#[command(
    override_usage = "refrain resume [OPTIONS] FILE\n       refrain resume [OPTIONS] --stdio FILE -- COMMAND...",
    after_help = EXIT_CODES
)]
pub(crate) struct ResumeOptions {
    /// The file that the call was kept in. It is replaced when the call waits again, and removed when it is done.
    file: PathBuf,
    /// Where the server is now, if it is not where it was. Without it, the token in $REFRAIN_TOKEN is not sent: the
    /// address is FILE's.
    #[arg(long, conflicts_with = "stdio")]
    url: Option<String>,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    answering: Answering,
}

#[derive(Args)]
struct Making {
    /// Keep the call in FILE until it is done, so that `refrain resume FILE` can take it up. Who can read FILE can answer
    /// in your place.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    answering: Answering,
}

impl Making {
    async fn caller(&self, place: Place) -> Result<Caller, Stop> {
        let saved = self.save.as_deref().map(SavedCall::new).transpose()?;
        Caller::ready(&self.reach, place, &self.answering, saved, 0).await
    }
}

pub(super) async fn tool(options: ToolOptions) -> Result<Code, Stop> {
    let making = options.making;
    let mut words = options
        .url
        .into_iter()
        .chain(options.tool)
        .chain(options.args);
    let place = making.reach.place(&mut words)?;
    let name = words.next().ok_or_else(|| missing("tool", "tools"))?;
    let arguments = Arguments::read(&words.collect::<Vec<_>>())?;
    let mut caller = making.caller(place).await?;
    let schema = match arguments.is_empty() {
        true => Value::Null,
        false => match schema(&mut caller, &name).await {
            Err(stop) if arguments.need_schema() || stop.code == Code::Interrupted => {
                return Err(stop);
            }
            // An error of the server comes up again in the call itself.
            listed => listed.unwrap_or_default(),
        },
    };
    for unlisted in arguments.unlisted(&schema) {
        screen::warn(&unlisted);
    }
    let call = CallSpec::tool(name).with_arguments(arguments.of_tool(&schema)?);
    caller.make(call).await
}

pub(super) async fn prompt(options: PromptOptions) -> Result<Code, Stop> {
    let making = options.making;
    let mut words = options
        .url
        .into_iter()
        .chain(options.name)
        .chain(options.args);
    let place = making.reach.place(&mut words)?;
    let name = words.next().ok_or_else(|| missing("prompt", "prompts"))?;
    let arguments = Arguments::read(&words.collect::<Vec<_>>())?;
    let caller = making.caller(place).await?;
    let call = CallSpec::prompt(name).with_arguments(arguments.of_prompt());
    caller.make(call).await
}

pub(super) async fn read(options: ReadOptions) -> Result<Code, Stop> {
    let ReadOptions { url, uri, making } = options;
    let mut words = url.into_iter().chain(uri);
    let place = making.reach.place(&mut words)?;
    let uri = words.next().ok_or_else(|| missing("URI", "resources"))?;
    super::nothing_more(words)?;
    let caller = making.caller(place).await?;
    caller.make(CallSpec::resource(uri)).await
}

/// Resumes a saved call.
pub(super) async fn resume(mut options: ResumeOptions) -> Result<Code, Stop> {
    let (saved, pending) = SavedCall::read(&options.file)?;
    let place = match (options.reach.command(), options.url) {
        (Some(command), _) => command,
        (None, Some(url)) => Place::Url(url),
        (None, None) => {
            options.reach.is_address_from_file = true;
            former(&pending)?
        }
    };
    // The call goes on in its dialect.
    options.reach.dialect = options.reach.dialect.or(pending.dialect());
    let rounds = pending.round();
    let (reach, answering) = (&options.reach, &options.answering);
    let caller = Caller::ready(reach, place, answering, Some(saved), rounds);
    let stays = |stop: Stop| {
        let file = options.file.display().to_string();
        stop.and(&format!("the call stays in {file}"))
            .with("saved", file)
    };
    let done = match caller.await {
        Ok(caller) => caller.finish(pending).await,
        Err(stop) => Err(stays(stop)),
    };
    done.map_err(|stop| match options.reach.withheld() {
        Some(why) if stop.code == Code::Unauthorized => stop.and(&why),
        _ => stop,
    })
}

/// The address of a saved call. A command in a file is not started.
fn former(pending: &PendingCall) -> Result<Place, Stop> {
    let address = pending.address();
    if address.starts_with("http://") || address.starts_with("https://") {
        return Ok(Place::Url(address.to_owned()));
    }
    Err(Stop::usage(format!(
        "the call was made to the command {address:?}; start it again with --stdio -- COMMAND, or say with --url where \
         the server is"
    )))
}

/// The schema of a tool's arguments; nothing if the server does not list the tool.
async fn schema(caller: &mut Caller, name: &str) -> Result<Value, Stop> {
    let tools = caller.interrupt.unless(caller.client.tools()).await?;
    let tool = tools.into_iter().find(|tool| tool.name == name);
    Ok(tool.map_or(Value::Null, |tool| tool.input_schema))
}

fn missing(what: &str, list: &str) -> Stop {
    Stop::usage(format!(
        "which {what}? `refrain {list} URL` shows those that there are"
    ))
}
