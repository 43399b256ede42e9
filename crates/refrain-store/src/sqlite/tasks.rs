//! Operations with SQLite-specific statements.
//!
//! Each write is one query, so that it costs one switch to the thread of the connection. It may contain several statements,
//! which share their parameters; rows of all of them are returned.

use super::{Result, SqliteStore, now};
use crate::sql::{
    ClaimRecord, all_bytes, answers_of, bytes_of, claim_columns, column, commit_allowed,
    commit_growth, insert_task, lease, next_turn, open_asks, own_bytes, revisions, set_answered,
    set_cancelled, set_committed, set_promoted, set_requeued, total_of_task, within_quota,
};
use crate::store::TaskStore;
use crate::task::{Claim, Commit, Lease, NewTask, Next, SweepCounts, TaskId};
use crate::time::micros;
use refrain_core::Principal;
use sqlx::QueryBuilder;
use sqlx::query::QueryAs;
use sqlx::sqlite::{Sqlite, SqliteArguments};
use std::time::Duration;

/// The maximum number of tasks of one claim.
const MAX_CLAIM: i64 = 1000;

pub(super) const INSERT: &str = concat!(insert_task!("$18", "max"), " RETURNING created");

const CANCEL: &str = concat!(
    "UPDATE refrain_tasks ",
    set_cancelled!("$3", "max"),
    " WHERE id = $1 AND owner IS $2 AND due IS NOT NULL RETURNING 1"
);

/// Decodes a key in a [`list`], which is hexadecimal.
macro_rules! decode_key {
    ($value:literal) => {
        concat!("CAST(unhex(", $value, ") AS TEXT)")
    };
}

/// Counts the asks of the task `$1`. The counts are current, since SQLite has one writer at a time.
macro_rules! count_asks {
    () => {
        "(SELECT coalesce(sum(state = 'open'), 0) AS open, coalesce(sum(state = 'answered'), 0) AS unread,
            coalesce(sum(length(ask) + coalesce(length(answer), 0)), 0) AS extra
        FROM refrain_asks WHERE task = $1) AS asks"
    };
}

/// Stores the answers `$3` of `$4` bytes. The first row is 0 if the task may be answered, 1 if it has ended, and 2 if a quota
/// is reached. If an answer is new, the next row is 3, or 4 if the task is due.
const ANSWER: &str = concat!(
    "SELECT CASE WHEN due IS NULL THEN 1 WHEN ",
    within_quota!("refrain_tasks.account, refrain_tasks.owner", "$4", "$5", "$6"),
    " THEN 0 ELSE 2 END
    FROM refrain_tasks WHERE id = $1 AND owner IS $2;
    UPDATE refrain_asks SET answer = unhex(v.value ->> 1), state = 'answered'
    FROM json_each($3) AS v
    WHERE task = $1 AND refrain_asks.key = ",
    decode_key!("v.value ->> 0"),
    " AND state = 'open'
        AND EXISTS (SELECT 1 FROM refrain_tasks WHERE id = $1 AND owner IS $2 AND due IS NOT NULL AND ",
    within_quota!("refrain_tasks.account, refrain_tasks.owner", "$4", "$5", "$6"),
    ");
    UPDATE refrain_tasks AS t ",
    set_answered!(
        "(t.open - asks.open)",
        "(asks.extra - t.extra)",
        "$7",
        "max",
        "min"
    ),
    " FROM ",
    count_asks!(),
    "
    WHERE t.id = $1 AND t.open > asks.open
    RETURNING 3 + (worker IS NULL)"
);

/// The account of the task `$1`.
const ACCOUNT: &str = "SELECT coalesce(account, owner, '') FROM refrain_tasks WHERE id = $1";

/// Makes tasks ready whose wait or lease ended by `$1`, at most `$2`.
const PROMOTE: &str = concat!(
    "UPDATE refrain_tasks AS t ",
    set_promoted!("max"),
    "
    FROM (
        SELECT id, account, row_number() OVER (PARTITION BY coalesce(account, '') ORDER BY due, id) AS rank
        FROM (SELECT id, coalesce(account, owner) AS account, due FROM refrain_tasks
            WHERE due <= $1 AND due IS NOT NULL AND turn IS NULL ORDER BY due LIMIT $2)
    ) AS overdue
    WHERE t.id = overdue.id"
);

const HAS_OVERDUE: &str = "SELECT EXISTS (SELECT 1 FROM refrain_tasks WHERE due <= $1 AND due IS NOT NULL AND turn IS NULL)";

/// Claims the tasks `$4` that are still ready, and advances the last claimed turn to `$5`.
const CLAIM: &str = concat!(
    "UPDATE refrain_turns SET last = $5 WHERE last < $5;
    UPDATE refrain_tasks
    SET worker = $1, due = $2 + $3, turn = NULL, fence = fence + 1, attempts = attempts + 1, revision = revision + 1, last_commit = 0
    WHERE due <= $2 AND turn IS NOT NULL AND id IN (SELECT value FROM json_each($4))
    RETURNING ",
    claim_columns!(),
    ", max(0, expires - $2)"
);

/// Extends the leases `$1` to `$2`.
const EXTEND: &str = "
UPDATE refrain_tasks AS t SET due = $2, turn = NULL
FROM json_each($1) AS v
WHERE t.id = v.value ->> 0 AND t.fence = v.value ->> 1 AND t.due IS NOT NULL AND t.worker IS NOT NULL
RETURNING id, fence";

/// Whether the lease is held and the quota allows the commit to a task `t`.
macro_rules! accepts_commit {
    () => {
        concat!(
            "t.id = $1 AND t.fence = $2 AND t.due IS NOT NULL AND t.last_commit < $3 AND ",
            commit_allowed!("$11", "$12", total_of_task!())
        )
    };
}

const COMMIT: &str = concat!(
    "UPDATE refrain_tasks AS t ",
    set_committed!("0", "0", "0", "$15", "max", "min"),
    " WHERE ",
    accepts_commit!(),
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
    updated = max(updated, $15),
    revision = revision + 1,
    last_commit = $3
WHERE ",
    accepts_commit!(),
    "
RETURNING revision, unread"
);

/// Publishes the asks `$16`, takes the answers `$17` and withdraws the asks `$18`.
const COMMIT_WITH_ASKS: &str = concat!(
    "INSERT INTO refrain_asks (task, key, ask, state)
    SELECT $1, ",
    decode_key!("v.value ->> 0"),
    ", unhex(v.value ->> 1), 'open' FROM json_each($16) AS v
    WHERE EXISTS (SELECT 1 FROM refrain_tasks AS t WHERE ",
    accepts_commit!(),
    ")
    ORDER BY v.key
    ON CONFLICT DO NOTHING;
    UPDATE refrain_asks SET state = 'taken'
    WHERE task = $1 AND key IN (SELECT ",
    decode_key!("value"),
    " FROM json_each($17)) AND state = 'answered'
        AND EXISTS (SELECT 1 FROM refrain_tasks AS t WHERE ",
    accepts_commit!(),
    ");
    UPDATE refrain_asks SET state = 'withdrawn'
    WHERE task = $1 AND key IN (SELECT ",
    decode_key!("value"),
    " FROM json_each($18)) AND state IN ('open', 'answered')
        AND EXISTS (SELECT 1 FROM refrain_tasks AS t WHERE ",
    accepts_commit!(),
    ");
    UPDATE refrain_tasks AS t ",
    set_committed!(
        "(asks.open - t.open)",
        "(asks.unread - t.unread)",
        "(asks.extra - t.extra)",
        "$15",
        "max",
        "min"
    ),
    " FROM ",
    count_asks!(),
    "
    WHERE ",
    accepts_commit!(),
    "
    RETURNING revision, unread"
);

pub(super) const OPEN_ASKS: &str = open_asks!(concat!(
    "IN (SELECT ",
    decode_key!("value"),
    " FROM json_each($3))"
));
pub(super) const REVISIONS: &str = revisions!("IN (SELECT value FROM json_each($1))");
pub(super) const ANSWERS_OF: &str = answers_of!("IN (SELECT value FROM json_each($1))");

const REQUEUE: &str = concat!(
    "UPDATE refrain_tasks ",
    set_requeued!("$2", "max"),
    " RETURNING 1"
);

pub(super) const SPILL: &str = concat!(
    "INSERT INTO refrain_tokens (id, bytes, until, owner) SELECT $1, $2, $3, $4 WHERE ",
    within_quota!("$4", "$5", "$6", "$7"),
    "
    ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes, until = excluded.until, owner = excluded.owner
    RETURNING 1"
);

/// The end of a wait, as a statement parameter.
pub(super) fn until(keep: Duration) -> i64 {
    now() + micros(keep)
}

/// Tasks that expired by `$1` and ended by `$2`, at most `$3`.
macro_rules! swept_tasks {
    () => {
        "(SELECT id FROM refrain_tasks WHERE ended IS NOT NULL AND expires <= $1 AND ended <= $2 \
          ORDER BY expires, id LIMIT $3)"
    };
}

/// Deletes at most `$3` of each, and of the usage of accounts without data. A row for each deleted task is 1, for a record 2,
/// for a token 3.
const SWEEP: &str = concat!(
    "DELETE FROM refrain_asks WHERE task IN ", swept_tasks!(), ";
    DELETE FROM refrain_tasks WHERE id IN ", swept_tasks!(), " RETURNING 1;
    DELETE FROM refrain_log
    WHERE rowid IN (SELECT rowid FROM refrain_log WHERE until < $1 / 1000000 ORDER BY until LIMIT $3) RETURNING 2;
    DELETE FROM refrain_tokens
    WHERE rowid IN (SELECT rowid FROM refrain_tokens WHERE until <= $1 ORDER BY until LIMIT $3) RETURNING 3;
    DELETE FROM refrain_usage
    WHERE rowid IN (SELECT rowid FROM refrain_usage WHERE tasks = 0 AND bytes = 0 AND owner <> '*' LIMIT $3)"
);

impl SqliteStore {
    /// Inserts a task and returns its creation time. `None`: its id or its flow exists.
    pub(super) async fn insert(
        &self,
        new: &NewTask,
        insert: QueryAs<'_, Sqlite, (i64,), SqliteArguments>,
        bytes: usize,
    ) -> Result<Option<i64>> {
        let created = self.write(insert.bind(now()), bytes).await?;
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
        let (quota, size) = (*self.quota.lock(), bytes_of(&answers));
        let answer = sqlx::query_as(ANSWER)
            .bind(id.as_str())
            .bind(owner.id())
            .bind(list(answers.iter().map(pair)))
            .bind(column(size))
            .bind(column(quota.bytes))
            .bind(column(quota.total_for(owner.id().is_none())))
            .bind(now());
        let rows: Vec<(i64,)> = self.write(answer, size).await?;
        match rows.last() {
            Some((2,)) => {
                let account = sqlx::query_as(ACCOUNT).bind(id.as_str());
                let account: Vec<(String,)> = self.fetch(account).await?;
                let account = account.first().map(|(account,)| account.as_str());
                return Err(self.quota_error(account.unwrap_or_default(), 0, size).await);
            }
            Some((due @ 3..,)) => self.hint(id, *due == 4, false),
            _ => {}
        }
        Ok(!rows.is_empty())
    }

    pub(super) async fn cancel_task(&self, id: &TaskId, owner: &Principal) -> Result<bool> {
        let cancel = sqlx::query(CANCEL).bind(id.as_str()).bind(owner.id());
        if self.execute(cancel.bind(now()), 0).await? > 0 {
            self.hint(id, false, false);
            return Ok(true);
        }
        Ok(self.open_asks(id, owner, &[]).await?.is_some())
    }

    pub(super) async fn claim_tasks(&self, claim: Claim<'_>) -> Result<Vec<ClaimRecord>> {
        // Another worker may claim all found tasks first.
        for _ in 0..5 {
            self.promote_overdue().await?;
            let found = self.find_ready(claim).await?;
            let Some((_, last)) = found.last() else {
                break;
            };
            let ids: Vec<String> = found.iter().map(|(id, _)| id.clone()).collect();
            let take = sqlx::query_as(CLAIM)
                .bind(claim.worker)
                .bind(now())
                .bind(micros(claim.lease))
                .bind(id_list(&ids))
                .bind(last);
            let mut records: Vec<ClaimRecord> = self.write(take, 0).await?;
            if !records.is_empty() {
                records.sort_by_key(|record| ids.iter().position(|id| *id == record.0));
                return Ok(records);
            }
        }
        Ok(Vec::new())
    }

    /// Makes tasks ready whose wait or lease has ended.
    async fn promote_overdue(&self) -> Result<()> {
        // Usually no task is overdue, and reading does not wait for the writer.
        let has_overdue = sqlx::query_scalar(HAS_OVERDUE).bind(now());
        if has_overdue.fetch_one(&self.readers).await? {
            let promote = sqlx::query(PROMOTE).bind(now()).bind(MAX_CLAIM);
            self.execute(promote, 0).await?;
        }
        Ok(())
    }

    /// The next tasks that this worker may claim, with their turns.
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
        find.push(")");
        if !claim.anonymous {
            find.push(" AND owner IS NOT NULL");
        }
        find.push(" AND (tool IN (");
        let mut tools = find.separated(", ");
        for tool in claim.tools {
            tools.push_bind(tool);
        }
        find.push(") OR expires <= ").push_bind(now);
        find.push(") ORDER BY turn, due LIMIT ");
        find.push_bind(column(claim.most).min(MAX_CLAIM));
        Ok(find.build_query_as().fetch_all(&self.readers).await?)
    }

    pub(super) async fn extend_leases(
        &self,
        leases: &[Lease],
        time: Duration,
    ) -> Result<Vec<Lease>> {
        let pair = |lease: &Lease| format!("[\"{}\",{}]", lease.task, column(lease.fence));
        let extend = sqlx::query_as(EXTEND)
            .bind(list(leases.iter().map(pair)))
            .bind(now() + micros(time));
        let held = self.write(extend, 0).await?;
        Ok(held.into_iter().map(lease).collect())
    }

    pub(super) async fn spilled_token(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let get = "SELECT bytes FROM refrain_tokens WHERE id = $1 AND until > $2";
        let get = sqlx::query_scalar(get).bind(id).bind(now());
        Ok(get.fetch_optional(&self.readers).await?)
    }

    pub(super) async fn requeue_task(&self, id: &TaskId) -> Result<()> {
        let requeue = sqlx::query(REQUEUE).bind(id.as_str()).bind(now());
        if self.execute(requeue, 0).await? > 0 {
            self.hint(id, true, false);
        }
        Ok(())
    }

    pub(super) async fn sweep_all(&self, keep: i64, limit: i64) -> Result<SweepCounts> {
        let now = now();
        let sweep = sqlx::query_as(SWEEP).bind(now).bind(now - keep).bind(limit);
        let swept: Vec<(i64,)> = self.write(sweep, 0).await?;
        let count = |of| swept.iter().filter(|(kind,)| *kind == of).count() as u64;
        Ok(SweepCounts {
            tasks: count(1),
            records: count(2),
            tokens: count(3),
        })
    }
}

/// Ids as a JSON array, for a statement parameter. Ids are alphanumeric and need no escapes.
pub(super) fn id_list(ids: &[String]) -> String {
    format!("{ids:?}")
}

/// Keys of asks, as a statement parameter.
pub(super) fn key_list(keys: &[&str]) -> String {
    list(
        keys.iter()
            .map(|key| format!("\"{}\"", hex(key.as_bytes()))),
    )
}

/// The statement of a commit.
pub(super) fn commit_statement(commit: &Commit) -> &'static str {
    match commit.has_asks() {
        true => COMMIT_WITH_ASKS,
        false if commit.next == Next::Keep => KEEP,
        false => COMMIT,
    }
}

/// Adds the last parameters of [`commit_statement`].
pub(super) fn bind_asks<'q>(
    query: QueryAs<'q, Sqlite, (i64, i64), SqliteArguments>,
    commit: &Commit,
) -> Result<QueryAs<'q, Sqlite, (i64, i64), SqliteArguments>> {
    let query = query.bind(now());
    if !commit.has_asks() {
        return Ok(query);
    }
    let key = |key: &String| format!("\"{}\"", hex(key.as_bytes()));
    Ok(query
        .bind(list(commit.publish.iter().map(pair)))
        .bind(list(commit.taken.iter().map(key)))
        .bind(list(commit.withdrawn.iter().map(key))))
}

/// A JSON array of keys, or of pairs of key and content, for a statement parameter. Both are hexadecimal, since JSON has
/// no bytes.
fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn pair((key, value): &(String, Vec<u8>)) -> String {
    format!("[\"{}\",\"{}\"]", hex(key.as_bytes()), hex(value))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(digit).collect()
}
