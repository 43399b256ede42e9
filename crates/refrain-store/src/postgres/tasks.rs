//! Tasks: what their owners and their workers do.
//!
//! Each operation is one statement, and so one round trip and one transaction. A statement sees the tables as they were
//! when it began, but a row it had to wait for as it is: what has to hold is therefore kept in the row of the task, as
//! numbers of open and of unread asks, and never counted anew. Whoever changes asks locks the row of their task first.
//!
//! After a write all returned rows are read, even if there is one: the statement has ended, and cannot fail, only then.
//!
//! A task that is not over has `due` set and `ended` not. Where a task is known by its id, `ended` is asked for: `due IS
//! NOT NULL` would let the planner take the index of what is due instead of the primary key.

use super::PgStore;
use super::text::{indexed, read, written};
use crate::sql::{
    ANSWERS, AskColumns, ClaimRecord, GET, GET_EXISTING, NextColumns, answers, claim_columns,
    claimed, column, committed, existing, first_lease, first_of_each, made, most, next_commit,
    revisions, task_id, tasks,
};
use crate::store::StoreError;
use crate::task::{Claim, Claimed, Commit, Committed, Created, Lease, NewTask, Task, TaskId};
use crate::time::micros;
use refrain_core::Principal;
use std::collections::HashMap;
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

const CREATE: &str = concat!(
    "WITH made AS (
        INSERT INTO refrain_tasks
            (id, flow, owner, tool, call, journal, status, status_message, created, updated, ttl, poll_interval,
             expires, due, worker, fence, attempts, revision, last_commit, open, unread)
        VALUES
            ($1, $2, $3, $4, $5, $6, 'working', $7, ", now!(), ", ", now!(), ", $8, $9,
             ", now!(), " + $8, ", now!(), " + $10, $11, ($11 IS NOT NULL)::int, ($11 IS NOT NULL)::int, 1, 0, 0, 0)
        ON CONFLICT DO NOTHING
        RETURNING id, created, worker
    )
    SELECT created, CASE WHEN worker IS NULL THEN pg_notify('refrain', '+w' || id) IS NULL END FROM made"
);

const ANSWER: &str = concat!(
    "WITH held AS MATERIALIZED (
        SELECT id, due FROM refrain_tasks WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 FOR UPDATE
    ), given AS (
        UPDATE refrain_asks a SET answer = v.answer, state = 'answered'
        FROM held, unnest($3::text[], $4::bytea[]) AS v (key, answer)
        WHERE held.due IS NOT NULL AND a.task = held.id AND a.key = v.key AND a.state = 'open'
        RETURNING 1
    ), counted AS (
        SELECT count(*) AS new FROM given
    ), answered AS (
        UPDATE refrain_tasks t
        SET open = t.open - counted.new, unread = t.unread + counted.new,
            status = CASE WHEN t.open > counted.new THEN 'input_required' ELSE 'working' END,
            updated = greatest(t.updated, ",
    now!(),
    "), revision = t.revision + 1,
            due = CASE WHEN t.worker IS NULL THEN least(t.due, ",
    now!(),
    ") ELSE t.due END
        FROM held, counted
        WHERE t.id = held.id AND counted.new > 0
        RETURNING t.worker IS NULL AS due
    )
    SELECT EXISTS (SELECT 1 FROM held), (SELECT due FROM answered)"
);

const CANCEL: &str = concat!(
    "WITH there AS (
        SELECT 1 FROM refrain_tasks WHERE id = $1 AND owner IS NOT DISTINCT FROM $2
    ), cancelled AS (
        UPDATE refrain_tasks
        SET status = 'cancelled', status_message = NULL, updated = greatest(updated, ",
    now!(),
    "), ended = ",
    now!(),
    ",
            due = NULL, worker = NULL, fence = fence + 1, revision = revision + 1
        WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND ended IS NULL
        RETURNING id
    )
    SELECT EXISTS (SELECT 1 FROM there),
        (SELECT pg_notify('refrain', '-o' || id) IS NULL FROM cancelled)"
);

/// What is due is found in the index of what is due. With 100,000 tasks that wait and ten that are due, `EXPLAIN
/// (ANALYZE)` reads ten of them: `Index Scan using refrain_tasks_due`, `Index Cond: (due <= ...)`.
const CLAIM: &str = concat!(
    "WITH found AS MATERIALIZED (
        SELECT id AS task, due AS since FROM refrain_tasks
        WHERE due <= ",
    now!(),
    " AND (tool = ANY($2) OR expires <= ",
    now!(),
    ")
        ORDER BY due LIMIT $4
        FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE refrain_tasks
        SET worker = $1, due = ",
    now!(),
    " + $3, fence = fence + 1, attempts = attempts + 1,
            revision = revision + 1, last_commit = 0
        FROM found WHERE id = task
        RETURNING ",
    claim_columns!(),
    ", greatest(0, expires - ",
    now!(),
    ") AS time_left, since
    )
    SELECT ",
    claim_columns!(),
    ", time_left FROM taken ORDER BY since"
);

const EXTEND: &str = concat!(
    "UPDATE refrain_tasks t SET due = ",
    now!(),
    " + $3
    FROM unnest($1::text[], $2::bigint[]) AS v (id, fence)
    WHERE t.id = v.id AND t.fence = v.fence AND t.ended IS NULL AND t.worker IS NOT NULL
    RETURNING t.id, t.fence"
);

/// What a commit sets. Its asks have changed the numbers of open and of unread ones by so much.
macro_rules! commit_set {
    ($open:literal, $unread:literal) => {
        concat!(
            "SET journal = coalesce($4, t.journal),
            attempts = CASE WHEN $10 THEN 0 WHEN $6 IN ('set_down', 'hand_on') THEN greatest(t.attempts - 1, 0)
                ELSE t.attempts END,
            status_message = CASE WHEN $6 = 'complete' THEN $5 ELSE coalesce($5, t.status_message) END,
            last_error = CASE WHEN $6 = 'retry' THEN $8 WHEN NOT $10 THEN t.last_error END,
            open = t.open + ",
            $open,
            ",
            unread = t.unread + ",
            $unread,
            ",
            status = CASE WHEN $6 = 'complete' THEN 'completed' WHEN $6 = 'fail' THEN 'failed'
                WHEN t.open + ",
            $open,
            " > 0 THEN 'input_required' ELSE 'working' END,
            due = CASE WHEN $6 = 'keep' THEN t.due
                WHEN $6 = 'hand_on' OR ($6 = 'set_down' AND t.unread + ",
            $unread,
            " > 0) THEN ",
            now!(),
            "
                WHEN $6 IN ('set_down', 'retry') THEN least(t.expires, ",
            now!(),
            " + $7) END,
            worker = CASE WHEN $6 = 'keep' THEN t.worker END,
            ended = CASE WHEN $6 IN ('complete', 'fail') THEN ",
            now!(),
            " END,
            outcome = $9,
            updated = greatest(t.updated, ",
            now!(),
            "),
            revision = t.revision + 1,
            last_commit = $3"
        )
    };
}

const COMMIT: &str = concat!(
    "UPDATE refrain_tasks t ",
    commit_set!("0", "0"),
    "
    WHERE t.id = $1 AND t.fence = $2 AND t.ended IS NULL AND t.last_commit < $3
    RETURNING t.revision, t.unread"
);

/// A commit of a worker that keeps the task, of which nobody has to hear.
const KEEP: &str = concat!(
    "UPDATE refrain_tasks t
    SET journal = coalesce($4, t.journal),
        attempts = CASE WHEN $5 THEN 0 ELSE t.attempts END,
        last_error = CASE WHEN NOT $5 THEN t.last_error END,
        updated = greatest(t.updated, ",
    now!(),
    "),
        revision = t.revision + 1,
        last_commit = $3
    WHERE t.id = $1 AND t.fence = $2 AND t.ended IS NULL AND t.last_commit < $3
    RETURNING t.revision, t.unread"
);

const COMMIT_WITH_ASKS: &str = concat!(
    "WITH held AS MATERIALIZED (
        SELECT id, revision FROM refrain_tasks
        WHERE id = $1 AND fence = $2 AND ended IS NULL AND last_commit < $3
        FOR UPDATE
    ), published AS (
        INSERT INTO refrain_asks (task, key, ord, ask, state)
        SELECT held.id, v.key, (held.revision << 20) + v.n, v.ask,
            CASE WHEN v.key = ANY($14) THEN 'withdrawn' ELSE 'open' END
        FROM held, unnest($11::text[], $12::bytea[]) WITH ORDINALITY AS v (key, ask, n)
        ON CONFLICT DO NOTHING
        RETURNING state
    ), taken AS (
        UPDATE refrain_asks a SET state = 'taken' FROM held
        WHERE a.task = held.id AND a.key = ANY($13) AND a.state = 'answered'
        RETURNING 1
    ), withdrawn AS (
        UPDATE refrain_asks a SET state = 'withdrawn' FROM held
        WHERE a.task = held.id AND a.key = ANY($14)
            AND (a.state = 'open' OR (a.state = 'answered' AND a.key <> ALL($13)))
        RETURNING a.answer IS NULL AS was_open
    ), changed AS (
        SELECT
            (SELECT count(*) FROM published WHERE state = 'open')
                - (SELECT count(*) FROM withdrawn WHERE was_open) AS open,
            - (SELECT count(*) FROM taken) - (SELECT count(*) FROM withdrawn WHERE NOT was_open) AS unread
    )
    UPDATE refrain_tasks t ",
    commit_set!("changed.open", "changed.unread"),
    "
    FROM held, changed WHERE t.id = held.id
    RETURNING t.revision, t.unread"
);

const CLAIMED_ANSWERS: &str = "
SELECT task, key, answer FROM refrain_asks WHERE task = ANY($1) AND state = 'answered' ORDER BY task, ord";

impl PgStore {
    pub(super) async fn create_task(&self, new: NewTask) -> Result<Created> {
        let owner = new
            .owner
            .id()
            .map(|id| indexed("the owner of the task", id));
        let owner = owner.transpose()?;
        let (worker, lease) = match &new.claimed {
            Some((worker, lease)) => (Some(written(worker)), micros(*lease)),
            None => (None, 0),
        };
        let create = sqlx::query_as(CREATE)
            .bind(new.id.as_str())
            .bind(&new.flow.as_bytes()[..])
            .bind(&owner)
            .bind(written(&new.tool))
            .bind(&new.call)
            .bind(&new.journal)
            .bind(new.status_message.as_deref().map(written))
            .bind(micros(new.ttl))
            .bind(micros(new.poll_interval))
            .bind(lease)
            .bind(worker);
        let created: Vec<(i64,)> = self.database.fetch_all(create).await?;
        let Some((created,)) = created.first() else {
            let get = sqlx::query_as(GET_EXISTING)
                .bind(&owner)
                .bind(new.id.as_str())
                .bind(&new.flow.as_bytes()[..]);
            return existing(self.database.fetch_all(get).await?, read);
        };
        let lease = first_lease(&new);
        Ok(Created::New(made(new, *created), lease))
    }

    pub(super) async fn get_task(&self, id: &TaskId, owner: &Principal) -> Result<Option<Task>> {
        let get = sqlx::query_as(GET)
            .bind(id.as_str())
            .bind(owner.id().map(written));
        let records = self.database.fetch_all(get).await?;
        Ok(tasks(records, read)?.pop().map(|row| row.task))
    }

    pub(super) async fn answer_task(
        &self,
        id: &TaskId,
        owner: &Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> Result<bool> {
        let (keys, answers) = columns(first_of_each(answers, |(key, _)| key));
        let answer = sqlx::query_as(ANSWER)
            .bind(id.as_str())
            .bind(owner.id().map(written))
            .bind(keys)
            .bind(answers);
        let answered: Vec<(bool, Option<bool>)> = self.database.fetch_all(answer).await?;
        let (there, due) = answered.first().copied().unwrap_or_default();
        if let Some(due) = due {
            self.database.hint(id, due, false);
        }
        Ok(there)
    }

    pub(super) async fn cancel_task(&self, id: &TaskId, owner: &Principal) -> Result<bool> {
        let cancel = sqlx::query_as(CANCEL)
            .bind(id.as_str())
            .bind(owner.id().map(written));
        let there: Vec<(bool,)> = self.database.fetch_all(cancel).await?;
        Ok(there == [(true,)])
    }

    pub(super) async fn claim_tasks(&self, claim: Claim<'_>) -> Result<Vec<Claimed>> {
        let take = sqlx::query_as(CLAIM)
            .bind(written(claim.worker))
            .bind(texts(claim.tools))
            .bind(micros(claim.lease))
            .bind(most(claim.most));
        let records: Vec<ClaimRecord> = self.database.fetch_all(take).await?;
        let mut taken = Vec::with_capacity(records.len());
        let mut unread = Vec::new();
        for record in records {
            let (task, answered) = claimed(record, read)?;
            if answered {
                unread.push(task.lease.task.as_str().to_owned());
            }
            taken.push(task);
        }
        if !unread.is_empty() {
            self.add_answers(&mut taken, unread).await?;
        }
        Ok(taken)
    }

    /// Adds their answers to tasks. They are read after the tasks were claimed, so none that was counted is missing.
    async fn add_answers(&self, taken: &mut [Claimed], ids: Vec<String>) -> Result<()> {
        let get = sqlx::query_as(CLAIMED_ANSWERS).bind(ids);
        let records: Vec<(String, String, Vec<u8>)> = self.database.fetch_all(get).await?;
        let mut answers: HashMap<String, Vec<(String, Vec<u8>)>> = HashMap::new();
        for (task, key, answer) in records {
            answers.entry(task).or_default().push((read(key), answer));
        }
        for task in taken {
            let of_task = answers.remove(task.lease.task.as_str());
            task.answers = of_task.unwrap_or_default();
        }
        Ok(())
    }

    pub(super) async fn extend_leases(
        &self,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Lease>> {
        let (ids, fences): (Vec<&str>, Vec<i64>) = leases
            .iter()
            .map(|lease| (lease.task.as_str(), column(lease.fence)))
            .unzip();
        let extend = sqlx::query_as(EXTEND)
            .bind(ids)
            .bind(fences)
            .bind(micros(lease));
        let held: Vec<(String, i64)> = self.database.fetch_all(extend).await?;
        let lease = |(id, fence): (String, i64)| Lease {
            task: task_id(&id),
            fence: fence.unsigned_abs(),
        };
        Ok(held.into_iter().map(lease).collect())
    }

    pub(super) async fn commit_task(&self, lease: &Lease, mut commit: Commit) -> Result<Committed> {
        let seen = commit.is_seen();
        let asks = AskColumns::of(&mut commit);
        let next = NextColumns::from(commit.next);
        let sql = match asks {
            Some(_) => COMMIT_WITH_ASKS,
            None if next.kind == "keep" && !seen => KEEP,
            None => COMMIT,
        };
        let mut query = sqlx::query_as(sql)
            .bind(lease.task.as_str())
            .bind(column(lease.fence))
            .bind(next_commit())
            .bind(commit.journal);
        if sql == KEEP {
            query = query.bind(commit.progress);
        } else {
            query = query
                .bind(commit.status_message.as_deref().map(written))
                .bind(next.kind)
                .bind(next.wait)
                .bind(next.error.as_deref().map(written))
                .bind(next.outcome)
                .bind(commit.progress);
        }
        if let Some(asks) = asks {
            for (key, _) in &asks.publish {
                indexed("the key of an ask", key)?;
            }
            let (keys, published) = columns(asks.publish);
            query = query.bind(keys).bind(published);
            query = query.bind(texts(&asks.taken));
            query = query.bind(texts(&asks.withdrawn));
        }
        let committed = committed(self.database.fetch_all(query).await?)?;
        let due = next.kind == "hand_on" || (next.kind == "set_down" && committed.answers);
        if seen || due {
            self.database.hint(&lease.task, due, true);
        }
        Ok(committed)
    }

    pub(super) async fn unread_answers(&self, lease: &Lease) -> Result<Vec<(String, Vec<u8>)>> {
        let get = sqlx::query_as(ANSWERS)
            .bind(lease.task.as_str())
            .bind(column(lease.fence));
        answers(self.database.fetch_all(get).await?, read)
    }

    pub(super) async fn revisions_of(&self, ids: &[TaskId]) -> Result<Vec<(TaskId, u64)>> {
        let ids: Vec<&str> = ids.iter().map(TaskId::as_str).collect();
        let get = sqlx::query_as("SELECT id, revision FROM refrain_tasks WHERE id = ANY($1)");
        let records = self.database.fetch_all(get.bind(ids)).await?;
        Ok(revisions(records).collect())
    }
}

fn texts(texts: &[String]) -> Vec<String> {
    texts
        .iter()
        .map(|text| written(text).into_owned())
        .collect()
}

/// Keys and values, as two columns.
fn columns(pairs: Vec<(String, Vec<u8>)>) -> (Vec<String>, Vec<Vec<u8>>) {
    let column = |(key, value): (String, Vec<u8>)| (written(&key).into_owned(), value);
    pairs.into_iter().map(column).unzip()
}
