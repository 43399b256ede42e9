//! Operations with Postgres-specific statements.
//!
//! Nearly every operation is one statement: one round trip. Writes to one task share transactions with other such writes. Writes
//! to several tasks do not, since two transactions that lock several tasks in different orders block each other.
//!
//! A statement sees the tables as of its start, but reads the current version of a row that it
//! waited for. So columns of the task hold the numbers of open asks and of answers that no worker
//! has read; they are never recounted. A statement that changes asks locks the row of their task
//! first.
//!
//! After a write all returned rows are read, even if there is only one: before that, the statement can still fail.
//!
//! If a task is selected by its id, the condition for "has not ended" is `ended IS NULL`. With `due IS NOT NULL` the
//! planner could use the index on `due` instead of the primary key.

use super::text::{encode, encode_indexed};
use super::{PgStore, Result};
use crate::sql::{
    ClaimRecord, all_bytes, answers_of, bytes_of, claim_columns, column, commit_allowed,
    commit_growth, insert_task, lease, next_turn, open_asks, own_bytes, revisions, set_answered,
    set_cancelled, set_committed, set_promoted, set_requeued, total_of_task, within_quota,
};
use crate::task::{Claim, Commit, Lease, NewTask, SweepCounts, TaskId};
use crate::time::micros;
use refrain_core::Principal;
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::QueryAs;
use std::time::Duration;

/// The maximum number of tasks that one claim makes ready.
const MAX_PROMOTED: i64 = 1000;

/// Inserts a task, and sends its hint if it has no worker. `IS NULL` turns the `void` of
/// `pg_notify` into a boolean.
pub(super) const INSERT: &str = concat!(
    "WITH inserted AS (",
    insert_task!(now!(), "greatest"),
    " RETURNING id, created, worker)
    SELECT created, CASE WHEN worker IS NULL THEN pg_notify('refrain', '+w' || id) IS NULL END FROM inserted"
);

const ANSWER: &str = concat!(
    "WITH held AS MATERIALIZED (
        SELECT id, due, coalesce(account, owner, '') AS account, due IS NULL OR ",
    within_quota!("refrain_tasks.account, refrain_tasks.owner", "$5", "$6", "$7"),
    " AS allowed
        FROM refrain_tasks WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 FOR UPDATE
    ), stored AS (
        UPDATE refrain_asks a SET answer = v.answer, state = 'answered'
        FROM held, unnest($3::text[], $4::bytea[]) AS v (key, answer)
        WHERE held.due IS NOT NULL AND held.allowed AND a.task = held.id AND a.key = v.key AND a.state = 'open'
        RETURNING length(a.answer) AS bytes
    ), counted AS (
        SELECT count(*) AS new, coalesce(sum(bytes), 0) AS bytes FROM stored
    ), answered AS (
        UPDATE refrain_tasks t ",
    set_answered!("counted.new", "counted.bytes", now!(), "greatest", "least"),
    "
        FROM held, counted
        WHERE t.id = held.id AND counted.new > 0
        RETURNING t.worker IS NULL AS due
    )
    SELECT EXISTS (SELECT 1 FROM held), (SELECT due FROM answered), (SELECT account FROM held WHERE NOT allowed)"
);

const CANCEL: &str = concat!(
    "WITH existing AS (
        SELECT 1 FROM refrain_tasks WHERE id = $1 AND owner IS NOT DISTINCT FROM $2
    ), cancelled AS (
        UPDATE refrain_tasks ",
    set_cancelled!(now!(), "greatest"),
    "
        WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND ended IS NULL
        RETURNING id
    )
    SELECT EXISTS (SELECT 1 FROM existing),
        (SELECT pg_notify('refrain', '-o' || id) IS NULL FROM cancelled)"
);

/// Makes tasks ready whose wait or lease has ended, at most `$1`.
const PROMOTE: &str = concat!(
    "WITH found AS MATERIALIZED (
        SELECT id, coalesce(account, owner) AS account, due FROM refrain_tasks
        WHERE due <= ",
    now!(),
    " AND due IS NOT NULL AND turn IS NULL
        ORDER BY due LIMIT $1
        FOR UPDATE SKIP LOCKED
    ), overdue AS (
        SELECT id, account, row_number() OVER (PARTITION BY coalesce(account, '') ORDER BY due, id) AS rank
        FROM found
    )
    UPDATE refrain_tasks t ",
    set_promoted!("greatest"),
    " FROM overdue WHERE t.id = overdue.id"
);

/// Claims ready tasks, in the order of the index on `turn`. If a concurrent claim has locked the last claimed turn, this one
/// does not advance it.
const CLAIM: &str = concat!(
    "WITH found AS MATERIALIZED (
        SELECT id AS task, turn AS old_turn, due AS old_due FROM refrain_tasks
        WHERE turn IS NOT NULL AND due <= ",
    now!(),
    " AND coalesce(account, owner, '') <> ALL($5) AND ($6 OR owner IS NOT NULL) AND (tool = ANY($2) OR expires <= ",
    now!(),
    ")
        ORDER BY turn, due LIMIT $4
        FOR UPDATE SKIP LOCKED
    ), reached AS (
        SELECT max(old_turn) AS last FROM found
    ), advanced AS (
        UPDATE refrain_turns SET last = reached.last FROM reached
        WHERE refrain_turns.ctid = (
            SELECT t.ctid FROM refrain_turns t, reached WHERE t.last < reached.last FOR UPDATE OF t SKIP LOCKED)
    ), taken AS (
        UPDATE refrain_tasks
        SET worker = $1, due = ",
    now!(),
    " + $3, turn = NULL, fence = fence + 1, attempts = attempts + 1,
            revision = revision + 1, last_commit = 0
        FROM found WHERE id = task
        RETURNING ",
    claim_columns!(),
    ", greatest(0, expires - ",
    now!(),
    ") AS time_left, old_turn, old_due
    )
    SELECT ",
    claim_columns!(),
    ", time_left FROM taken ORDER BY old_turn, old_due"
);

const EXTEND: &str = concat!(
    "UPDATE refrain_tasks t SET turn = NULL, due = ",
    now!(),
    " + $3
    FROM unnest($1::text[], $2::bigint[]) AS v (id, fence)
    WHERE t.id = v.id AND t.fence = v.fence AND t.ended IS NULL AND t.worker IS NOT NULL
    RETURNING t.id, t.fence"
);

const COMMIT: &str = concat!(
    "UPDATE refrain_tasks t ",
    set_committed!("0", "0", "0", now!(), "greatest", "least"),
    "
    WHERE t.id = $1 AND t.fence = $2 AND t.ended IS NULL AND t.last_commit < $3 AND ",
    commit_allowed!("$11", "$12", total_of_task!()),
    "
    RETURNING t.revision, t.unread"
);

const COMMIT_WITH_ASKS: &str = concat!(
    "WITH held AS MATERIALIZED (
        SELECT id, revision FROM refrain_tasks t
        WHERE id = $1 AND fence = $2 AND ended IS NULL AND last_commit < $3 AND ",
    commit_allowed!("$11", "$12", total_of_task!()),
    "
        FOR UPDATE
    ), published AS (
        INSERT INTO refrain_asks (task, key, ord, ask, state)
        SELECT held.id, v.key, (held.revision << 20) + v.n, v.ask,
            CASE WHEN v.key = ANY($18) THEN 'withdrawn' ELSE 'open' END
        FROM held, unnest($15::text[], $16::bytea[]) WITH ORDINALITY AS v (key, ask, n)
        ON CONFLICT DO NOTHING
        RETURNING state, length(ask) AS bytes
    ), taken AS (
        UPDATE refrain_asks a SET state = 'taken' FROM held
        WHERE a.task = held.id AND a.key = ANY($17) AND a.state = 'answered'
        RETURNING 1
    ), withdrawn AS (
        UPDATE refrain_asks a SET state = 'withdrawn' FROM held
        WHERE a.task = held.id AND a.key = ANY($18)
            AND (a.state = 'open' OR (a.state = 'answered' AND a.key <> ALL($17)))
        RETURNING a.answer IS NULL AS was_open
    ), changed AS (
        SELECT
            (SELECT count(*) FROM published WHERE state = 'open')
                - (SELECT count(*) FROM withdrawn WHERE was_open) AS open,
            - (SELECT count(*) FROM taken) - (SELECT count(*) FROM withdrawn WHERE NOT was_open) AS unread,
            (SELECT coalesce(sum(bytes), 0) FROM published) AS extra
    )
    UPDATE refrain_tasks t ",
    set_committed!("changed.open", "changed.unread", "changed.extra", now!(), "greatest", "least"),
    "
    FROM held, changed WHERE t.id = held.id
    RETURNING t.revision, t.unread"
);

pub(super) const OPEN_ASKS: &str = open_asks!("= ANY($3)");
pub(super) const REVISIONS: &str = revisions!("= ANY($1)");
pub(super) const ANSWERS_OF: &str = answers_of!("= ANY($1)");

const REQUEUE: &str = concat!(
    "WITH requeued AS (UPDATE refrain_tasks ",
    set_requeued!(now!(), "greatest"),
    " RETURNING id)
    SELECT pg_notify('refrain', '+o' || id) IS NULL FROM requeued"
);

pub(super) const SPILL: &str = concat!(
    "INSERT INTO refrain_tokens (id, bytes, until, owner) SELECT $1, $2, ",
    now!(),
    " + $3, $4 WHERE ",
    within_quota!("$4", "$5", "$6", "$7"),
    "
    ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes, until = excluded.until, owner = excluded.owner
    RETURNING 1"
);

/// A wait as a statement parameter. The statement adds the current time.
pub(super) fn until(keep: Duration) -> i64 {
    micros(keep)
}

const SPILLED: &str = concat!(
    "SELECT bytes FROM refrain_tokens WHERE id = $1 AND until > ",
    now!()
);

const SWEEP: &str = concat!(
    "WITH tasks AS (
        DELETE FROM refrain_tasks WHERE id IN (
            SELECT id FROM refrain_tasks
            WHERE ended IS NOT NULL AND expires <= ", now!(), " AND ended <= ", now!(), " - $1
            ORDER BY expires LIMIT $2 FOR UPDATE SKIP LOCKED)
        RETURNING id
    ), asks AS (
        DELETE FROM refrain_asks WHERE task IN (SELECT id FROM tasks)
    ), records AS (
        DELETE FROM refrain_log WHERE (flow, name) IN (
            SELECT flow, name FROM refrain_log WHERE until < ", now!(), " / 1000000
            ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)
        RETURNING 1
    ), tokens AS (
        DELETE FROM refrain_tokens WHERE id IN (
            SELECT id FROM refrain_tokens WHERE until <= ", now!(), "
            ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM records), (SELECT count(*) FROM tokens)"
);

/// Deletes the usage of accounts without data, at most of `$1` accounts. A row that another transaction changes is skipped. Since
/// the deleted rows of an account add up to 0, its usage stays the same, whatever its other rows contain. This is a separate
/// transaction: it waits for no lock, while the triggers of [`SWEEP`] wait for rows of `'*'`.
const SWEEP_USAGE: &str = "
WITH locked AS MATERIALIZED (
    SELECT owner, slot, tasks, bytes FROM refrain_usage WHERE owner IN (
        SELECT owner FROM refrain_usage WHERE owner <> '*'
        GROUP BY owner HAVING sum(tasks) = 0 AND sum(bytes) = 0 LIMIT $1)
    FOR UPDATE SKIP LOCKED
), unused AS (
    SELECT owner FROM locked GROUP BY owner HAVING sum(tasks) = 0 AND sum(bytes) = 0
)
DELETE FROM refrain_usage WHERE (owner, slot) IN (SELECT owner, slot FROM locked JOIN unused USING (owner))
RETURNING CAST(1 AS BIGINT)";

impl PgStore {
    /// Inserts a task and returns its creation time. `None`: its id or its flow exists.
    pub(super) async fn insert(
        &self,
        _: &NewTask,
        insert: QueryAs<'_, Postgres, (i64,), PgArguments>,
        bytes: usize,
    ) -> Result<Option<i64>> {
        let created = self.write(insert, bytes).await?;
        Ok(created.first().map(|(created,)| *created))
    }

    pub(super) async fn answer_task(
        &self,
        id: &TaskId,
        owner: &Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> Result<bool> {
        let (quota, size) = (*self.quota.lock(), bytes_of(&answers));
        let (keys, answers) = columns(answers);
        let answer = sqlx::query_as(ANSWER)
            .bind(id.as_str())
            .bind(owner.id().map(encode))
            .bind(keys)
            .bind(answers)
            .bind(column(size))
            .bind(column(quota.bytes))
            .bind(column(quota.total_for(owner.id().is_none())));
        let mut answered: Vec<(bool, Option<bool>, Option<String>)> =
            self.write(answer, size).await?;
        let (exists, due, over_quota) = answered.pop().unwrap_or_default();
        if let Some(account) = over_quota {
            return Err(self.quota_error(&account, 0, size).await);
        }
        if let Some(due) = due {
            self.hint(id, due, false);
        }
        Ok(exists)
    }

    pub(super) async fn cancel_task(&self, id: &TaskId, owner: &Principal) -> Result<bool> {
        let cancel = sqlx::query_as(CANCEL).bind(id.as_str());
        let cancel = cancel.bind(owner.id().map(encode));
        let exists: Vec<(bool,)> = self.write(cancel, 0).await?;
        Ok(exists == [(true,)])
    }

    pub(super) async fn claim_tasks(&self, claim: Claim<'_>) -> Result<Vec<ClaimRecord>> {
        let promote = sqlx::query_as(PROMOTE).bind(MAX_PROMOTED);
        self.fetch::<(i64,)>(promote).await?;
        let except = claim.except.iter();
        let except = except.map(|account| encode(account.id().unwrap_or_default()));
        let except: Vec<_> = except.collect();
        let take = sqlx::query_as(CLAIM)
            .bind(encode(claim.worker))
            .bind(texts(claim.tools))
            .bind(micros(claim.lease))
            .bind(column(claim.most))
            .bind(except)
            .bind(claim.anonymous);
        self.fetch(take).await
    }

    pub(super) async fn extend_leases(
        &self,
        leases: &[Lease],
        time: Duration,
    ) -> Result<Vec<Lease>> {
        let columns = leases
            .iter()
            .map(|lease| (lease.task.as_str(), column(lease.fence)));
        let (ids, fences): (Vec<&str>, Vec<i64>) = columns.unzip();
        let extend = sqlx::query_as(EXTEND).bind(ids).bind(fences);
        let held = self.fetch(extend.bind(micros(time))).await?;
        Ok(held.into_iter().map(lease).collect())
    }

    pub(super) async fn spilled_token(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let get = sqlx::query_as(SPILLED).bind(encode(id));
        Ok(self.fetch(get).await?.pop().map(|(token,)| token))
    }

    pub(super) async fn requeue_task(&self, id: &TaskId) -> Result<()> {
        let requeue = sqlx::query(REQUEUE).bind(id.as_str());
        self.execute(requeue, 0).await.map(drop)
    }

    pub(super) async fn sweep_all(&self, keep: i64, limit: i64) -> Result<SweepCounts> {
        let sweep = sqlx::query_as(SWEEP).bind(keep).bind(limit);
        let swept: Vec<(i64, i64, i64)> = self.fetch(sweep).await?;
        let (tasks, records, tokens) = swept.first().copied().unwrap_or_default();
        let usage = sqlx::query_as(SWEEP_USAGE).bind(limit);
        self.fetch::<(i64,)>(usage).await?;
        Ok(SweepCounts {
            tasks: tasks.unsigned_abs(),
            records: records.unsigned_abs(),
            tokens: tokens.unsigned_abs(),
        })
    }
}

/// Ids, as a statement parameter.
pub(super) fn id_list(ids: &[String]) -> &[String] {
    ids
}

/// Keys of asks, as a statement parameter.
pub(super) fn key_list(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| encode(key).into_owned()).collect()
}

/// The statement of a commit.
pub(super) fn commit_statement(commit: &Commit) -> &'static str {
    match commit.has_asks() {
        true => COMMIT_WITH_ASKS,
        false => COMMIT,
    }
}

/// Adds the last parameters of [`commit_statement`].
pub(super) fn bind_asks<'q>(
    query: QueryAs<'q, Postgres, (i64, i64), PgArguments>,
    commit: &Commit,
) -> Result<QueryAs<'q, Postgres, (i64, i64), PgArguments>> {
    if !commit.has_asks() {
        return Ok(query);
    }
    for (key, _) in &commit.publish {
        encode_indexed("ask key", key)?;
    }
    let (keys, asks) = columns(commit.publish.iter().cloned());
    Ok(query
        .bind(keys)
        .bind(asks)
        .bind(texts(&commit.taken))
        .bind(texts(&commit.withdrawn)))
}

fn texts(texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| encode(text).into_owned()).collect()
}

/// Keys and values, as two columns.
fn columns(pairs: impl IntoIterator<Item = (String, Vec<u8>)>) -> (Vec<String>, Vec<Vec<u8>>) {
    let column = |(key, value): (String, Vec<u8>)| (encode(&key).into_owned(), value);
    pairs.into_iter().map(column).unzip()
}
