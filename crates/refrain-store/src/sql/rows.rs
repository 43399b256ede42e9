//! Conversion between tasks and columns.

use crate::quota::Usage;
use crate::store::StoreError;
use crate::task::{
    ClaimedTask, CommitResult, Creation, Lease, NewTask, Next, OpenAsks, StoredStatus, StoredTask,
    TaskId, TaskRow,
};
use crate::time::{duration, micros};
use bytes::Bytes;
use refrain_core::{FlowId, Principal};
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Converts a number to a column or a statement parameter.
pub(crate) fn column(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// The total size of asks or answers.
pub(crate) fn bytes_of(values: &[(String, Vec<u8>)]) -> usize {
    values.iter().map(|(_, value)| value.len()).sum()
}

/// Decodes the text of a column: Postgres cannot store the character NUL, so it is escaped there.
pub(crate) type DecodeText = fn(String) -> String;

/// A row of `select_tasks!`, with the columns in its order: a task, with one of its open asks.
pub(crate) struct TaskRecord(TaskRow, Option<(String, Bytes)>);

impl<'r, R: Row> FromRow<'r, R> for TaskRecord
where
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        let id = TaskId::stored(row.try_get(0)?);
        let status: String = row.try_get(2)?;
        let status = StoredStatus::parse(&status).ok_or_else(|| {
            sqlx::Error::Decode(format!("unknown status {status:?} of task {id:?}").into())
        })?;
        let created: i64 = row.try_get(4)?;
        let expires: i64 = row.try_get(6)?;
        let revision: i64 = row.try_get(8)?;
        let due: Option<i64> = row.try_get(12)?;
        let key: Option<String> = row.try_get(15)?;
        let ask: Option<Vec<u8>> = row.try_get(16)?;
        let task = StoredTask {
            id,
            tool: row.try_get(1)?,
            status,
            status_message: row.try_get(3)?,
            created: system_time(created),
            updated: system_time(row.try_get(5)?),
            ttl: duration(expires - created),
            poll_interval: duration(row.try_get(7)?),
            revision: revision.unsigned_abs(),
            asks: Vec::new(),
            outcome: row.try_get::<Option<Vec<u8>>, _>(9)?.map(Bytes::from),
        };
        let row = TaskRow {
            task,
            owner: principal(row.try_get(10)?),
            worker: row.try_get(11)?,
            due: due.map(system_time),
            attempts: attempts(row.try_get(13)?),
            last_error: row.try_get(14)?,
        };
        Ok(Self(row, key.zip(ask.map(Bytes::from))))
    }
}

/// Merges the records of each task, which follow one another.
pub(crate) fn task_rows(records: Vec<TaskRecord>, decode: DecodeText) -> Vec<TaskRow> {
    let mut rows: Vec<TaskRow> = Vec::new();
    for TaskRecord(mut row, ask) in records {
        let ask = ask.map(|(key, ask)| (decode(key), ask));
        if let Some(last) = rows.last_mut().filter(|last| last.task.id == row.task.id) {
            last.task.asks.extend(ask);
            continue;
        }
        row.task.tool = decode(row.task.tool);
        row.task.status_message = row.task.status_message.map(decode);
        row.task.asks.extend(ask);
        row.owner = principal(row.owner.id().map(|id| decode(id.to_owned())));
        row.worker = row.worker.map(decode);
        row.last_error = row.last_error.map(decode);
        rows.push(row);
    }
    rows
}

/// A claimed task: its [`claim_columns`](super::claim_columns), and its time left to live.
pub(crate) type ClaimRecord = (
    String,
    i64,
    Option<String>,
    Vec<u8>,
    String,
    Vec<u8>,
    Vec<u8>,
    i64,
    Option<String>,
    i64,
    i64,
    i64,
    Option<String>,
    i64,
);

/// Converts records, and returns the ids of the tasks with unread answers.
pub(crate) fn claimed_tasks(
    records: Vec<ClaimRecord>,
    decode: DecodeText,
) -> Result<(Vec<ClaimedTask>, Vec<String>), StoreError> {
    let (mut tasks, mut with_unread) = (Vec::with_capacity(records.len()), Vec::new());
    for record in records {
        let (id, fence, owner, flow, tool, call, journal, attempt, last_error, ..) = record;
        let (.., ttl, revision, unread, account, left) = record;
        let flow: [u8; 16] = flow.try_into().map_err(|flow: Vec<u8>| {
            let (bytes, task) = (flow.len(), TaskId::stored(id.clone()));
            let message = format!("flow id of task {task:?} has {bytes} bytes, expected 16");
            StoreError::Corrupt(message.into())
        })?;
        if unread > 0 {
            with_unread.push(id.clone());
        }
        tasks.push(ClaimedTask {
            lease: lease((id, fence)),
            account: principal(account.or_else(|| owner.clone()).map(decode)),
            owner: principal(owner.map(decode)),
            flow: FlowId::from_bytes(flow),
            tool: decode(tool),
            call,
            journal,
            answers: Vec::new(),
            attempt: attempts(attempt),
            last_error: last_error.map(decode),
            left: duration(left),
            ttl: duration(ttl),
            revision: revision.unsigned_abs(),
        });
    }
    Ok((tasks, with_unread))
}

/// Adds answers to their tasks. They are read after the claim, so that none that `unread` counts is missing.
pub(crate) fn add_answers(
    tasks: &mut [ClaimedTask],
    records: Vec<(String, String, Vec<u8>)>,
    decode: DecodeText,
) {
    let mut answers: HashMap<String, Vec<(String, Vec<u8>)>> = HashMap::new();
    for (task, key, answer) in records {
        answers.entry(task).or_default().push((decode(key), answer));
    }
    for task in tasks {
        let of_task = answers.remove(task.lease.task.as_str());
        task.answers = of_task.unwrap_or_default();
    }
}

/// The usage of an account, from the row of [`USAGE`](super::USAGE).
pub(crate) fn usage(records: &[(i64, i64, i64)]) -> Usage {
    let (tasks, bytes, total_bytes) = records.first().copied().unwrap_or_default();
    let number = |number| u64::try_from(number).unwrap_or(0);
    Usage {
        tasks: number(tasks),
        bytes: number(bytes),
        total_bytes: number(total_bytes),
    }
}

/// A new task with this creation time.
pub(crate) fn new_task(new: NewTask, created: i64) -> Creation {
    let lease = new.claimed.as_ref().map(|_| lease((new.id.to_string(), 1)));
    let task = StoredTask {
        id: new.id,
        tool: new.tool,
        status: StoredStatus::Working,
        status_message: new.status_message,
        created: system_time(created),
        updated: system_time(created),
        ttl: duration(micros(new.ttl)),
        poll_interval: duration(micros(new.poll_interval)),
        revision: 1,
        asks: Vec::new(),
        outcome: None,
    };
    Creation::New(task, lease)
}

/// The result of a commit, from the columns `revision` and `unread`.
pub(crate) fn commit_result(mut written: Vec<(i64, i64)>) -> Result<CommitResult, StoreError> {
    let (revision, unread) = written.pop().ok_or(StoreError::Lost)?;
    Ok(CommitResult {
        revision: revision.unsigned_abs(),
        answers: unread > 0,
    })
}

/// The unread answers of a task, from the rows of [`ANSWERS`](super::ANSWERS).
pub(crate) fn answers(
    records: Vec<(Option<String>, Option<Vec<u8>>)>,
    decode: DecodeText,
) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    if records.is_empty() {
        return Err(StoreError::Lost);
    }
    let answers = records.into_iter();
    Ok(answers
        .filter_map(|(key, answer)| key.map(decode).zip(answer))
        .collect())
}

/// The open asks of a task, from the rows of [`open_asks`](super::open_asks).
pub(crate) fn open_asks(
    records: Vec<(String, Option<String>, Option<Vec<u8>>)>,
    decode: DecodeText,
) -> Option<OpenAsks> {
    let (tool, ..) = records.first()?;
    let tool = decode(tool.clone());
    let asks = records.into_iter();
    let asks = asks.filter_map(|(_, key, ask)| Some((decode(key?), ask?.into())));
    Some(OpenAsks {
        tool,
        asks: asks.collect(),
    })
}

/// The lease of a task, from its id and `fence`.
pub(crate) fn lease((id, fence): (String, i64)) -> Lease {
    Lease {
        task: TaskId::stored(id),
        fence: fence.unsigned_abs(),
    }
}

pub(super) fn system_time(micros: i64) -> SystemTime {
    UNIX_EPOCH + duration(micros)
}

fn principal(owner: Option<String>) -> Principal {
    owner.map_or_else(Principal::anonymous, Principal::new)
}

pub(super) fn attempts(attempts: i64) -> u32 {
    u32::try_from(attempts).unwrap_or(u32::MAX)
}

/// The parts of [`Next`], as statement parameters.
pub(crate) struct NextColumns {
    pub(crate) kind: &'static str,
    pub(crate) wait: i64,
    pub(crate) error: Option<String>,
    pub(crate) outcome: Option<Vec<u8>>,
}

impl From<Next> for NextColumns {
    fn from(next: Next) -> Self {
        let (kind, wait, error, outcome) = match next {
            Next::Keep => ("keep", Duration::ZERO, None, None),
            Next::Suspend(wait) => ("suspend", wait.unwrap_or(Duration::MAX), None, None),
            Next::HandOn => ("hand_on", Duration::ZERO, None, None),
            Next::Retry(wait, error) => ("retry", wait, Some(error), None),
            Next::Complete(outcome) => ("complete", Duration::ZERO, None, Some(outcome)),
            Next::Fail(outcome) => ("fail", Duration::ZERO, None, Some(outcome)),
        };
        Self {
            kind,
            wait: micros(wait),
            error,
            outcome,
        }
    }
}
