//! What operators do, and the sweep.

use super::PgStore;
use super::text::{read, written};
use crate::sql::{FIND, most, open_asks, task_columns, tasks};
use crate::store::StoreError;
use crate::task::{ListTasks, Swept, TaskId, TaskRow};
use crate::time::micros;
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

const LIST: &str = concat!(
    "SELECT ",
    task_columns!(),
    " FROM
        (SELECT * FROM refrain_tasks
         WHERE ($1 IS NULL OR status = $1) AND ($2 IS NULL OR tool = $2)
         ORDER BY created DESC, id LIMIT $3) t ",
    open_asks!(),
    " ORDER BY t.created DESC, t.id, a.ord"
);

/// One that failed lives anew.
const REQUEUE: &str = concat!(
    "WITH requeued AS (
        UPDATE refrain_tasks
        SET expires = CASE WHEN due IS NULL THEN ",
    now!(),
    " + ttl ELSE expires END,
            status_message = CASE WHEN due IS NOT NULL THEN status_message END,
            ended = NULL, outcome = NULL, worker = NULL, attempts = 0, due = ",
    now!(),
    ",
            status = CASE WHEN open > 0 THEN 'input_required' ELSE 'working' END,
            fence = fence + 1, revision = revision + 1, updated = greatest(updated, ",
    now!(),
    ")
        WHERE id = $1 AND status NOT IN ('completed', 'cancelled')
        RETURNING id
    )
    SELECT pg_notify('refrain', '+o' || id) IS NULL FROM requeued"
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

impl PgStore {
    pub(super) async fn list_tasks(&self, list: ListTasks) -> Result<Vec<TaskRow>> {
        let list = sqlx::query_as(LIST)
            .bind(list.status.map(|status| status.as_str()))
            .bind(list.tool.as_deref().map(written))
            .bind(most(list.most));
        tasks(self.database.fetch_all(list).await?, read)
    }

    pub(super) async fn find_task(&self, id: &TaskId) -> Result<Option<TaskRow>> {
        let find = sqlx::query_as(FIND).bind(id.as_str());
        Ok(tasks(self.database.fetch_all(find).await?, read)?.pop())
    }

    pub(super) async fn requeue_task(&self, id: &TaskId) -> Result<Option<TaskRow>> {
        let requeue = sqlx::query(REQUEUE).bind(id.as_str());
        self.database.execute(requeue).await?;
        self.find_task(id).await
    }

    pub(super) async fn sweep_all(&self, keep: Duration, limit: usize) -> Result<Swept> {
        let sweep = sqlx::query_as(SWEEP).bind(micros(keep)).bind(most(limit));
        let swept: Vec<(i64, i64, i64)> = self.database.fetch_all(sweep).await?;
        let (tasks, records, tokens) = swept.first().copied().unwrap_or_default();
        Ok(Swept {
            tasks: tasks.unsigned_abs(),
            records: records.unsigned_abs(),
            tokens: tokens.unsigned_abs(),
        })
    }
}
