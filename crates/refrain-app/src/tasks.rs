//! `store tasks`: inspects and changes the tasks in a store, for operators.
//!
//! Prints only the keys and sizes of asks, and the sizes of results; never arguments or answers.

use crate::config::{InvalidValue, Settings, UncheckedConfig};
use crate::error::with_hint;
use crate::sanitize::one_line;
use crate::store::StoreUrl;
use crate::{App, AppError, runtime};
use anstyle::{AnsiColor, Style};
use clap::{Args, Subcommand};
use refrain::runtime::store::{ListTasks, Store, StoredStatus, TaskId, TaskRow};
use refrain_wire::timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

const HEAD: Style = Style::new().bold();
const PLAIN: Style = Style::new();

/// Arguments of `store`.
#[derive(Args)]
pub struct StoreOptions {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand)]
enum StoreCommand {
    /// List, show, cancel and requeue the tasks in a store.
    Tasks(TasksOptions),
}

impl StoreOptions {
    pub(crate) fn run<F: Args, C: DeserializeOwned>(
        &self,
        app: &App<F, C>,
        settings: &Settings,
    ) -> Result<ExitCode, AppError> {
        let StoreCommand::Tasks(options) = &self.command;
        run(app, settings, options)
    }
}

/// Arguments of `store tasks`.
#[derive(Args)]
pub struct TasksOptions {
    #[command(subcommand)]
    command: TasksCommand,
    /// The store of the instances. Other users of the machine can see flags: put a URL with a password into the
    /// configuration file or $REFRAIN_STORE [default: $REFRAIN_STORE, then sqlite:refrain.db].
    #[arg(long, value_name = "URL", global = true)]
    store: Option<StoreUrl>,
    /// The configuration file of the instances; its `store` is used.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum TasksCommand {
    /// List tasks, the newest first.
    List {
        /// Only tasks with this status: working, input_required, completed, failed or cancelled.
        #[arg(long, value_parser = parse_status)]
        status: Option<StoredStatus>,
        /// Only tasks of this tool.
        #[arg(long)]
        tool: Option<String>,
        /// The maximum number of tasks.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show a task, without its arguments, answers and result.
    Show {
        /// The id of the task.
        id: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Cancel a task that has not ended.
    Cancel {
        /// The id of the task.
        id: String,
    },
    /// Let a worker run a task now, with its attempts reset; a failed task runs again.
    Requeue {
        /// The id of the task.
        id: String,
    },
}

pub(crate) fn run<F: Args, C: DeserializeOwned>(
    app: &App<F, C>,
    settings: &Settings,
    options: &TasksOptions,
) -> Result<ExitCode, AppError> {
    let program = app.name;
    let configured = match (&options.store, &options.config) {
        (Some(store), _) => Some(store.clone()),
        (None, Some(file)) => {
            let (config, _) = UncheckedConfig::<C>::read(settings, file)?.check()?;
            config.config.store.map(|url| url.0)
        }
        (None, None) => None,
    };
    let url = StoreUrl::or_environment(configured)?;
    let url = url.unwrap_or_else(|| app.default_store.clone());
    url.check_shared()?;
    runtime()?.block_on(async {
        let store = url.open_existing().await?;
        match &options.command {
            TasksCommand::List {
                status,
                tool,
                limit,
                json,
            } => {
                let (limit, tool) = (*limit as usize, tool.clone());
                let wanted = ListTasks {
                    status: *status,
                    tool,
                    // One more, to detect that there are more.
                    most: limit.saturating_add(1),
                };
                print_list(store.list(wanted).await?, limit, *json);
            }
            TasksCommand::Show { id, json } => {
                print_task(&find(program, &*store, id).await?, *json);
            }
            TasksCommand::Cancel { id } => cancel(program, &*store, id).await?,
            TasksCommand::Requeue { id } => requeue(program, &*store, id).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn parse_status(text: &str) -> Result<StoredStatus, InvalidValue> {
    StoredStatus::parse(text).ok_or_else(|| {
        let all = StoredStatus::ALL.map(|status| status.as_str());
        InvalidValue(format!("expected one of {}", all.join(", ")))
    })
}

fn unknown_task(program: &str, id: &str) -> AppError {
    with_hint(
        format!("unknown task {:?}", one_line(id)),
        format!(
            "`{program} store tasks list`, with the same store, prints the ids of the latest tasks; --limit sets how many"
        ),
    )
}

async fn find(program: &str, store: &dyn Store, id: &str) -> Result<TaskRow, AppError> {
    let Some(parsed) = TaskId::parse(id) else {
        return Err(unknown_task(program, id));
    };
    store
        .find(&parsed)
        .await?
        .ok_or_else(|| unknown_task(program, id))
}

async fn cancel(program: &str, store: &dyn Store, id: &str) -> Result<(), AppError> {
    let row = find(program, store, id).await?;
    store.cancel(&row.task.id, &row.owner).await?;
    // The task may have ended meanwhile.
    expect_status(&find(program, store, id).await?, |status| {
        status == StoredStatus::Cancelled
    })
}

async fn requeue(program: &str, store: &dyn Store, id: &str) -> Result<(), AppError> {
    let row = find(program, store, id).await?;
    let row = store.requeue(&row.task.id).await?;
    let row = row.ok_or_else(|| unknown_task(program, id))?;
    expect_status(&row, |status| !status.is_terminal())
}

/// Prints a task's status; an unexpected one is an error.
fn expect_status(
    row: &TaskRow,
    is_expected: impl FnOnce(StoredStatus) -> bool,
) -> Result<(), AppError> {
    let (id, status) = (&row.task.id, row.task.status);
    if !is_expected(status) {
        return Err(format!("task {id} is already {status}").into());
    }
    let style = colour(status);
    anstream::println!("{id}  {style}{status}{style:#}");
    Ok(())
}

fn print_list(mut rows: Vec<TaskRow>, limit: usize, json: bool) {
    let more = rows.len() > limit;
    rows.truncate(limit);
    if json {
        let rows: Vec<Value> = rows.iter().map(to_json).collect();
        anstream::println!("{}", Value::from(rows));
    } else if rows.is_empty() {
        anstream::eprintln!("no tasks found");
    } else {
        print_table(&rows);
    }
    if more {
        anstream::eprintln!("note: more tasks exist; raise --limit to list them");
    }
}

/// The maximum width of a column. Formatting panics above 65,535, and a caller may have a long name.
const COLUMN_MAX: usize = 60;

fn print_table(rows: &[TaskRow]) {
    const COLUMNS: [&str; 7] = [
        "ID", "STATUS", "TOOL", "OWNER", "CREATED", "ATTEMPTS", "WORKER",
    ];
    const STATUS: usize = 1;
    let cells = |row: &TaskRow| {
        [
            row.task.id.to_string(),
            row.task.status.to_string(),
            one_line(&row.task.tool),
            owner(row),
            timestamp(row.task.created),
            row.attempts.to_string(),
            row.worker.as_deref().map_or("-".into(), one_line),
        ]
    };
    let lines: Vec<_> = rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        let widest = cells.max().unwrap_or_default().min(COLUMN_MAX);
        widest.max(COLUMNS[column].len())
    };
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    let print = |cells: &[String; COLUMNS.len()], style: &dyn Fn(usize) -> Style| {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let (style, width) = (style(column), widths[column]);
            // The last column is not padded.
            let width = if column + 1 == cells.len() { 0 } else { width };
            let gap = if column == 0 { "" } else { "  " };
            line.push_str(&format!("{gap}{style}{cell:<width$}{style:#}"));
        }
        anstream::println!("{line}");
    };
    print(&COLUMNS.map(str::to_owned), &|_| HEAD);
    for (row, line) in rows.iter().zip(&lines) {
        print(line, &|column| match column {
            STATUS => colour(row.task.status),
            _ => PLAIN,
        });
    }
}

fn print_task(row: &TaskRow, json: bool) {
    if json {
        anstream::println!("{}", to_json(row));
        return;
    }
    let task = &row.task;
    let or_none = |text: Option<&str>| text.map_or("-".into(), one_line);
    let asks = task.asks.iter();
    let asks = asks.map(|(key, ask)| format!("{key} ({} bytes)", ask.len()));
    let asks = asks.collect::<Vec<_>>().join(", ");
    let outcome = task.outcome.as_ref();
    let outcome = outcome.map(|outcome| format!("{} bytes", outcome.len()));
    let mut expires = timestamp(task.created + task.ttl);
    if task.status.is_terminal() {
        expires.push_str(", or `tasks.keep_seconds` after the end of the task if that is later");
    }
    let lines = [
        ("id", task.id.to_string()),
        ("tool", one_line(&task.tool)),
        ("owner", owner(row)),
        ("status", task.status.to_string()),
        ("message", or_none(task.status_message.as_deref())),
        ("created", timestamp(task.created)),
        ("updated", timestamp(task.updated)),
        ("expires", expires),
        ("worker", or_none(row.worker.as_deref())),
        ("due", row.due.map_or("-".into(), timestamp)),
        ("attempts", row.attempts.to_string()),
        ("last error", or_none(row.last_error.as_deref())),
        (
            "asks",
            or_none(Some(asks.as_str()).filter(|asks| !asks.is_empty())),
        ),
        ("outcome", or_none(outcome.as_deref())),
    ];
    for (name, value) in lines {
        let style = match name {
            "status" => colour(task.status),
            _ => PLAIN,
        };
        anstream::println!("{name:<10}  {style}{value}{style:#}");
    }
}

fn to_json(row: &TaskRow) -> Value {
    let task = &row.task;
    let asks = task.asks.iter();
    let asks: Vec<Value> = asks
        .map(|(key, ask)| json!({"key": key, "bytes": ask.len()}))
        .collect();
    let outcome = task.outcome.as_ref().map(|outcome| outcome.len());
    json!({
        "id": task.id.as_str(),
        "tool": task.tool,
        "owner": row.owner.id(),
        "status": task.status.as_str(),
        "message": task.status_message,
        "created": timestamp(task.created),
        "updated": timestamp(task.updated),
        "expires": timestamp(task.created + task.ttl),
        "worker": row.worker,
        "due": row.due.map(timestamp),
        "attempts": row.attempts,
        "lastError": row.last_error,
        "asks": asks,
        "outcomeBytes": outcome,
    })
}

fn owner(row: &TaskRow) -> String {
    row.owner.id().map_or("(anonymous)".into(), one_line)
}

fn colour(status: StoredStatus) -> Style {
    match status {
        StoredStatus::Working => AnsiColor::Cyan.on_default(),
        StoredStatus::InputRequired => AnsiColor::Yellow.on_default(),
        StoredStatus::Completed => AnsiColor::Green.on_default(),
        StoredStatus::Failed => AnsiColor::Red.on_default(),
        StoredStatus::Cancelled => Style::new().dimmed(),
    }
}
