//! The floor: the same life of a task, written by hand.
//!
//! | what happens | what is written, in one commit each |
//! | --- | --- |
//! | a task is made | the task, with the worker that has it |
//! | it asks, and is set down | the ask, the journal, the status; the worker is gone |
//! | it is answered | the answer, the status, that it is due |
//! | it is taken | the worker, for as many tasks as are due |
//! | it is completed | the result, the status |
//!
//! Tables and statements are as simple as that allows. There are no principals, no fences, no revisions, no attempts, no
//! times to live and no hints; nothing is run and nothing replayed. Whoever waits is told within the process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use refrain_core::{Source as _, SystemSource};
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::error::Error;

/// Tasks taken at a time, as Refrain's workers do.
pub(crate) const BATCH: i64 = 16;
/// How long a task is taken for, in microseconds.
pub(crate) const LEASE: i64 = 30_000_000;

// Statements that SQLite and Postgres both understand.
pub(crate) const ASK: &str = "INSERT INTO floor_asks (task, key, ask) VALUES ($1, $2, $3)";
pub(crate) const ANSWER: &str = "UPDATE floor_asks SET answer = $3 WHERE task = $1 AND key = $2";
pub(crate) const SELECT: &str = "
SELECT id, tool, status, status_message, created, updated, expires, poll_interval, revision, outcome
FROM refrain_tasks WHERE id = $1";
pub(crate) const CONTENT: &str = "
SELECT owner, tool, call, journal, outcome, key, ask, answer
FROM refrain_tasks t JOIN refrain_asks ON task = id WHERE t.status = 'completed' LIMIT 1";
pub(crate) const TASKS: &str =
    "SELECT count(*), count(*) FILTER (WHERE status = 'completed') FROM refrain_tasks";
pub(crate) const WAITING: &str =
    "SELECT count(*) FROM refrain_tasks WHERE status = 'input_required'";

/// What a task holds, as Refrain has written it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) owner: String,
    pub(crate) tool: String,
    pub(crate) call: Vec<u8>,
    pub(crate) journal: Vec<u8>,
    pub(crate) outcome: Vec<u8>,
    pub(crate) key: String,
    pub(crate) ask: Vec<u8>,
    pub(crate) answer: Vec<u8>,
}

impl<'r, R: Row> FromRow<'r, R> for Content
where
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Done<Self> {
        Ok(Self {
            owner: row.try_get(0)?,
            tool: row.try_get(1)?,
            call: row.try_get(2)?,
            journal: row.try_get(3)?,
            outcome: row.try_get(4)?,
            key: row.try_get(5)?,
            ask: row.try_get(6)?,
            answer: row.try_get(7)?,
        })
    }
}

type Done<T> = Result<T, sqlx::Error>;

/// A database with both kinds of tables: Refrain's, and the floor's.
pub(crate) trait Plain: Sized + Send + Sync + 'static {
    /// What is known of a database when counting begins.
    type Mark: Send;

    /// Connects, and makes the tables of the floor anew.
    fn open(url: &str) -> impl Future<Output = Done<Self>> + Send;

    /// Its name and version.
    fn version(&self) -> impl Future<Output = Done<String>> + Send;

    /// How many tasks Refrain has in it, and how many of them are completed.
    fn tasks(&self) -> impl Future<Output = Done<(i64, i64)>> + Send;

    /// What a completed task of Refrain's holds.
    fn content(&self) -> impl Future<Output = Done<Content>> + Send;

    fn create(&self, id: &str, content: &Content) -> impl Future<Output = Done<()>> + Send;
    fn ask(&self, id: &str, content: &Content) -> impl Future<Output = Done<()>> + Send;
    fn answer(&self, id: &str, content: &Content) -> impl Future<Output = Done<()>> + Send;
    /// Takes what is due, and reads all that is needed to carry it on.
    fn claim(&self) -> impl Future<Output = Done<Vec<String>>> + Send;
    fn complete(&self, id: &str, content: &Content) -> impl Future<Output = Done<()>> + Send;

    /// Reads the row of a task of Refrain's.
    fn select(&self, id: &str) -> impl Future<Output = Done<()>> + Send;

    /// Copies a task of Refrain's that waits, until there are so many that do.
    fn copy(&self, id: &str, waiting: u64) -> impl Future<Output = Done<()>> + Send;

    /// Begins to count commits, of whoever makes them.
    fn mark(&self) -> impl Future<Output = Result<Self::Mark, Error>> + Send;
    /// The commits since then.
    fn commits(&self, mark: Self::Mark) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// The floor at work. It is gone with this value.
pub(crate) struct Floor<P> {
    plain: Arc<P>,
    content: Content,
    waiting: Arc<Waiting>,
    _worker: JoinSet<()>,
}

/// Who waits to carry on a task that is due.
#[derive(Default)]
struct Waiting {
    taken: Mutex<HashMap<String, oneshot::Sender<()>>>,
    due: Notify,
}

impl<P: Plain> Floor<P> {
    pub(crate) fn start(plain: Arc<P>, content: Content) -> Self {
        let waiting = Arc::new(Waiting::default());
        let mut worker = JoinSet::new();
        worker.spawn(work(plain.clone(), waiting.clone()));
        Self {
            plain,
            content,
            waiting,
            _worker: worker,
        }
    }

    /// The whole life of a task.
    pub(crate) async fn life(&self) -> Result<(), Error> {
        let (plain, content) = (&self.plain, &self.content);
        let id = new_id();
        plain.create(&id, content).await?;
        plain.ask(&id, content).await?;
        let (taken, is_taken) = oneshot::channel();
        self.waiting.taken.lock().insert(id.clone(), taken);
        plain.answer(&id, content).await?;
        self.waiting.due.notify_one();
        is_taken.await.map_err(|_| Error::FloorWorker)?;
        plain.complete(&id, content).await?;
        Ok(())
    }
}

/// Takes what is due, whenever something is. A failure ends it, and then those who wait.
async fn work<P: Plain>(plain: Arc<P>, waiting: Arc<Waiting>) {
    loop {
        waiting.due.notified().await;
        loop {
            let Ok(claimed) = plain.claim().await else {
                waiting.taken.lock().clear();
                return;
            };
            let all = claimed.len() as i64 == BATCH;
            for id in claimed {
                if let Some(taken) = waiting.taken.lock().remove(&id) {
                    let _ = taken.send(());
                }
            }
            if !all {
                break;
            }
        }
    }
}

/// 192 random bits, as Refrain's ids are.
fn new_id() -> String {
    let mut random = [0; 24];
    SystemSource::new().fill(&mut random);
    refrain_store::TaskId::new(random).to_string()
}

/// The statements that copy the task `$1` and its asks, once for each row of the table `made`.
pub(crate) fn copies(tasks: &[String], asks: &[String]) -> [String; 2] {
    let task = [("id", "m.id"), ("flow", "m.flow")];
    let ask = [("task", "m.id")];
    [
        copying("refrain_tasks", tasks, &task, "made m WHERE t.id = $1"),
        copying("refrain_asks", asks, &ask, "made m WHERE t.task = $1"),
    ]
}

/// The statement that copies one row of a table, with other values in some of its columns.
fn copying(table: &str, columns: &[String], other: &[(&str, &str)], from: &str) -> String {
    let value = |column: &String| {
        let other = other.iter().find(|(name, _)| name == column);
        other.map_or_else(|| format!("t.{column}"), |(_, value)| (*value).to_owned())
    };
    let values: Vec<String> = columns.iter().map(value).collect();
    let (columns, values) = (columns.join(", "), values.join(", "));
    format!("INSERT INTO {table} ({columns}) SELECT {values} FROM {table} t, {from}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_differs_in_the_named_columns_only() {
        let columns = ["id".to_owned(), "tool".to_owned()];
        let copy = copying("tasks", &columns, &[("id", "n.id")], "n WHERE t.id = ?1");
        assert_eq!(
            copy,
            "INSERT INTO tasks (id, tool) SELECT n.id, t.tool FROM tasks t, n WHERE t.id = ?1"
        );
    }
}
