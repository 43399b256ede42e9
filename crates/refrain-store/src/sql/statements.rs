//! Statements that SQLite and Postgres both understand. SQLite takes `$1` for `?1`.

/// The columns of [`TaskRecord`], of a task `t` and its open asks `a`.
macro_rules! task_columns {
    () => {
        "t.id, t.tool, t.status, t.status_message, t.created, t.updated, t.expires, \
         t.poll_interval, t.revision, t.outcome, t.owner, t.worker, t.due, t.attempts, \
         t.last_error, a.key, a.ask"
    };
}

/// The asks that a task has while it is not over.
macro_rules! open_asks {
    () => {
        "LEFT JOIN refrain_asks a ON a.task = t.id AND a.state = 'open' AND t.due IS NOT NULL"
    };
}

/// The columns of [`ClaimRecord`] that are the task's.
macro_rules! claim_columns {
    () => {
        "id, fence, owner, flow, tool, call, journal, attempts, last_error, ttl, revision, unread"
    };
}

pub(crate) use {claim_columns, open_asks, task_columns};

/// The task `$1` of the owner `$2`.
pub(crate) const GET: &str = concat!(
    "SELECT ",
    task_columns!(),
    " FROM refrain_tasks t ",
    open_asks!(),
    " WHERE t.id = $1 AND t.owner IS NOT DISTINCT FROM $2 ORDER BY a.ord"
);

/// The tasks of the owner `$1` with the id `$2` or the flow `$3`, the flow's first.
pub(crate) const GET_EXISTING: &str = concat!(
    "SELECT ",
    task_columns!(),
    " FROM refrain_tasks t ",
    open_asks!(),
    " WHERE t.owner IS NOT DISTINCT FROM $1 AND (t.id = $2 OR t.flow = $3)
    ORDER BY t.flow = $3 DESC, t.id, a.ord"
);

/// The task `$1` of any owner.
pub(crate) const FIND: &str = concat!(
    "SELECT ",
    task_columns!(),
    " FROM refrain_tasks t ",
    open_asks!(),
    " WHERE t.id = $1 ORDER BY a.ord"
);

/// The unread answers of the task `$1` with the fence `$2`; one row of nulls if there are none, no row if the lease is lost.
pub(crate) const ANSWERS: &str = "
SELECT a.key, a.answer
FROM refrain_tasks t LEFT JOIN refrain_asks a ON a.task = t.id AND a.state = 'answered'
WHERE t.id = $1 AND t.fence = $2 AND t.ended IS NULL
ORDER BY a.ord";

/// Begins the record `$2` of the flow `$1`, kept until `$3`, unless there is one that is kept past `$4`.
pub(crate) const BEGIN_RECORD: &str = "
INSERT INTO refrain_log AS l (flow, name, value, until) VALUES ($1, $2, NULL, $3)
ON CONFLICT (flow, name) DO UPDATE SET value = NULL, until = excluded.until WHERE l.until < $4";

pub(crate) const GET_RECORD: &str = "SELECT value FROM refrain_log WHERE flow = $1 AND name = $2";

pub(crate) const FINISH_RECORD: &str =
    "UPDATE refrain_log SET value = $3 WHERE flow = $1 AND name = $2";

pub(crate) const DELETE_RECORD: &str = "DELETE FROM refrain_log WHERE flow = $1 AND name = $2";

pub(crate) const SCHEMA_VERSION: &str = "SELECT max(version) FROM refrain_schema";

pub(crate) const ADD_SCHEMA_VERSION: &str = "INSERT INTO refrain_schema (version) VALUES ($1)";
