//! `tasks`: the tasks of a store, for operators.
//!
//! Arguments, answers and results of callers are never shown, only their sizes.

use crate::config::{Invalid, Loaded};
use crate::store::StoreUrl;
use crate::{Failure, runtime};
use anstyle::{AnsiColor, Style};
use clap::{Args, Subcommand};
use refrain::runtime::store::{ListTasks, Store, StoredStatus, TaskId, TaskRow};
use refrain_wire::timestamp;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

const HEAD: Style = Style::new().bold();
const PLAIN: Style = Style::new();

/// Arguments of `tasks`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
    /// The store that the instances use. Other users can see flags in the list of processes: write a URL with a password
    /// as `store` into the configuration, or into $REFRAIN_STORE [default: sqlite:refrain.db].
    #[arg(long, value_name = "URL", global = true)]
    store: Option<StoreUrl>,
    /// The TOML file of the instances; its `store` is used.
    #[arg(long, global = true)]
    config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// List tasks, the latest first.
    List {
        /// Only those with this status: working, input_required, completed, failed or cancelled.
        #[arg(long, value_parser = status)]
        status: Option<StoredStatus>,
        /// Only those of this tool.
        #[arg(long)]
        tool: Option<String>,
        /// How many at most.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show a task, without what callers sent and what they get.
    Show {
        /// The whole id.
        id: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Cancel a task, unless it has ended.
    Cancel {
        /// The whole id.
        id: String,
    },
    /// Run a task at once, with all its attempts left; a failed one works again.
    Requeue {
        /// The whole id.
        id: String,
    },
}

pub(crate) fn run(program: &str, options: &Options) -> Result<ExitCode, Failure> {
    let given = match (&options.store, &options.config) {
        (Some(store), _) => Some(store.clone()),
        (None, Some(file)) => Loaded::read(file)?.ready()?.config.store.map(|url| url.0),
        (None, None) => None,
    };
    let url = StoreUrl::named(given)?.unwrap_or_default();
    runtime()?.block_on(async {
        let store = url.open_existing().await?;
        match &options.command {
            Command::List {
                status,
                tool,
                limit,
                json,
            } => {
                let (limit, tool) = (*limit as usize, tool.clone());
                let wanted = ListTasks {
                    status: *status,
                    tool,
                    // One more, to know whether there are more.
                    most: limit.saturating_add(1),
                };
                list(program, store.list(wanted).await?, limit, *json);
            }
            Command::Show { id, json } => show(&find(program, &*store, id).await?, *json),
            Command::Cancel { id } => cancel(program, &*store, id).await?,
            Command::Requeue { id } => requeue(program, &*store, id).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn status(text: &str) -> Result<StoredStatus, Invalid> {
    StoredStatus::parse(text).ok_or_else(|| {
        let all = StoredStatus::ALL.map(|status| status.as_str());
        Invalid(format!("it is one of {}", all.join(", ")))
    })
}

fn unknown(program: &str, id: &str) -> Failure {
    let id = printable(id);
    format!("there is no task {id:?}: `{program} tasks list` shows those that there are, with their whole ids").into()
}

async fn find(program: &str, store: &dyn Store, id: &str) -> Result<TaskRow, Failure> {
    let Some(parsed) = TaskId::parse(id) else {
        return Err(unknown(program, id));
    };
    store
        .find(&parsed)
        .await?
        .ok_or_else(|| unknown(program, id))
}

async fn cancel(program: &str, store: &dyn Store, id: &str) -> Result<(), Failure> {
    let row = find(program, store, id).await?;
    store.cancel(&row.task.id, &row.owner).await?;
    // It may have ended before.
    expect_status(&find(program, store, id).await?, |status| {
        status == StoredStatus::Cancelled
    })
}

async fn requeue(program: &str, store: &dyn Store, id: &str) -> Result<(), Failure> {
    let row = find(program, store, id).await?;
    let row = store.requeue(&row.task.id).await?;
    let row = row.ok_or_else(|| unknown(program, id))?;
    expect_status(&row, |status| !status.is_terminal())
}

/// Prints a task's status, which is an error unless it is the wanted one.
fn expect_status(row: &TaskRow, wanted: impl FnOnce(StoredStatus) -> bool) -> Result<(), Failure> {
    let (id, status) = (&row.task.id, row.task.status);
    if !wanted(status) {
        return Err(format!("the task {id} is {status}, and stays so").into());
    }
    let style = colour(status);
    anstream::println!("{id}  {style}{status}{style:#}");
    Ok(())
}

fn list(program: &str, mut rows: Vec<TaskRow>, limit: usize, json: bool) {
    let more = rows.len() > limit;
    rows.truncate(limit);
    if json {
        let rows: Vec<Value> = rows.iter().map(to_json).collect();
        anstream::println!("{}", Value::from(rows));
    } else if rows.is_empty() {
        anstream::eprintln!("{program}: there are no such tasks");
    } else {
        table(&rows);
    }
    if more {
        anstream::eprintln!("{program}: these are the latest {limit}; --limit shows more");
    }
}

fn table(rows: &[TaskRow]) {
    const COLUMNS: [&str; 7] = [
        "ID", "STATUS", "TOOL", "OWNER", "CREATED", "ATTEMPTS", "WORKER",
    ];
    const STATUS: usize = 1;
    let cells = |row: &TaskRow| {
        [
            row.task.id.to_string(),
            row.task.status.to_string(),
            printable(&row.task.tool),
            owner(row),
            timestamp(row.task.created),
            row.attempts.to_string(),
            row.worker.as_deref().map_or("-".into(), printable),
        ]
    };
    let lines: Vec<_> = rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or_default().max(COLUMNS[column].len())
    };
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    let print = |cells: &[String; COLUMNS.len()], style: &dyn Fn(usize) -> Style| {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let (style, width) = (style(column), widths[column]);
            // Nothing follows the last one.
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

fn show(row: &TaskRow, json: bool) {
    if json {
        anstream::println!("{}", to_json(row));
        return;
    }
    let task = &row.task;
    let or_none = |text: Option<&str>| text.map_or("-".into(), printable);
    let asks = task.asks.iter();
    let asks = asks.map(|(key, ask)| format!("{key} ({} bytes)", ask.len()));
    let asks = asks.collect::<Vec<_>>().join(", ");
    let outcome = task.outcome.as_ref();
    let outcome = outcome.map(|outcome| format!("{} bytes", outcome.len()));
    let lines = [
        ("id", task.id.to_string()),
        ("tool", printable(&task.tool)),
        ("owner", owner(row)),
        ("status", task.status.to_string()),
        ("message", or_none(task.status_message.as_deref())),
        ("created", timestamp(task.created)),
        ("updated", timestamp(task.updated)),
        ("expires", timestamp(task.created + task.ttl)),
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
        "outcomeBytes": task.outcome.as_ref().map(Vec::len),
    })
}

fn owner(row: &TaskRow) -> String {
    row.owner.id().map_or("(anonymous)".into(), printable)
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

/// Text from others, without control characters.
fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).collect()
}
