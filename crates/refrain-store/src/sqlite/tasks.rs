//! Operations with SQLite-specific statements.
//!
//! After a write all returned rows are read, even if there is only one: before that, the statement is not complete and not
//! on disk.

use super::{Result, SqliteStore, begin, now};
use crate::quota::Quota;
use crate::sql::{
    ClaimRecord, NextColumns, USAGE, answers_of, claim_columns, column, commit_allowed,
    commit_growth, committed, insert_task, limit, next_turn, promoted, revisions, set_answered,
    set_cancelled, set_committed, set_requeued, usage, within_quota,
};
use crate::store::{StoreError, TaskStore};
use crate::task::{Claim, Commit, CommitResult, Lease, NewTask, Next, SweepCounts, TaskId};
use crate::time::micros;
use refrain_core::Principal;
use sqlx::QueryBuilder;
use sqlx::query::QueryAs;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};
use std::time::Duration;

/// The maximum number of tasks of one claim.
const MAX_CLAIM: i64 = 1000;

/// Advances the last claimed turn to `$1`.
const ADVANCE: &str = "UPDATE refrain_turns SET last = $1 WHERE last < $1";

pub(super) const INSERT: &str = concat!(insert_task!("$17", "max"), " RETURNING created");

const CANCEL: &str = concat!(
    "UPDATE refrain_tasks ",
    set_cancelled!("$3", "max"),
    " WHERE id = $1 AND owner IS $2 AND due IS NOT NULL"
);

const ANSWER: &str = "
UPDATE refrain_asks SET answer = $3, state = 'answered' WHERE task = $1 AND key = $2 AND state = 'open'";

const ANSWERED: &str = concat!(
    "UPDATE refrain_tasks AS t ",
    set_answered!("$2", "$4", "$3", "max", "min"),
    " WHERE id = $1 RETURNING worker IS NULL"
);

/// Makes tasks ready whose wait or lease ended by `$1`, at most `$2`.
const PROMOTE: &str = concat!(
    "UPDATE refrain_tasks AS t ",
    promoted!("max"),
    "
    FROM (
        SELECT id, account, row_number() OVER (PARTITION BY coalesce(account, '') ORDER BY due, id) AS rank
        FROM (SELECT id, coalesce(account, owner) AS account, due FROM refrain_tasks
            WHERE due <= $1 AND due IS NOT NULL AND turn IS NULL ORDER BY due LIMIT $2)
    ) AS late
    WHERE t.id = late.id"
);

const IS_LATE: &str = "SELECT EXISTS (SELECT 1 FROM refrain_tasks WHERE due <= $1 AND due IS NOT NULL AND turn IS NULL)";

/// Claims the tasks `$4` that are still ready.
const CLAIM: &str = concat!(
    "UPDATE refrain_tasks
    SET worker = $1, due = $2 + $3, turn = NULL, fence = fence + 1, attempts = attempts + 1, revision = revision + 1, last_commit = 0
    WHERE due <= $2 AND turn IS NOT NULL AND id IN (SELECT value FROM json_each($4))
    RETURNING ",
    claim_columns!(),
    ", max(0, expires - $2)"
);

const EXTEND: &str = "
UPDATE refrain_tasks SET due = $3, turn = NULL
WHERE id = $1 AND fence = $2 AND due IS NOT NULL AND worker IS NOT NULL";

const COMMIT: &str = concat!(
    "UPDATE refrain_tasks AS t ",
    set_committed!("$11", "$12", "$14", "$13", "max", "min"),
    " WHERE id = $1 AND fence = $2 AND due IS NOT NULL AND last_commit < $3 AND ",
    commit_allowed!("$14", "$15", "$16"),
    " RETURNING revision, unread"
);

/// A commit without asks by a worker that keeps the task, with the parameters of [`COMMIT`]. SQLite updates the indexes of
/// all columns that a statement sets, so this one omits unchanged columns.
const KEEP: &str = concat!(
    "
UPDATE refrain_tasks AS t
SET journal = coalesce($4, journal),
    attempts = CASE WHEN $10 THEN 0 ELSE attempts END,
    status_message = coalesce($5, status_message),
    last_error = CASE WHEN NOT $10 THEN last_error END,
    updated = max(updated, $13),
    revision = revision + 1,
    last_commit = $3
WHERE id = $1 AND fence = $2 AND due IS NOT NULL AND last_commit < $3 AND ",
    commit_allowed!("$14", "$15", "$16"),
    "
RETURNING revision, unread"
);

const HELD: &str = "SELECT 1 FROM refrain_tasks WHERE id = $1 AND fence = $2 AND due IS NOT NULL";

pub(super) const REVISIONS: &str = revisions!("IN (SELECT value FROM json_each($1))");
pub(super) const ANSWERS_OF: &str = answers_of!("IN (SELECT value FROM json_each($1))");

const REQUEUE: &str = concat!("UPDATE refrain_tasks ", set_requeued!("$2", "max"));

pub(super) const SPILL: &str = concat!(
    "INSERT INTO refrain_tokens (id, bytes, until, owner) SELECT $1, $2, $3, $4 WHERE ",
    within_quota!("$4", "$5", "$6", "$7"),
    "
    ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes, until = excluded.until, owner = excluded.owner"
);

/// The end of this time, as a parameter of [`SPILL`].
pub(super) fn until(keep: Duration) -> i64 {
    now() + micros(keep)
}

/// Tasks that ended by `$2` and expired by `$1`.
macro_rules! ended {
    () => {
        "(SELECT id FROM refrain_tasks WHERE ended IS NOT NULL AND expires <= $1 AND ended <= $2 \
          ORDER BY expires, id LIMIT $3)"
    };
}

const SWEEP_ASKS: &str = concat!("DELETE FROM refrain_asks WHERE task IN ", ended!());
const SWEEP_TASKS: &str = concat!("DELETE FROM refrain_tasks WHERE id IN ", ended!());
const SWEEP_LOG: &str = "
DELETE FROM refrain_log
WHERE rowid IN (SELECT rowid FROM refrain_log WHERE until < $1 ORDER BY until LIMIT $2)";
const SWEEP_TOKENS: &str = "
DELETE FROM refrain_tokens
WHERE rowid IN (SELECT rowid FROM refrain_tokens WHERE until <= $1 ORDER BY until LIMIT $2)";

impl SqliteStore {
    /// Inserts a task and returns its creation time. `None`: its id or its flow exists.
    pub(super) async fn insert(
        &self,
        new: &NewTask,
        insert: QueryAs<'_, Sqlite, (i64,), SqliteArguments>,
    ) -> Result<Option<i64>> {
        let mut writer = self.writer().await?;
        let created = insert.bind(now()).fetch_all(&mut *writer).await?;
        drop(writer);
        let created = created.first().map(|(created,)| *created);
        if created.is_some() && new.claimed.is_none() {
            self.hint(&new.id, true, true);
        }
        Ok(created)
    }

    pub(super) async fn answer_task(
        &self,
        id: &TaskId,
        owner: &Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> Result<bool> {
        let mut writer = self.writer().await?;
        let mut tx = begin(&mut writer).await?;
        let found = "SELECT due IS NULL, coalesce(account, owner, '') FROM refrain_tasks WHERE id = $1 AND owner IS $2";
        let found = sqlx::query_as(found).bind(id.as_str()).bind(owner.id());
        let found: Option<(bool, String)> = found.fetch_optional(&mut *tx).await?;
        let Some((false, account)) = found else {
            return Ok(found.is_some());
        };
        let size = answers.iter().map(|(_, answer)| answer.len() as u64).sum();
        let used = sqlx::query_as(USAGE)
            .bind(account)
            .fetch_all(&mut *tx)
            .await?;
        let quota = *self.quota.lock();
        quota.check(usage(&used), 0, size)?;
        let (mut new, mut bytes) = (0, 0);
        for (key, answer) in answers {
            let size = limit(answer.len());
            let answer = sqlx::query(ANSWER).bind(id.as_str()).bind(key).bind(answer);
            if answer.execute(&mut *tx).await?.rows_affected() > 0 {
                (new, bytes) = (new + 1, bytes + size);
            }
        }
        if new == 0 {
            return Ok(true);
        }
        let answered = sqlx::query_scalar(ANSWERED).bind(id.as_str());
        let answered = answered.bind(new).bind(now()).bind(bytes);
        let due: Vec<bool> = answered.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        self.hint(id, due == [true], false);
        Ok(true)
    }

    pub(super) async fn cancel_task(&self, id: &TaskId, owner: &Principal) -> Result<bool> {
        let cancel = sqlx::query(CANCEL).bind(id.as_str()).bind(owner.id());
        if self.execute(cancel.bind(now())).await? > 0 {
            self.hint(id, false, false);
            return Ok(true);
        }
        Ok(self.get(id, owner).await?.is_some())
    }

    pub(super) async fn claim_tasks(&self, claim: Claim<'_>) -> Result<Vec<ClaimRecord>> {
        // A worker that loses a race retries a few times.
        for _ in 0..5 {
            // Usually nothing is due, and a reading connection can find that out.
            self.promote().await?;
            let found = self.find_ready(claim).await?;
            let Some((_, last)) = found.last() else {
                break;
            };
            let ids: Vec<String> = found.iter().map(|(id, _)| id.clone()).collect();
            let mut writer = self.writer().await?;
            let mut tx = begin(&mut writer).await?;
            let take = sqlx::query_as(CLAIM)
                .bind(claim.worker)
                .bind(now())
                .bind(micros(claim.lease))
                .bind(id_list(&ids));
            let mut records: Vec<ClaimRecord> = take.fetch_all(&mut *tx).await?;
            sqlx::query(ADVANCE).bind(last).execute(&mut *tx).await?;
            tx.commit().await?;
            drop(writer);
            if !records.is_empty() {
                records.sort_by_key(|record| ids.iter().position(|id| *id == record.0));
                return Ok(records);
            }
        }
        Ok(Vec::new())
    }

    /// Makes tasks ready whose wait or lease has ended.
    async fn promote(&self) -> Result<()> {
        let late = sqlx::query_scalar(IS_LATE).bind(now());
        if late.fetch_one(&self.readers).await? {
            let promote = sqlx::query(PROMOTE).bind(now()).bind(MAX_CLAIM);
            self.execute(promote).await?;
        }
        Ok(())
    }

    /// The tasks that this worker may claim, in their order, with their turns.
    async fn find_ready(&self, claim: Claim<'_>) -> Result<Vec<(String, i64)>> {
        let now = now();
        let mut find =
            QueryBuilder::new("SELECT id, turn FROM refrain_tasks WHERE turn IS NOT NULL");
        find.push(" AND due <= ").push_bind(now);
        find.push(" AND coalesce(account, owner, '') NOT IN (");
        let mut accounts = find.separated(", ");
        for account in claim.except {
            accounts.push_bind(account.id().unwrap_or_default());
        }
        find.push(") AND (tool IN (");
        let mut tools = find.separated(", ");
        for tool in claim.tools {
            tools.push_bind(tool);
        }
        find.push(") OR expires <= ").push_bind(now);
        find.push(") ORDER BY turn, due LIMIT ");
        find.push_bind(limit(claim.most).min(MAX_CLAIM));
        Ok(find.build_query_as().fetch_all(&self.readers).await?)
    }

    pub(super) async fn extend_leases(
        &self,
        leases: &[Lease],
        time: Duration,
    ) -> Result<Vec<Lease>> {
        let mut writer = self.writer().await?;
        let mut tx = begin(&mut writer).await?;
        let until = now() + micros(time);
        let mut held = Vec::with_capacity(leases.len());
        for lease in leases {
            let extend = sqlx::query(EXTEND).bind(lease.task.as_str());
            let extend = extend.bind(column(lease.fence)).bind(until);
            if extend.execute(&mut *tx).await?.rows_affected() > 0 {
                held.push(lease.clone());
            }
        }
        tx.commit().await?;
        Ok(held)
    }

    pub(super) async fn commit_task(
        &self,
        lease: &Lease,
        commit: Commit,
        number: i64,
    ) -> Result<CommitResult> {
        let lease = (lease, number, *self.quota.lock());
        let mut writer = self.writer().await?;
        if !commit.has_asks() {
            let keeps = commit.next == Next::Keep;
            let sql = if keeps { KEEP } else { COMMIT };
            return write(&mut writer, sql, lease, commit, (0, 0, 0)).await;
        }
        let mut tx = begin(&mut writer).await?;
        let held = sqlx::query(HELD).bind(lease.0.task.as_str());
        let held = held.bind(column(lease.0.fence)).fetch_optional(&mut *tx);
        held.await?.ok_or(StoreError::Lost)?;
        let changed = write_asks(&mut tx, &lease.0.task, &commit).await?;
        let committed = write(&mut tx, COMMIT, lease, commit, changed).await?;
        tx.commit().await?;
        Ok(committed)
    }

    pub(super) async fn spilled_token(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let get = "SELECT bytes FROM refrain_tokens WHERE id = $1 AND until > $2";
        let get = sqlx::query_scalar(get).bind(id).bind(now());
        Ok(get.fetch_optional(&self.readers).await?)
    }

    pub(super) async fn requeue_task(&self, id: &TaskId) -> Result<()> {
        let requeue = sqlx::query(REQUEUE).bind(id.as_str()).bind(now());
        if self.execute(requeue).await? > 0 {
            self.hint(id, true, false);
        }
        Ok(())
    }

    pub(super) async fn sweep_all(&self, keep: i64, limit: i64) -> Result<SweepCounts> {
        let mut writer = self.writer().await?;
        let mut tx = begin(&mut writer).await?;
        let now = now();
        let ended = |sql| sqlx::query(sql).bind(now).bind(now - keep).bind(limit);
        ended(SWEEP_ASKS).execute(&mut *tx).await?;
        let tasks = ended(SWEEP_TASKS).execute(&mut *tx).await?;
        let log = sqlx::query(SWEEP_LOG).bind(now / 1_000_000).bind(limit);
        let log = log.execute(&mut *tx).await?;
        let tokens = sqlx::query(SWEEP_TOKENS).bind(now).bind(limit);
        let tokens = tokens.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(SweepCounts {
            tasks: tasks.rows_affected(),
            records: log.rows_affected(),
            tokens: tokens.rows_affected(),
        })
    }
}

/// Ids as a JSON array, for a statement parameter. Ids are alphanumeric and need no escapes.
pub(super) fn id_list(ids: &[String]) -> String {
    format!("{ids:?}")
}

/// Writes a commit to its task, with the changes of its numbers of open asks, unread asks and bytes of asks.
async fn write(
    writer: &mut SqliteConnection,
    sql: &'static str,
    (lease, number, quota): (&Lease, i64, Quota),
    commit: Commit,
    (open, unread, bytes): (i64, i64, i64),
) -> Result<CommitResult> {
    let next = NextColumns::from(commit.next);
    let write = sqlx::query_as(sql)
        .bind(lease.task.as_str())
        .bind(column(lease.fence))
        .bind(number)
        .bind(commit.journal)
        .bind(commit.status_message)
        .bind(next.kind)
        .bind(next.wait)
        .bind(next.error)
        .bind(next.outcome)
        .bind(commit.progress)
        .bind(open)
        .bind(unread)
        .bind(now())
        .bind(bytes)
        .bind(column(quota.bytes))
        .bind(column(quota.total_bytes));
    committed(write.fetch_all(writer).await?)
}

/// Writes the asks of a commit, and returns the changes of the numbers of open asks, unread asks and bytes.
async fn write_asks(
    writer: &mut SqliteConnection,
    task: &TaskId,
    commit: &Commit,
) -> Result<(i64, i64, i64)> {
    const PUBLISH: &str = "
        INSERT INTO refrain_asks (task, key, ask, state) VALUES ($1, $2, $3, 'open')
        ON CONFLICT DO NOTHING";
    const TAKE: &str = "
        UPDATE refrain_asks SET state = 'taken' WHERE task = $1 AND key = $2 AND state = 'answered'";
    const WITHDRAW: &str = "
        UPDATE refrain_asks SET state = 'withdrawn'
        WHERE task = $1 AND key = $2 AND state IN ('open', 'answered')
        RETURNING answer IS NULL";
    let (mut open, mut unread, mut bytes) = (0, 0, 0);
    for (key, ask) in &commit.publish {
        let query = sqlx::query(PUBLISH).bind(task.as_str()).bind(key).bind(ask);
        if query.execute(&mut *writer).await?.rows_affected() > 0 {
            (open, bytes) = (open + 1, bytes + limit(ask.len()));
        }
    }
    for key in &commit.taken {
        let query = sqlx::query(TAKE).bind(task.as_str()).bind(key);
        unread -= query.execute(&mut *writer).await?.rows_affected() as i64;
    }
    for key in &commit.withdrawn {
        let query = sqlx::query_scalar(WITHDRAW).bind(task.as_str()).bind(key);
        match query.fetch_all(&mut *writer).await?.pop() {
            Some(true) => open -= 1,
            Some(false) => unread -= 1,
            None => {}
        }
    }
    Ok((open, unread, bytes))
}
