//! `refrain task`: a task at a server, shown, watched or cancelled.

use super::caller::Caller;
use super::exit::{Code, EXIT_CODES, Stop};
use super::options::{Answering, Reach};
use super::output::{self, print, print_json};
use super::text::one_line;
use anstyle::{AnsiColor, Style};
use clap::{Args, Subcommand};
use refrain_client::{Task, TaskStatus};
use refrain_wire::CallKind;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show how a task stands, and its result if it has one.
    #[command(after_help = EXIT_CODES)]
    Get(Named),
    /// Look after a task until it is done, answer what it asks, and print its result.
    #[command(after_help = EXIT_CODES)]
    Watch {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        answering: Answering,
    },
    /// Call a task off, unless it is over.
    #[command(after_help = EXIT_CODES)]
    Cancel(Named),
}

#[derive(Args)]
struct Named {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    /// The id of the task.
    id: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

impl Named {
    /// The server's address and the task's id.
    fn read(self) -> Result<(Reach, super::options::Place, String), Stop> {
        let Self { url, id, reach } = self;
        let mut words = url.into_iter().chain(id);
        let place = reach.place(&mut words)?;
        let id = words.next().ok_or_else(|| {
            Stop::usage("which task? Its id is what the call that became it printed")
        })?;
        super::nothing_more(words)?;
        Ok((reach, place, id))
    }
}

pub(super) async fn run(options: Options) -> Result<Code, Stop> {
    match options.command {
        Command::Get(named) => look(named, false).await,
        Command::Cancel(named) => look(named, true).await,
        Command::Watch { named, answering } => {
            let (reach, place, id) = named.read()?;
            let caller = Caller::ready(&reach, place, &answering, None, 0).await?;
            caller.watch(&id).await
        }
    }
}

/// Shows a task, after cancelling it if `cancel` is set.
async fn look(named: Named, cancel: bool) -> Result<Code, Stop> {
    let (reach, place, id) = named.read()?;
    let mut caller = Caller::reach(&reach, place).await?;
    let client = caller.client.clone();
    let look = async {
        if cancel {
            client.cancel_task(&id).await?;
        }
        client.task(&id).await
    };
    let task = caller.interrupt.unless(look).await;
    drop(client);
    caller.close().await;
    show(&task?, reach.json)
}

fn show(task: &Task, json: bool) -> Result<Code, Stop> {
    let asks: Vec<&str> = task.asks().collect();
    if json {
        let millis = |time: Duration| time.as_millis() as u64;
        let mut shown = json!({
            "taskId": task.id,
            "status": task.status.as_str(),
            "statusMessage": task.message,
            "createdAt": task.created_at,
            "lastUpdatedAt": task.updated_at,
            "ttlMs": task.ttl.map(millis),
            "pollIntervalMs": task.poll_interval.map(millis),
            "asks": asks,
        });
        match &task.status {
            TaskStatus::Completed(result) => shown["result"] = result.clone(),
            TaskStatus::Failed(error) => {
                shown["error"] =
                    json!({"code": error.code, "message": error.message, "data": error.data});
            }
            _ => {}
        }
        print_json(&shown)?;
        return Ok(Code::Done);
    }
    let style = colour(&task.status);
    let status = format!("{style}{}{style:#}", task.status.as_str());
    let mut lines = vec![("id", one_line(&task.id)), ("status", status)];
    lines.extend(
        task.message
            .iter()
            .map(|message| ("message", one_line(message))),
    );
    lines.push(("created", one_line(&task.created_at)));
    lines.push(("updated", one_line(&task.updated_at)));
    let lives = |ttl: Duration| format!("{} s from its creation", ttl.as_secs());
    lines.extend(task.ttl.map(|ttl| ("lives", lives(ttl))));
    if !asks.is_empty() {
        lines.push(("asks", one_line(&asks.join(", "))));
    }
    if let TaskStatus::Failed(error) = &task.status {
        lines.push(("error", one_line(&error.to_string())));
    }
    for (name, text) in lines {
        print(&format!("{name:<8}  {text}"))?;
    }
    if let TaskStatus::Completed(result) = &task.status {
        print("")?;
        output::result(kind(result), result, false)?;
    }
    Ok(Code::Done)
}

/// The kind of call that has this result.
fn kind(result: &Value) -> CallKind {
    if result.get("messages").is_some() {
        CallKind::Prompt
    } else if result.get("contents").is_some() {
        CallKind::Resource
    } else {
        CallKind::Tool
    }
}

fn colour(status: &TaskStatus) -> Style {
    match status {
        TaskStatus::Working => AnsiColor::Cyan.on_default(),
        TaskStatus::InputRequired => AnsiColor::Yellow.on_default(),
        TaskStatus::Completed(_) => AnsiColor::Green.on_default(),
        TaskStatus::Failed(_) => AnsiColor::Red.on_default(),
        _ => Style::new().dimmed(),
    }
}
