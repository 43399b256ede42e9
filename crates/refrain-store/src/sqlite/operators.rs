//! What operators do, and the sweep.

use super::file::begin;
use super::{SqliteStore, now, text};
use crate::sql::{FIND, TaskRecord, most, open_asks, task_columns, tasks};
use crate::store::StoreError;
use crate::task::{ListTasks, Swept, TaskId, TaskRow};
use crate::time::micros;
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

const LIST: &str = concat!(
    "SELECT ",
    task_columns!(),
    " FROM
        (SELECT *, rowid AS number FROM refrain_tasks
         WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR tool = ?2)
         ORDER BY created DESC, rowid DESC LIMIT ?3) t ",
    open_asks!(),
    " ORDER BY t.created DESC, t.number DESC, a.ord"
);

/// One that failed lives anew. In `SET`, columns are what they were before.
const REQUEUE: &str = "
UPDATE refrain_tasks
SET expires = CASE WHEN due IS NULL THEN ?2 + ttl ELSE expires END,
    status_message = CASE WHEN due IS NOT NULL THEN status_message END,
    ended = NULL, outcome = NULL, worker = NULL, attempts = 0, due = ?2,
    status = CASE WHEN open > 0 THEN 'input_required' ELSE 'working' END,
    fence = fence + 1, revision = revision + 1, updated = max(updated, ?2)
WHERE id = ?1 AND status NOT IN ('completed', 'cancelled')";

macro_rules! over {
    () => {
        "(SELECT id FROM refrain_tasks WHERE ended IS NOT NULL AND expires <= ?1 AND ended <= ?2 \
          ORDER BY expires, id LIMIT ?3)"
    };
}

const SWEEP_ASKS: &str = concat!("DELETE FROM refrain_asks WHERE task IN ", over!());
const SWEEP_TASKS: &str = concat!("DELETE FROM refrain_tasks WHERE id IN ", over!());
const SWEEP_LOG: &str = "
DELETE FROM refrain_log
WHERE rowid IN (SELECT rowid FROM refrain_log WHERE until < ?1 ORDER BY until LIMIT ?2)";
const SWEEP_TOKENS: &str = "
DELETE FROM refrain_tokens
WHERE rowid IN (SELECT rowid FROM refrain_tokens WHERE until <= ?1 ORDER BY until LIMIT ?2)";

impl SqliteStore {
    pub(super) async fn list_tasks(&self, list: ListTasks) -> Result<Vec<TaskRow>> {
        let records: Vec<TaskRecord> = sqlx::query_as(LIST)
            .bind(list.status.map(|status| status.as_str()))
            .bind(list.tool)
            .bind(most(list.most))
            .fetch_all(&self.file.readers)
            .await?;
        tasks(records, text)
    }

    pub(super) async fn find_task(&self, id: &TaskId) -> Result<Option<TaskRow>> {
        let records: Vec<TaskRecord> = sqlx::query_as(FIND)
            .bind(id.as_str())
            .fetch_all(&self.file.readers)
            .await?;
        Ok(tasks(records, text)?.pop())
    }

    pub(super) async fn requeue_task(&self, id: &TaskId) -> Result<Option<TaskRow>> {
        let mut writer = self.file.writer().await?;
        let mut tx = begin(&mut writer).await?;
        let requeued = sqlx::query(REQUEUE)
            .bind(id.as_str())
            .bind(now())
            .execute(&mut *tx)
            .await?;
        let records: Vec<TaskRecord> = sqlx::query_as(FIND)
            .bind(id.as_str())
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        if requeued.rows_affected() > 0 {
            self.hint(id, true, false);
        }
        Ok(tasks(records, text)?.pop())
    }

    pub(super) async fn sweep_all(&self, keep: Duration, limit: usize) -> Result<Swept> {
        let limit = most(limit);
        let mut writer = self.file.writer().await?;
        let mut tx = begin(&mut writer).await?;
        let now = now();
        let over = |sql: &'static str| {
            let query = sqlx::query(sql).bind(now);
            query.bind(now - micros(keep)).bind(limit)
        };
        over(SWEEP_ASKS).execute(&mut *tx).await?;
        let tasks = over(SWEEP_TASKS).execute(&mut *tx).await?;
        let log = sqlx::query(SWEEP_LOG).bind(now / 1_000_000).bind(limit);
        let log = log.execute(&mut *tx).await?;
        let tokens = sqlx::query(SWEEP_TOKENS).bind(now).bind(limit);
        let tokens = tokens.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(Swept {
            tasks: tasks.rows_affected(),
            records: log.rows_affected(),
            tokens: tokens.rows_affected(),
        })
    }
}
