//! The floor (baseline) for tasks: a task's life cycle in hand-written SQL.
//!
//! | event | written in one commit |
//! | --- | --- |
//! | a task is created | the task, with its worker |
//! | it asks and is suspended | the ask, the journal, the status; the worker is cleared |
//! | it is answered | the answer, the status, the due time |
//! | it is claimed | the worker, for all due tasks at once |
//! | it is completed | the result, the status |
//!
//! There are no principals, fences, row versions, attempts or TTLs, and no handler runs. Changes are only notified within
//! the process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use refrain_core::{Source as _, SystemSource};
use sqlx::SqlSafeStr as _;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::database::Value::{Bytes, Int, Text};
use super::database::{Database, DbResult, Statement, Value, now};
use crate::error::Error;

/// The maximum number of tasks in a claim, the same as in Refrain's workers.
const BATCH: i64 = 16;
/// The length of a lease in microseconds.
const LEASE: i64 = 30_000_000;

const CREATE: &str = "
INSERT INTO floor_tasks (id, owner, tool, call, journal, status, created, updated, worker, due)
VALUES ($1, $2, $3, $4, $5, 'working', $6, $6, 'worker', $7)";
const ASK: &str = "INSERT INTO floor_asks (task, key, ask) VALUES ($1, $2, $3)";
const SUSPEND: &str = "
UPDATE floor_tasks SET status = 'input_required', journal = $2, updated = $3, worker = NULL, due = NULL WHERE id = $1";
const ANSWER: &str = "UPDATE floor_asks SET answer = $3 WHERE task = $1 AND key = $2";
const ANSWERED: &str =
    "UPDATE floor_tasks SET status = 'working', updated = $2, due = $2 WHERE id = $1";
const COMPLETE: &str = "
UPDATE floor_tasks SET status = 'completed', outcome = $2, updated = $3, worker = NULL, due = NULL WHERE id = $1";
const CONTENT: &str = "
SELECT owner, tool, key, call, journal, outcome, ask, answer
FROM refrain_tasks t JOIN refrain_asks ON task = id WHERE t.status = 'completed' LIMIT 1";

/// The content of a task, copied from Refrain.
#[derive(Clone, Debug, Default)]
struct TaskContent {
    owner: String,
    tool: String,
    key: String,
    call: Vec<u8>,
    journal: Vec<u8>,
    outcome: Vec<u8>,
    ask: Vec<u8>,
    answer: Vec<u8>,
}

impl TaskContent {
    /// Reads a completed task of Refrain's.
    async fn read(database: &Database) -> DbResult<Self> {
        let (owner, tool, key, call, journal, outcome, ask, answer) =
            database.fetch_one(CONTENT, &[]).await?;
        Ok(Self {
            owner,
            tool,
            key,
            call,
            journal,
            outcome,
            ask,
            answer,
        })
    }
}

/// The running floor for tasks. Its worker stops on drop.
pub(crate) struct TaskFloor {
    database: Arc<Database>,
    content: TaskContent,
    waiting: Arc<WaitingClients>,
    _worker: JoinSet<()>,
}

/// The clients that wait until their task is claimed.
#[derive(Default)]
struct WaitingClients {
    claimed: Mutex<HashMap<String, oneshot::Sender<()>>>,
    /// Wakes the worker when a task is due.
    due: Notify,
}

impl TaskFloor {
    pub(crate) async fn start(database: Arc<Database>) -> Result<Self, Error> {
        let content = TaskContent::read(&database).await?;
        let waiting = Arc::new(WaitingClients::default());
        let mut worker = JoinSet::new();
        worker.spawn(work(database.clone(), waiting.clone()));
        Ok(Self {
            database,
            content,
            waiting,
            _worker: worker,
        })
    }

    pub(crate) async fn run_one_task(&self) -> Result<(), Error> {
        let (database, content) = (&self.database, &self.content);
        let id = new_id();
        create(database, &id, content).await?;
        ask(database, &id, content).await?;
        let (claimed_tx, claimed_rx) = oneshot::channel();
        self.waiting.claimed.lock().insert(id.clone(), claimed_tx);
        answer(database, &id, content).await?;
        self.waiting.due.notify_one();
        claimed_rx.await?;
        complete(database, &id, content).await?;
        Ok(())
    }
}

/// Claims due tasks until a claim fails; then the waiting clients get an error.
async fn work(database: Arc<Database>, waiting: Arc<WaitingClients>) {
    loop {
        waiting.due.notified().await;
        loop {
            let Ok(ids) = database.claim(LEASE, BATCH).await else {
                waiting.claimed.lock().clear();
                return;
            };
            let is_full_batch = ids.len() as i64 == BATCH;
            for id in ids {
                if let Some(claimed) = waiting.claimed.lock().remove(&id) {
                    let _ = claimed.send(());
                }
            }
            if !is_full_batch {
                break;
            }
        }
    }
}

fn statement<'a, const N: usize>(sql: &'static str, values: [Value<'a>; N]) -> Statement<'a> {
    (sql.into_sql_str(), values.into())
}

async fn create(database: &Database, id: &str, content: &TaskContent) -> DbResult<()> {
    let TaskContent {
        owner, tool, call, ..
    } = content;
    let (now, due) = (Int(now()), Int(now() + LEASE));
    let values = [
        Text(id),
        Text(owner),
        Text(tool),
        Bytes(call),
        Bytes(&[]),
        now,
        due,
    ];
    database.execute(vec![statement(CREATE, values)]).await
}

async fn ask(database: &Database, id: &str, content: &TaskContent) -> DbResult<()> {
    let TaskContent {
        key, ask, journal, ..
    } = content;
    let ask = statement(ASK, [Text(id), Text(key), Bytes(ask)]);
    let suspend = statement(SUSPEND, [Text(id), Bytes(journal), Int(now())]);
    database.execute(vec![ask, suspend]).await
}

async fn answer(database: &Database, id: &str, content: &TaskContent) -> DbResult<()> {
    let TaskContent { key, answer, .. } = content;
    let answer = statement(ANSWER, [Text(id), Text(key), Bytes(answer)]);
    let answered = statement(ANSWERED, [Text(id), Int(now())]);
    database.execute(vec![answer, answered]).await
}

async fn complete(database: &Database, id: &str, content: &TaskContent) -> DbResult<()> {
    let values = [Text(id), Bytes(&content.outcome), Int(now())];
    database.execute(vec![statement(COMPLETE, values)]).await
}

/// A random id of 192 bits, like Refrain's.
fn new_id() -> String {
    let mut random = [0; 24];
    SystemSource::new().fill(&mut random);
    refrain_store::TaskId::new(random).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_store::test_postgres::TestPostgres;

    async fn assert_commits(url: &str, counts: [u64; 2]) {
        drop(refrain_store::open(url).await.unwrap());
        let database = Database::open(url).await.unwrap();
        let content = TaskContent::default();
        for tasks in counts {
            let mark = database.mark().await.unwrap();
            for number in 0..tasks {
                let id = format!("{tasks}-{number}");
                create(&database, &id, &content).await.unwrap();
                ask(&database, &id, &content).await.unwrap();
                answer(&database, &id, &content).await.unwrap();
                assert_eq!(database.claim(LEASE, BATCH).await.unwrap(), [id.as_str()]);
                complete(&database, &id, &content).await.unwrap();
            }
            assert_eq!(database.claim(LEASE, BATCH).await.unwrap(), [""; 0]);
            // A transaction that only notifies is not counted.
            if let Database::Postgres(pool) = &database {
                sqlx::query("NOTIFY refrain").execute(pool).await.unwrap();
            }
            assert_eq!(database.commits(mark).await.unwrap(), 5 * tasks);
        }
    }

    #[tokio::test]
    async fn sqlite_commits_are_counted_exactly() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("a.db").display());
        assert_commits(&url, [1, 300]).await;
    }

    #[tokio::test]
    async fn postgres_commits_are_counted_exactly() {
        let cluster = TestPostgres::shared().unwrap();
        assert_commits(&cluster.database().await.unwrap(), [1, 20]).await;
    }
}
