//! SQL statements and fragments for SQLite and Postgres. All parameters are written `$N`, since SQLite does not allow
//! mixing `$N` and `?N`.
//!
//! In `SET`, columns on the right have the values before the statement. A task that has not ended has `due` and no `ended`.
//! A task that can be claimed has a `turn`. A statement that makes a task due at once gives it a turn. A task whose wait or
//! lease has ended gets its turn from the next claim; until then the worker of the expired lease can still write.

/// Selects [`TaskRecord`](super::TaskRecord)s: the tasks `t` of the table or query `$tasks`, and their open asks `a`.
macro_rules! select_tasks {
    ($tasks:literal) => {
        concat!(
            "SELECT t.id, t.tool, t.status, t.status_message, t.created, t.updated, t.expires,
                t.poll_interval, t.revision, t.outcome, t.owner, t.worker, t.due, t.attempts,
                t.last_error, a.key, a.ask
            FROM ",
            $tasks,
            " t LEFT JOIN refrain_asks a
                ON a.task = t.id AND a.state = 'open' AND t.due IS NOT NULL"
        )
    };
}

/// The columns of a task in [`ClaimRecord`](super::ClaimRecord).
macro_rules! claim_columns {
    () => {
        "id, fence, owner, flow, tool, call, journal, attempts, last_error, ttl, revision, unread, account"
    };
}

/// The turn of a task that becomes ready: after the other ready tasks of its account, and after the last claimed turn. So
/// each account has one task in each turn, and the first task of a new account comes next.
macro_rules! next_turn {
    ($account:literal, $greatest:literal) => {
        concat!(
            "(1 + ",
            $greatest,
            "((SELECT last FROM refrain_turns), coalesce((
                SELECT r.turn FROM refrain_tasks r
                WHERE coalesce(r.account, r.owner, '') = coalesce(",
            $account,
            ", '') AND r.turn IS NOT NULL
                ORDER BY r.turn DESC LIMIT 1), 0)))"
        )
    };
}

/// The bytes of the account after it grows by `$growth`.
macro_rules! own_bytes {
    ($account:literal, $growth:expr) => {
        concat!(
            "coalesce((SELECT sum(u.bytes) FROM refrain_usage u WHERE u.owner = '=' || coalesce(",
            $account,
            ", '')), 0) + ",
            $growth
        )
    };
}

/// The bytes of all accounts after they grow by `$growth`.
macro_rules! all_bytes {
    ($growth:expr) => {
        concat!(
            "coalesce((SELECT sum(u.bytes) FROM refrain_usage u WHERE u.owner = '*'), 0) + ",
            $growth
        )
    };
}

/// Whether the account may add `$growth` bytes. See [`Quota::check`](crate::quota::Quota::check).
macro_rules! within_quota {
    ($account:literal, $growth:expr, $bytes:literal, $total:expr) => {
        concat!(
            "(",
            own_bytes!($account, $growth),
            " <= ",
            $bytes,
            " AND (",
            all_bytes!($growth),
            " <= ",
            $total,
            " - ",
            $total,
            " / 4 OR (",
            all_bytes!($growth),
            " <= ",
            $total,
            " AND ",
            own_bytes!($account, $growth),
            " <= ",
            $bytes,
            " / 16)))"
        )
    };
}

/// The bytes that a commit adds to a task `t`; `$asks` is the size of new asks. A completed task keeps only its outcome, asks and
/// answers.
macro_rules! commit_growth {
    ($asks:literal) => {
        concat!(
            "(coalesce(length($9), 0) + ",
            $asks,
            " + CASE
                WHEN $6 = 'complete' THEN - length(t.call) - length(t.journal)
                ELSE coalesce(length($4) - length(t.journal), 0) END)"
        )
    };
}

/// The limit of all bytes for a task `t`: `$14` if its owner is anonymous, otherwise `$13`.
macro_rules! total_of_task {
    () => {
        "(CASE WHEN t.owner IS NULL THEN $14 ELSE $13 END)"
    };
}

/// Whether the quota allows a commit to a task `t`. A task may fail in any case.
macro_rules! commit_allowed {
    ($asks:literal, $bytes:literal, $total:expr) => {
        concat!(
            "($6 = 'fail' OR ",
            commit_growth!($asks),
            " <= 0 OR ",
            within_quota!("t.account, t.owner", commit_growth!($asks), $bytes, $total),
            ")"
        )
    };
}

/// Inserts a task at the time `$now`, within the quota. The parameters from `$1`: id, flow, owner, tool, call, journal,
/// message, TTL, poll interval, lease, worker, size, the limits of tasks, bytes and all bytes, the account, and the webhooks.
macro_rules! insert_task {
    ($now:expr, $greatest:literal) => {
        concat!(
            "INSERT INTO refrain_tasks
                (id, flow, owner, tool, call, journal, status, status_message, created, updated, ttl,
                 poll_interval, expires, due, worker, fence, attempts, revision, last_commit, open, unread, turn, account, webhooks)
            SELECT $1, $2, $3, $4, $5, $6, 'working', $7, ", $now, ", ", $now, ", $8,
                 $9, ", $now, " + $8, ", $now, " + $10, $11, CASE WHEN $11 IS NULL THEN 0 ELSE 1 END,
                 CASE WHEN $11 IS NULL THEN 0 ELSE 1 END, 1, 0, 0, 0,
                 CASE WHEN $11 IS NULL THEN ", next_turn!("$16", $greatest), " END, $16, $17
            WHERE coalesce((SELECT sum(u.tasks) FROM refrain_usage u WHERE u.owner = '=' || coalesce($16, '')), 0) < $13
                AND ", within_quota!("$16", "$12", "$14", "$15"), "
            ON CONFLICT DO NOTHING"
        )
    };
}

/// The `SET` clause that updates a task `t` after `$new` new answers of `$bytes` bytes.
macro_rules! set_answered {
    ($new:literal, $bytes:literal, $now:expr, $greatest:literal, $least:literal) => {
        concat!(
            "SET open = t.open - ",
            $new,
            ", unread = t.unread + ",
            $new,
            ", extra = t.extra + ",
            $bytes,
            ",
                status = CASE WHEN t.open > ",
            $new,
            " THEN 'input_required' ELSE 'working' END,
                updated = ",
            $greatest,
            "(t.updated, ",
            $now,
            "), revision = t.revision + 1,
                due = CASE WHEN t.worker IS NULL THEN ",
            $least,
            "(t.due, ",
            $now,
            ") ELSE t.due END,
                turn = CASE WHEN t.worker IS NULL AND t.turn IS NULL THEN ",
            next_turn!("t.account, t.owner", $greatest),
            " ELSE t.turn END"
        )
    };
}

/// The `SET` clause that cancels a task. It drops the data that is only needed to run the task.
macro_rules! set_cancelled {
    ($now:expr, $greatest:literal) => {
        concat!(
            "SET status = 'cancelled', status_message = NULL, updated = ",
            $greatest,
            "(updated, ",
            $now,
            "),
                call = coalesce(substr(call, 1, 0), call),
                journal = coalesce(substr(journal, 1, 0), journal), ended = ",
            $now,
            ", due = NULL, turn = NULL, worker = NULL, fence = fence + 1, revision = revision + 1"
        )
    };
}

/// The `SET` and `WHERE` clauses that requeue a task. The time to live of a failed task restarts.
macro_rules! set_requeued {
    ($now:expr, $greatest:literal) => {
        concat!(
            "SET expires = CASE WHEN due IS NULL THEN ",
            $now,
            " + ttl ELSE expires END,
                status_message = CASE WHEN due IS NOT NULL THEN status_message END,
                ended = NULL, outcome = NULL, worker = NULL, attempts = 0, due = ",
            $now,
            ", turn = ",
            next_turn!("refrain_tasks.account, refrain_tasks.owner", $greatest),
            ",
                status = CASE WHEN open > 0 THEN 'input_required' ELSE 'working' END,
                fence = fence + 1, revision = revision + 1, updated = ",
            $greatest,
            "(updated, ",
            $now,
            ")
            WHERE id = $1 AND status NOT IN ('completed', 'cancelled')"
        )
    };
}

/// The `SET` clause that writes a commit to a task `t`; `$open`, `$unread` and `$extra` are the changes of these columns.
/// A completed task keeps only its outcome, asks and answers. The parameters from `$3`:
/// commit number, journal, message, the variant of `Next`, wait, error, outcome, progress.
macro_rules! set_committed {
    ($open:literal, $unread:literal, $extra:literal, $now:expr, $greatest:literal, $least:literal) => {
        concat!(
            "SET journal = CASE WHEN $6 = 'complete' THEN coalesce(substr(t.journal, 1, 0), t.journal) ELSE coalesce($4, t.journal) END,
                call = CASE WHEN $6 = 'complete' THEN coalesce(substr(t.call, 1, 0), t.call) ELSE t.call END,
                extra = t.extra + ", $extra, ",
                attempts = CASE WHEN $10 THEN 0
                    WHEN $6 IN ('suspend', 'hand_on') THEN ", $greatest, "(t.attempts - 1, 0) ELSE t.attempts END,
                status_message = CASE WHEN $6 = 'complete' THEN $5 ELSE coalesce($5, t.status_message) END,
                last_error = CASE WHEN $6 = 'retry' THEN $8 WHEN NOT $10 THEN t.last_error END,
                open = t.open + ", $open, ",
                unread = t.unread + ", $unread, ",
                status = CASE WHEN $6 = 'complete' THEN 'completed' WHEN $6 = 'fail' THEN 'failed'
                    WHEN t.open + ", $open, " > 0 THEN 'input_required' ELSE 'working' END,
                due = CASE WHEN $6 = 'keep' THEN t.due
                    WHEN $6 = 'hand_on' OR ($6 = 'suspend' AND t.unread + ", $unread, " > 0) THEN ", $now, "
                    WHEN $6 IN ('suspend', 'retry') THEN ", $least, "(t.expires, ", $now, " + $7) END,
                turn = CASE WHEN $6 = 'keep' THEN t.turn
                    WHEN $6 = 'hand_on' OR ($6 = 'suspend' AND t.unread + ", $unread, " > 0)
                    THEN ", next_turn!("t.account, t.owner", $greatest), " END,
                worker = CASE WHEN $6 = 'keep' THEN t.worker END,
                ended = CASE WHEN $6 IN ('complete', 'fail') THEN ", $now, " END,
                outcome = $9, updated = ", $greatest, "(t.updated, ", $now, "),
                revision = t.revision + 1, last_commit = $3"
        )
    };
}

/// The `SET` clause that makes a task ready whose wait or lease has ended. The table `overdue` has its account, and its rank
/// among the account's overdue tasks.
macro_rules! set_promoted {
    ($greatest:literal) => {
        concat!(
            "SET turn = overdue.rank - 1 + ",
            next_turn!("overdue.account", $greatest)
        )
    };
}

/// The tool of the task `$1` of the owner `$2`, with each of its open asks whose key matches the condition. The row of a task
/// is read only up to its tool: in SQLite, columns after large content cost as much as the content. So whether the task has
/// ended is read only if there is such an ask.
macro_rules! open_asks {
    ($in_list:expr) => {
        concat!(
            "SELECT t.tool, a.key, a.ask
            FROM refrain_tasks t LEFT JOIN refrain_asks a
                ON a.task = t.id AND a.state = 'open' AND a.key ",
            $in_list,
            "
                AND EXISTS (SELECT 1 FROM refrain_tasks e WHERE e.id = a.task AND e.ended IS NULL)
            WHERE t.id = $1 AND t.owner IS NOT DISTINCT FROM $2 ORDER BY a.ord"
        )
    };
}

/// The revisions of the tasks whose ids match the condition.
macro_rules! revisions {
    ($in_list:literal) => {
        concat!("SELECT id, revision FROM refrain_tasks WHERE id ", $in_list)
    };
}

/// The unread answers of the tasks whose ids match the condition.
macro_rules! answers_of {
    ($in_list:literal) => {
        concat!(
            "SELECT task, key, answer FROM refrain_asks WHERE task ",
            $in_list,
            " AND state = 'answered' ORDER BY task, ord"
        )
    };
}

pub(crate) use {
    all_bytes, answers_of, claim_columns, commit_allowed, commit_growth, insert_task, next_turn,
    open_asks, own_bytes, revisions, set_answered, set_cancelled, set_committed, set_promoted,
    set_requeued, total_of_task, within_quota,
};

/// The task `$1` of the owner `$2`.
pub(crate) const GET: &str = concat!(
    select_tasks!("refrain_tasks"),
    " WHERE t.id = $1 AND t.owner IS NOT DISTINCT FROM $2 ORDER BY a.ord"
);

/// The tasks of the owner `$1` with the id `$2` or the flow `$3`; a match of the flow comes first.
pub(crate) const GET_EXISTING: &str = concat!(
    select_tasks!("refrain_tasks"),
    " WHERE t.owner IS NOT DISTINCT FROM $1 AND (t.id = $2 OR t.flow = $3)
    ORDER BY t.flow = $3 DESC, t.id, a.ord"
);

/// The task `$1` of any owner.
pub(crate) const FIND: &str = concat!(
    select_tasks!("refrain_tasks"),
    " WHERE t.id = $1 ORDER BY a.ord"
);

/// The usage of the account `$1`, and the bytes of all accounts.
pub(crate) const USAGE: &str = "
SELECT CAST(coalesce(sum(CASE WHEN owner <> '*' THEN tasks END), 0) AS BIGINT),
    CAST(coalesce(sum(CASE WHEN owner <> '*' THEN bytes END), 0) AS BIGINT),
    CAST(coalesce(sum(CASE WHEN owner = '*' THEN bytes END), 0) AS BIGINT)
FROM refrain_usage WHERE owner IN ('=' || $1, '*')";

/// The account of the task `$1`, if the fence `$2` holds its lease and the commit number `$3` is new.
pub(crate) const COMMITTABLE_ACCOUNT: &str = "
SELECT coalesce(account, owner, '') FROM refrain_tasks WHERE id = $1 AND fence = $2 AND ended IS NULL AND last_commit < $3";

/// The latest tasks with the status `$1` and the tool `$2`, at most `$3`.
pub(crate) const LIST: &str = concat!(
    select_tasks!(
        "(SELECT * FROM refrain_tasks WHERE ($1 IS NULL OR status = $1) AND ($2 IS NULL OR tool = $2)
          ORDER BY created DESC, id LIMIT $3)"
    ),
    " ORDER BY t.created DESC, t.id, a.ord"
);

/// The unread answers of the task `$1` with the fence `$2`. Without unread answers, one row of nulls; after a lost lease,
/// no row.
pub(crate) const ANSWERS: &str = "
SELECT a.key, a.answer
FROM refrain_tasks t LEFT JOIN refrain_asks a ON a.task = t.id AND a.state = 'answered'
WHERE t.id = $1 AND t.fence = $2 AND t.ended IS NULL
ORDER BY a.ord";

/// Begins the record `$2` of the flow `$1`, kept until `$3`, unless a record exists that has not expired at `$4`. It counts
/// for the account `$5`, which may add `$6` bytes within the limits `$7` and `$8`.
pub(crate) const BEGIN_RECORD: &str = concat!(
    "INSERT INTO refrain_log AS l (flow, name, value, until, account)
    SELECT $1, $2, NULL, $3, $5 WHERE ",
    within_quota!("$5", "$6", "$7", "$8"),
    "
    ON CONFLICT (flow, name) DO UPDATE SET value = NULL, until = excluded.until, account = excluded.account
    WHERE l.until < $4
    RETURNING 1"
);

/// The outcome of the record `$2` of the flow `$1`, if it has not expired at `$3`.
pub(crate) const GET_RECORD: &str =
    "SELECT value FROM refrain_log WHERE flow = $1 AND name = $2 AND until >= $3";

pub(crate) const FINISH_RECORD: &str =
    "UPDATE refrain_log SET value = $3 WHERE flow = $1 AND name = $2";

pub(crate) const DELETE_RECORD: &str = "DELETE FROM refrain_log WHERE flow = $1 AND name = $2";
