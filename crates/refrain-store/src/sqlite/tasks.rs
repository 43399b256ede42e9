//! Tasks: the operations of owners and workers.
//!
//! After a write all returned rows are read, even if there is one: the statement ends, and is on disk, only then.

use super::file::begin;
use super::{SqliteStore, now, text};
use crate::sql::{
    ANSWERS, AskColumns, ClaimRecord, GET, GET_EXISTING, NextColumns, TaskRecord, answers,
    claim_columns, claimed, column, committed, existing, first_lease, made, most, next_commit,
    revisions, tasks,
};
use crate::store::StoreError;
use crate::task::{Claim, Claimed, Commit, Committed, Created, Lease, NewTask, Next, Task, TaskId};
use crate::time::micros;
use refrain_core::Principal;
use sqlx::sqlite::SqliteConnection;
use sqlx::{QueryBuilder, Sqlite};
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

/// Tasks that one statement names at most. It may have some 32,000 parameters.
const BATCH: usize = 1000;

const CREATE: &str = "
INSERT INTO refrain_tasks
    (id, flow, owner, tool, call, journal, status, status_message, created, updated, ttl, poll_interval,
     expires, due, worker, fence, attempts, revision, last_commit, open, unread)
VALUES
    (?1, ?2, ?3, ?4, ?5, ?6, 'working', ?7, ?8, ?8, ?9, ?10,
     ?8 + ?9, ?8 + ?11, ?12, ?12 IS NOT NULL, ?12 IS NOT NULL, 1, 0, 0, 0)
ON CONFLICT DO NOTHING";

const CANCEL: &str = "
UPDATE refrain_tasks
SET status = 'cancelled', status_message = NULL, updated = max(updated, ?3), ended = ?3, due = NULL, worker = NULL,
    fence = fence + 1, revision = revision + 1
WHERE id = ?1 AND owner IS ?2 AND due IS NOT NULL";

/// Answers to a task that is not over.
const ANSWER: &str = "
UPDATE refrain_asks SET answer = ?3, state = 'answered' WHERE task = ?1 AND key = ?2 AND state = 'open'";

const ANSWERED: &str = "
UPDATE refrain_tasks
SET open = open - ?2, unread = unread + ?2,
    status = CASE WHEN open > ?2 THEN 'input_required' ELSE 'working' END,
    updated = max(updated, ?3), revision = revision + 1,
    due = CASE WHEN worker IS NULL THEN min(due, ?3) ELSE due END
WHERE id = ?1
RETURNING worker IS NULL";

const TAKEN: &str = "
    , fence = fence + 1, attempts = attempts + 1, revision = revision + 1, last_commit = 0
WHERE due <= ";

const EXTEND: &str = "
UPDATE refrain_tasks SET due = ?3
WHERE id = ?1 AND fence = ?2 AND due IS NOT NULL AND worker IS NOT NULL";

/// A commit whose asks have changed `open` by ?9 and `unread` by ?10. In `SET`, columns are what they were before.
const COMMIT: &str = "
UPDATE refrain_tasks
SET journal = coalesce(?4, journal),
    attempts = CASE WHEN ?13 THEN 0 WHEN ?6 IN ('set_down', 'hand_on') THEN max(attempts - 1, 0) ELSE attempts END,
    status_message = CASE WHEN ?6 = 'complete' THEN ?5 ELSE coalesce(?5, status_message) END,
    last_error = CASE WHEN ?6 = 'retry' THEN ?8 WHEN NOT ?13 THEN last_error END,
    open = open + ?9,
    unread = unread + ?10,
    status = CASE WHEN ?6 = 'complete' THEN 'completed' WHEN ?6 = 'fail' THEN 'failed'
        WHEN open + ?9 > 0 THEN 'input_required' ELSE 'working' END,
    due = CASE WHEN ?6 = 'keep' THEN due
        WHEN ?6 = 'hand_on' OR (?6 = 'set_down' AND unread + ?10 > 0) THEN ?12
        WHEN ?6 IN ('set_down', 'retry') THEN min(expires, ?12 + ?7) END,
    worker = CASE WHEN ?6 = 'keep' THEN worker END,
    ended = CASE WHEN ?6 IN ('complete', 'fail') THEN ?12 END,
    outcome = ?11,
    updated = max(updated, ?12),
    revision = revision + 1,
    last_commit = ?3
WHERE id = ?1 AND fence = ?2 AND due IS NOT NULL AND last_commit < ?3
RETURNING revision, unread";

/// A commit of a worker that keeps the task, without asks. SQLite writes to the indexes of all columns that are named, so
/// those that stay as they are are not.
const KEEP: &str = "
UPDATE refrain_tasks
SET journal = coalesce(?4, journal),
    attempts = CASE WHEN ?7 THEN 0 ELSE attempts END,
    status_message = coalesce(?5, status_message),
    last_error = CASE WHEN NOT ?7 THEN last_error END,
    updated = max(updated, ?6),
    revision = revision + 1,
    last_commit = ?3
WHERE id = ?1 AND fence = ?2 AND due IS NOT NULL AND last_commit < ?3
RETURNING revision, unread";

const HELD: &str = "SELECT 1 FROM refrain_tasks WHERE id = ?1 AND fence = ?2 AND due IS NOT NULL";

impl SqliteStore {
    pub(super) async fn create_task(&self, new: NewTask) -> Result<Created> {
        let (worker, lease) = match &new.claimed {
            Some((worker, lease)) => (Some(worker.as_str()), micros(*lease)),
            None => (None, 0),
        };
        let mut writer = self.file.writer().await?;
        let created = now();
        let done = sqlx::query(CREATE)
            .bind(new.id.as_str())
            .bind(&new.flow.as_bytes()[..])
            .bind(new.owner.id())
            .bind(&new.tool)
            .bind(&new.call)
            .bind(&new.journal)
            .bind(&new.status_message)
            .bind(created)
            .bind(micros(new.ttl))
            .bind(micros(new.poll_interval))
            .bind(lease)
            .bind(worker)
            .execute(&mut *writer)
            .await?;
        drop(writer);
        if done.rows_affected() == 0 {
            return self.created_before(&new).await;
        }
        let lease = first_lease(&new);
        if lease.is_none() {
            self.hint(&new.id, true, true);
        }
        Ok(Created::New(made(new, created), lease))
    }

    async fn created_before(&self, new: &NewTask) -> Result<Created> {
        let records: Vec<TaskRecord> = sqlx::query_as(GET_EXISTING)
            .bind(new.owner.id())
            .bind(new.id.as_str())
            .bind(&new.flow.as_bytes()[..])
            .fetch_all(&self.file.readers)
            .await?;
        existing(records, text)
    }

    pub(super) async fn get_task(&self, id: &TaskId, owner: &Principal) -> Result<Option<Task>> {
        let records: Vec<TaskRecord> = sqlx::query_as(GET)
            .bind(id.as_str())
            .bind(owner.id())
            .fetch_all(&self.file.readers)
            .await?;
        Ok(tasks(records, text)?.pop().map(|row| row.task))
    }

    pub(super) async fn answer_task(
        &self,
        id: &TaskId,
        owner: &Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> Result<bool> {
        let mut writer = self.file.writer().await?;
        let mut tx = begin(&mut writer).await?;
        let over: Option<bool> = sqlx::query_scalar(
            "SELECT due IS NULL FROM refrain_tasks WHERE id = ?1 AND owner IS ?2",
        )
        .bind(id.as_str())
        .bind(owner.id())
        .fetch_optional(&mut *tx)
        .await?;
        if over != Some(false) {
            return Ok(over.is_some());
        }
        let mut new = 0;
        for (key, answer) in answers {
            let answered = sqlx::query(ANSWER)
                .bind(id.as_str())
                .bind(key)
                .bind(answer)
                .execute(&mut *tx)
                .await?;
            new += answered.rows_affected() as i64;
        }
        if new == 0 {
            return Ok(true);
        }
        let due: Vec<bool> = sqlx::query_scalar(ANSWERED)
            .bind(id.as_str())
            .bind(new)
            .bind(now())
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        self.hint(id, due == [true], false);
        Ok(true)
    }

    pub(super) async fn cancel_task(&self, id: &TaskId, owner: &Principal) -> Result<bool> {
        let mut writer = self.file.writer().await?;
        let cancelled = sqlx::query(CANCEL)
            .bind(id.as_str())
            .bind(owner.id())
            .bind(now())
            .execute(&mut *writer)
            .await?;
        drop(writer);
        if cancelled.rows_affected() > 0 {
            self.hint(id, false, false);
            return Ok(true);
        }
        let there = self.get_task(id, owner).await?;
        Ok(there.is_some())
    }

    pub(super) async fn claim_tasks(&self, claim: Claim<'_>) -> Result<Vec<Claimed>> {
        // Whoever loses a race looks again, a few times.
        for _ in 0..5 {
            // Most of the time nothing is due, and nobody need be kept from writing to find that out.
            let mut find = QueryBuilder::new("");
            push_due(&mut find, claim, now());
            let find = find.build_query_scalar();
            let found: Vec<String> = find.fetch_all(&self.file.readers).await?;
            if found.is_empty() {
                break;
            }
            let records = self.take(claim, &found).await?;
            if !records.is_empty() {
                return self.with_answers(records).await;
            }
        }
        Ok(Vec::new())
    }

    /// Takes those of these tasks that are still due.
    async fn take(&self, claim: Claim<'_>, found: &[String]) -> Result<Vec<ClaimRecord>> {
        let mut writer = self.file.writer().await?;
        let now = now();
        let mut take = QueryBuilder::new("UPDATE refrain_tasks SET worker = ");
        take.push_bind(claim.worker);
        take.push(", due = ").push_bind(now + micros(claim.lease));
        take.push(TAKEN).push_bind(now);
        take.push(" AND id IN (");
        let mut ids = take.separated(", ");
        for id in found {
            ids.push_bind(id);
        }
        take.push(concat!(
            ") RETURNING ",
            claim_columns!(),
            ", max(0, expires - "
        ));
        take.push_bind(now).push(")");
        let mut records: Vec<ClaimRecord> = take.build_query_as().fetch_all(&mut *writer).await?;
        records.sort_by_key(|record| found.iter().position(|id| *id == record.0));
        Ok(records)
    }

    /// The tasks of these records, with their answers. One that was lost again is left out.
    async fn with_answers(&self, records: Vec<ClaimRecord>) -> Result<Vec<Claimed>> {
        let mut taken = Vec::with_capacity(records.len());
        for record in records {
            let (mut task, unread) = claimed(record, text)?;
            if unread {
                match self.unread_answers(&task.lease).await {
                    Ok(answers) => task.answers = answers,
                    Err(StoreError::Lost) => continue,
                    Err(error) => return Err(error),
                }
            }
            taken.push(task);
        }
        Ok(taken)
    }

    pub(super) async fn extend_leases(
        &self,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Lease>> {
        let mut writer = self.file.writer().await?;
        let mut tx = begin(&mut writer).await?;
        let until = now() + micros(lease);
        let mut held = Vec::with_capacity(leases.len());
        for lease in leases {
            let extended = sqlx::query(EXTEND)
                .bind(lease.task.as_str())
                .bind(column(lease.fence))
                .bind(until)
                .execute(&mut *tx)
                .await?;
            if extended.rows_affected() > 0 {
                held.push(lease.clone());
            }
        }
        tx.commit().await?;
        Ok(held)
    }

    pub(super) async fn commit_task(&self, lease: &Lease, mut commit: Commit) -> Result<Committed> {
        let number = next_commit();
        let seen = commit.is_seen();
        let handed_on = matches!(commit.next, Next::HandOn);
        let set_down = matches!(commit.next, Next::SetDown(_));
        let mut writer = self.file.writer().await?;
        let committed = match AskColumns::of(&mut commit) {
            None if commit.next == Next::Keep => keep(&mut writer, lease, commit, number).await?,
            None => write(&mut writer, lease, commit, number, (0, 0)).await?,
            Some(asks) => {
                let mut tx = begin(&mut writer).await?;
                let held = sqlx::query(HELD)
                    .bind(lease.task.as_str())
                    .bind(column(lease.fence))
                    .fetch_optional(&mut *tx)
                    .await?;
                held.ok_or(StoreError::Lost)?;
                let changed = write_asks(&mut tx, &lease.task, asks).await?;
                let committed = write(&mut tx, lease, commit, number, changed).await?;
                tx.commit().await?;
                committed
            }
        };
        drop(writer);
        let due = handed_on || (set_down && committed.answers);
        if seen || due {
            self.hint(&lease.task, due, true);
        }
        Ok(committed)
    }

    pub(super) async fn unread_answers(&self, lease: &Lease) -> Result<Vec<(String, Vec<u8>)>> {
        let records = sqlx::query_as(ANSWERS)
            .bind(lease.task.as_str())
            .bind(column(lease.fence))
            .fetch_all(&self.file.readers)
            .await?;
        answers(records, text)
    }

    pub(super) async fn revisions_of(&self, ids: &[TaskId]) -> Result<Vec<(TaskId, u64)>> {
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(BATCH) {
            let mut look =
                QueryBuilder::new("SELECT id, revision FROM refrain_tasks WHERE id IN (");
            let mut list = look.separated(", ");
            for id in ids {
                list.push_bind(id.as_str());
            }
            look.push(")");
            let records = look.build_query_as().fetch_all(&self.file.readers).await?;
            found.extend(revisions(records));
        }
        Ok(found)
    }
}

/// Tasks that this worker may take, longest due first. They are found in the index of what is due, so those that wait
/// cost nothing.
fn push_due(query: &mut QueryBuilder<Sqlite>, claim: Claim<'_>, now: i64) {
    query.push("SELECT id FROM refrain_tasks WHERE due <= ");
    query.push_bind(now);
    query.push(" AND (expires <= ").push_bind(now);
    query.push(" OR tool IN (");
    let mut tools = query.separated(", ");
    for tool in claim.tools {
        tools.push_bind(tool);
    }
    query.push(")) ORDER BY due LIMIT ");
    query.push_bind(most(claim.most).min(BATCH as i64));
}

/// Writes a commit of a worker that keeps the task, without asks.
async fn keep(
    conn: &mut SqliteConnection,
    lease: &Lease,
    commit: Commit,
    number: i64,
) -> Result<Committed> {
    let written = sqlx::query_as(KEEP)
        .bind(lease.task.as_str())
        .bind(column(lease.fence))
        .bind(number)
        .bind(commit.journal)
        .bind(commit.status_message)
        .bind(now())
        .bind(commit.progress)
        .fetch_all(conn)
        .await?;
    committed(written)
}

/// Writes a commit to the task itself. Its asks have changed the numbers of open and of unread ones by so much.
async fn write(
    conn: &mut SqliteConnection,
    lease: &Lease,
    commit: Commit,
    number: i64,
    (open, unread): (i64, i64),
) -> Result<Committed> {
    let next = NextColumns::from(commit.next);
    let written = sqlx::query_as(COMMIT)
        .bind(lease.task.as_str())
        .bind(column(lease.fence))
        .bind(number)
        .bind(commit.journal)
        .bind(commit.status_message)
        .bind(next.kind)
        .bind(next.wait)
        .bind(next.error)
        .bind(open)
        .bind(unread)
        .bind(next.outcome)
        .bind(now())
        .bind(commit.progress)
        .fetch_all(conn)
        .await?;
    committed(written)
}

/// Writes the asks of a commit. By how many more are open, and unread?
async fn write_asks(
    conn: &mut SqliteConnection,
    task: &TaskId,
    asks: AskColumns,
) -> Result<(i64, i64)> {
    const PUBLISH: &str = "
        INSERT INTO refrain_asks (task, key, ask, state) VALUES (?1, ?2, ?3, 'open')
        ON CONFLICT DO NOTHING";
    const TAKE: &str = "
        UPDATE refrain_asks SET state = 'taken' WHERE task = ?1 AND key = ?2 AND state = 'answered'";
    const WITHDRAW: &str = "
        UPDATE refrain_asks SET state = 'withdrawn'
        WHERE task = ?1 AND key = ?2 AND state IN ('open', 'answered')
        RETURNING answer IS NULL";
    let (mut open, mut unread) = (0, 0);
    for (key, ask) in asks.publish {
        let query = sqlx::query(PUBLISH).bind(task.as_str()).bind(key).bind(ask);
        open += query.execute(&mut *conn).await?.rows_affected() as i64;
    }
    for key in asks.taken {
        let query = sqlx::query(TAKE).bind(task.as_str()).bind(key);
        unread -= query.execute(&mut *conn).await?.rows_affected() as i64;
    }
    for key in asks.withdrawn {
        let query = sqlx::query_scalar(WITHDRAW).bind(task.as_str()).bind(key);
        match query.fetch_all(&mut *conn).await?.pop() {
            Some(true) => open -= 1,
            Some(false) => unread -= 1,
            None => {}
        }
    }
    Ok((open, unread))
}
