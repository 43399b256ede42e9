//! Rows and parameters: the types of a task as columns.

use crate::store::StoreError;
use crate::task::{
    Claimed, Commit, Committed, Created, Lease, NewTask, Next, Task, TaskId, TaskRow, TaskStatus,
};
use crate::time::{length, micros, moment};
use refrain_core::{FlowId, Principal};
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use std::collections::HashSet;
use std::time::Duration;

/// A number of rows, as a limit of a statement.
pub(crate) fn most(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// Makes text as a table has it into what it was.
pub(crate) type Text = fn(String) -> String;

/// A task with one of its open asks.
pub(crate) struct TaskRecord {
    status: String,
    row: TaskRow,
    ask: Option<(String, Vec<u8>)>,
}

impl<'r, R: Row> FromRow<'r, R> for TaskRecord
where
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        let created: i64 = row.try_get(4)?;
        let expires: i64 = row.try_get(6)?;
        let revision: i64 = row.try_get(8)?;
        let id: String = row.try_get(0)?;
        let task = Task {
            id: task_id(&id),
            tool: row.try_get(1)?,
            status: TaskStatus::Working,
            status_message: row.try_get(3)?,
            created: moment(created),
            updated: moment(row.try_get(5)?),
            ttl: length(expires - created),
            poll_interval: length(row.try_get(7)?),
            revision: revision.unsigned_abs(),
            asks: Vec::new(),
            outcome: row.try_get(9)?,
        };
        let due: Option<i64> = row.try_get(12)?;
        let key: Option<String> = row.try_get(15)?;
        let ask: Option<Vec<u8>> = row.try_get(16)?;
        Ok(Self {
            status: row.try_get(2)?,
            row: TaskRow {
                task,
                owner: principal(row.try_get(10)?),
                worker: row.try_get(11)?,
                due: due.map(moment),
                attempts: attempts(row.try_get(13)?),
                last_error: row.try_get(14)?,
            },
            ask: key.zip(ask),
        })
    }
}

/// The tasks of these records, which come with those of one task together.
pub(crate) fn tasks(records: Vec<TaskRecord>, text: Text) -> Result<Vec<TaskRow>, StoreError> {
    let mut rows: Vec<TaskRow> = Vec::new();
    for TaskRecord {
        status,
        mut row,
        ask,
    } in records
    {
        let ask = ask.map(|(key, ask)| (text(key), ask));
        if let Some(last) = rows.last_mut().filter(|last| last.task.id == row.task.id) {
            last.task.asks.extend(ask);
            continue;
        }
        row.task.status = TaskStatus::parse(&status).ok_or_else(|| {
            let id = &row.task.id;
            StoreError::Corrupt(format!("unknown status {status:?} of {id:?}").into())
        })?;
        row.task.tool = text(row.task.tool);
        row.task.status_message = row.task.status_message.map(text);
        row.task.asks.extend(ask);
        row.owner = principal(row.owner.id().map(|id| text(id.to_owned())));
        row.worker = row.worker.map(text);
        row.last_error = row.last_error.map(text);
        rows.push(row);
    }
    Ok(rows)
}

/// A task that was claimed: its columns, and how long it has to live.
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
    i64,
);

/// The task of this record, and whether it has answers that no journal has.
pub(crate) fn claimed(record: ClaimRecord, text: Text) -> Result<(Claimed, bool), StoreError> {
    let (id, fence, owner, flow, tool, call, journal, attempt, last_error, ..) = record;
    let (.., ttl, revision, unread, left) = record;
    let flow: [u8; 16] = flow.try_into().map_err(|flow: Vec<u8>| {
        let bytes = flow.len();
        StoreError::Corrupt(format!("flow id of {bytes} bytes instead of 16").into())
    })?;
    let claimed = Claimed {
        lease: Lease {
            task: task_id(&id),
            fence: fence.unsigned_abs(),
        },
        owner: principal(owner.map(text)),
        flow: FlowId::from_bytes(flow),
        tool: text(tool),
        call,
        journal,
        answers: Vec::new(),
        attempt: attempts(attempt),
        last_error: last_error.map(text),
        left: length(left),
        ttl: length(ttl),
        revision: revision.unsigned_abs(),
    };
    Ok((claimed, unread > 0))
}

/// The task that a creation found instead, from the rows of [`GET_EXISTING`](super::GET_EXISTING).
pub(crate) fn existing(records: Vec<TaskRecord>, text: Text) -> Result<Created, StoreError> {
    let existing = tasks(records, text)?.into_iter().next();
    let existing = existing.ok_or(StoreError::IdInUse)?;
    Ok(Created::Before(existing.task))
}

/// The lease of a task that was created with a worker.
pub(crate) fn first_lease(new: &NewTask) -> Option<Lease> {
    new.claimed.as_ref().map(|_| Lease {
        task: new.id.clone(),
        fence: 1,
    })
}

/// The result of a commit, from the `revision` and `unread` of the row that it wrote.
pub(crate) fn committed(mut written: Vec<(i64, i64)>) -> Result<Committed, StoreError> {
    let (revision, unread) = written.pop().ok_or(StoreError::Lost)?;
    Ok(Committed {
        revision: revision.unsigned_abs(),
        answers: unread > 0,
    })
}

/// The unread answers of a task, from the rows of [`ANSWERS`](super::ANSWERS).
pub(crate) fn answers(
    records: Vec<(Option<String>, Option<Vec<u8>>)>,
    text: Text,
) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    if records.is_empty() {
        return Err(StoreError::Lost);
    }
    let answer = |(key, answer): (Option<String>, Option<Vec<u8>>)| key.map(text).zip(answer);
    Ok(records.into_iter().filter_map(answer).collect())
}

/// The revisions of tasks, from their ids and `revision`.
pub(crate) fn revisions(records: Vec<(String, i64)>) -> impl Iterator<Item = (TaskId, u64)> {
    let revision = |(id, revision): (String, i64)| (task_id(&id), revision.unsigned_abs());
    records.into_iter().map(revision)
}

/// An id that was one when it was written.
pub(crate) fn task_id(id: &str) -> TaskId {
    TaskId::stored(id)
}

fn principal(owner: Option<String>) -> Principal {
    owner.map_or_else(Principal::anonymous, Principal::new)
}

fn attempts(attempts: i64) -> u32 {
    u32::try_from(attempts).unwrap_or(u32::MAX)
}

/// A number that only grows, as a column has it.
pub(crate) fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A task as it is when it was made at this time.
pub(crate) fn made(new: NewTask, created: i64) -> Task {
    Task {
        id: new.id,
        tool: new.tool,
        status: TaskStatus::Working,
        status_message: new.status_message,
        created: moment(created),
        updated: moment(created),
        ttl: length(micros(new.ttl)),
        poll_interval: length(micros(new.poll_interval)),
        revision: 1,
        asks: Vec::new(),
        outcome: None,
    }
}

/// The parts of [`Next`], as parameters of a statement.
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
            Next::SetDown(wait) => ("set_down", wait.unwrap_or(Duration::MAX), None, None),
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

/// The asks of a commit, each key in one place: of a key that was taken and withdrawn, or that comes twice, the first
/// counts.
pub(crate) struct AskColumns {
    pub(crate) publish: Vec<(String, Vec<u8>)>,
    pub(crate) taken: Vec<String>,
    pub(crate) withdrawn: Vec<String>,
}

impl AskColumns {
    /// Takes them out of a commit. `None`: it has none.
    pub(crate) fn of(commit: &mut Commit) -> Option<Self> {
        let asks = Self {
            publish: first_of_each(std::mem::take(&mut commit.publish), |(key, _)| key),
            taken: std::mem::take(&mut commit.taken),
            withdrawn: std::mem::take(&mut commit.withdrawn),
        };
        let none = asks.publish.is_empty() && asks.taken.is_empty() && asks.withdrawn.is_empty();
        (!none).then_some(asks)
    }
}

/// Those with a key that none before has.
pub(crate) fn first_of_each<T>(mut all: Vec<T>, key: impl Fn(&T) -> &String) -> Vec<T> {
    let mut seen = HashSet::new();
    all.retain(|one| seen.insert(key(one).clone()));
    all
}
