//! `refrain task`: shows, watches or cancels a task on a server.

use super::connection::ServerConnection;
use super::exit::{Code, CommandError, EXIT_CODES};
use super::interrupt::Interrupt;
use super::options::{AnswerOptions, ConnectOptions, ServerTarget};
use super::output::{self, print, print_json};
use super::sanitize::one_line;
use super::usage;
use anstyle::{AnsiColor, Style};
use clap::{Args, Subcommand};
use refrain_client::{Task, TaskStatus};
use refrain_wire::CallKind;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Args)]
#[command(
    override_usage = "refrain task <show|watch|cancel> [OPTIONS] URL ID",
    after_help = "MCP has no request that lists tasks. Operators list, show, cancel and requeue \
                        the tasks in a store with `refrain store tasks`."
)]
pub(crate) struct TaskCommandOptions {
    #[command(subcommand)]
    command: TaskCommand,
}

#[derive(Subcommand)]
enum TaskCommand {
    /// Show the status of a task, and its result if it has one.
    #[command(alias = "get", override_usage = usage!("task show", " ID"), after_help = EXIT_CODES)]
    Show(TaskTarget),
    /// Wait for the end of a task, answer its questions (asks), and print its result.
    #[command(override_usage = usage!("task watch", " ID"), after_help = EXIT_CODES)]
    Watch {
        #[command(flatten)]
        target: TaskTarget,
        #[command(flatten)]
        answers: AnswerOptions,
    },
    /// Cancel a task that has not ended.
    #[command(override_usage = usage!("task cancel", " ID"), after_help = EXIT_CODES)]
    Cancel(TaskTarget),
}

#[derive(Args)]
struct TaskTarget {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    /// The id of the task.
    id: Option<String>,
    #[command(flatten)]
    connect: ConnectOptions,
}

impl TaskTarget {
    fn read(self) -> Result<(ConnectOptions, ServerTarget, String), CommandError> {
        let Self { url, id, connect } = self;
        let mut words = url.into_iter().chain(id);
        let server = connect.target(&mut words)?;
        let id = words.next().ok_or_else(|| {
            CommandError::usage("missing task id")
                .hint("pass the URL of the server and the id, which `refrain call` prints")
        })?;
        super::expect_end(words)?;
        Ok((connect, server, id))
    }
}

pub(super) async fn run(options: TaskCommandOptions) -> Result<Code, CommandError> {
    match options.command {
        TaskCommand::Show(target) => show(target, false).await,
        TaskCommand::Cancel(target) => show(target, true).await,
        TaskCommand::Watch { target, answers } => {
            let (connect, server, id) = target.read()?;
            let interrupt = Interrupt::new(connect.deadline())?;
            let connection =
                ServerConnection::for_call(interrupt, &connect, server, &answers, None, 0);
            connection.await?.watch(&id).await
        }
    }
}

/// Prints a task, after cancelling it if `cancel` is set.
async fn show(target: TaskTarget, cancel: bool) -> Result<Code, CommandError> {
    let (connect, server, id) = target.read()?;
    let mut connection = ServerConnection::open(&connect, server).await?;
    let client = connection.client.clone();
    let task = async {
        if cancel {
            client.cancel_task(&id).await?;
        }
        client.task(&id).await
    };
    let task = connection.interrupt.unless_stopped(task).await;
    drop(client);
    connection.close().await;
    print_task(&task?, connect.json)
}

fn print_task(task: &Task, json: bool) -> Result<Code, CommandError> {
    let asks: Vec<&str> = task.asks().keys().map(String::as_str).collect();
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
        return Ok(Code::Success);
    }
    let style = colour(&task.status);
    let status = format!("{style}{}{style:#}", task.status.as_str());
    let mut lines = vec![("id", one_line(&task.id)), ("status", status)];
    if let Some(message) = &task.message {
        lines.push(("message", one_line(message)));
    }
    lines.push(("created", one_line(&task.created_at)));
    lines.push(("updated", one_line(&task.updated_at)));
    let lifetime = |ttl: Duration| format!("{} s after creation", ttl.as_secs());
    lines.extend(task.ttl.map(|ttl| ("expires", lifetime(ttl))));
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
        output::print_result(kind(result), result, false)?;
    }
    Ok(Code::Success)
}

/// The kind of call that a result belongs to; a task does not name its kind.
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
