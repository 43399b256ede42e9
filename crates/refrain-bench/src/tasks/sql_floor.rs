//! The floor: the life cycle of a task in hand-written SQL.
//!
//! | event | written, in one commit each |
//! | --- | --- |
//! | a task is created | the task, with its worker |
//! | it asks, and is set down | the ask, the journal, the status; no worker |
//! | it is answered | the answer, the status, that it is due |
//! | it is claimed | the worker, for as many tasks as are due |
//! | it is completed | the result, the status |
//!
//! Tables and statements are minimal: no principals, fences, revisions, attempts, time to live or hints. No handler runs.
//! Clients are notified within the process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use refrain_core::{Source as _, SystemSource};
use sqlx::SqlSafeStr as _;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::database::Value::{Bytes, Int, Text};
use super::database::{Database, Done, Statement, Value, now};
use crate::error::BenchError;

/// Tasks claimed at a time, as Refrain's workers do.
const BATCH: i64 = 16;
/// The lease of a claim, in microseconds.
const LEASE: i64 = 30_000_000;

const CREATE: &str = "
INSERT INTO floor_tasks (id, owner, tool, call, journal, status, created, updated, worker, due)
VALUES ($1, $2, $3, $4, $5, 'working', $6, $6, 'worker', $7)";
const ASK: &str = "INSERT INTO floor_asks (task, key, ask) VALUES ($1, $2, $3)";
const SET_DOWN: &str = "
UPDATE floor_tasks SET status = 'input_required', journal = $2, updated = $3, worker = NULL, due = NULL WHERE id = $1";
const ANSWER: &str = "UPDATE floor_asks SET answer = $3 WHERE task = $1 AND key = $2";
const ANSWERED: &str =
    "UPDATE floor_tasks SET status = 'working', updated = $2, due = $2 WHERE id = $1";
const COMPLETE: &str = "
UPDATE floor_tasks SET status = 'completed', outcome = $2, updated = $3, worker = NULL, due = NULL WHERE id = $1";
const CONTENT: &str = "
SELECT owner, tool, key, call, journal, outcome, ask, answer
FROM refrain_tasks t JOIN refrain_asks ON task = id WHERE t.status = 'completed' LIMIT 1";

type ContentRow = (
    String,
    String,
    String,
    Vec<u8>,
    Vec<u8>,
    Vec<u8>,
    Vec<u8>,
    Vec<u8>,
);

/// The content of a task, as written by Refrain.
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
    /// Copies the content of a completed task of Refrain.
    async fn read(database: &Database) -> Done<Self> {
        let row: ContentRow = database.fetch_one(CONTENT, &[]).await?;
        let (owner, tool, key, call, journal, outcome, ask, answer) = row;
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

/// The running floor. Dropping it stops its worker.
pub(crate) struct SqlFloor {
    database: Arc<Database>,
    content: TaskContent,
    waiting: Arc<WaitingClients>,
    _worker: JoinSet<()>,
}

/// Clients that wait for the claim of their task.
#[derive(Default)]
struct WaitingClients {
    claimed: Mutex<HashMap<String, oneshot::Sender<()>>>,
    due: Notify,
}

impl SqlFloor {
    pub(crate) async fn start(database: Arc<Database>) -> Result<Self, BenchError> {
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

    /// Runs the whole life cycle of a task.
    pub(crate) async fn life(&self) -> Result<(), BenchError> {
        let (database, content) = (&self.database, &self.content);
        let id = new_id();
        create(database, &id, content).await?;
        ask(database, &id, content).await?;
        let (claimed, is_claimed) = oneshot::channel();
        self.waiting.claimed.lock().insert(id.clone(), claimed);
        answer(database, &id, content).await?;
        self.waiting.due.notify_one();
        is_claimed.await.map_err(|_| BenchError::FloorWorker)?;
        complete(database, &id, content).await?;
        Ok(())
    }
}

/// Claims due tasks. A failure ends the worker and fails the waiting clients.
async fn work(database: Arc<Database>, waiting: Arc<WaitingClients>) {
    loop {
        waiting.due.notified().await;
        loop {
            let Ok(ids) = database.claim(LEASE, BATCH).await else {
                waiting.claimed.lock().clear();
                return;
            };
            let all = ids.len() as i64 == BATCH;
            for id in ids {
                if let Some(claimed) = waiting.claimed.lock().remove(&id) {
                    let _ = claimed.send(());
                }
            }
            if !all {
                break;
            }
        }
    }
}

fn statement<'a, const N: usize>(sql: &'static str, values: [Value<'a>; N]) -> Statement<'a> {
    (sql.into_sql_str(), values.into())
}

async fn create(database: &Database, id: &str, content: &TaskContent) -> Done<()> {
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

async fn ask(database: &Database, id: &str, content: &TaskContent) -> Done<()> {
    let TaskContent {
        key, ask, journal, ..
    } = content;
    let ask = statement(ASK, [Text(id), Text(key), Bytes(ask)]);
    let set_down = statement(SET_DOWN, [Text(id), Bytes(journal), Int(now())]);
    database.execute(vec![ask, set_down]).await
}

async fn answer(database: &Database, id: &str, content: &TaskContent) -> Done<()> {
    let TaskContent { key, answer, .. } = content;
    let answer = statement(ANSWER, [Text(id), Text(key), Bytes(answer)]);
    let answered = statement(ANSWERED, [Text(id), Int(now())]);
    database.execute(vec![answer, answered]).await
}

async fn complete(database: &Database, id: &str, content: &TaskContent) -> Done<()> {
    let values = [Text(id), Bytes(&content.outcome), Int(now())];
    database.execute(vec![statement(COMPLETE, values)]).await
}

/// 192 random bits, like Refrain's ids.
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
            if let Database::Postgres(pool) = &database {
                sqlx::query("NOTIFY refrain").execute(pool).await.unwrap();
            }
            assert_eq!(database.commits(mark).await.unwrap(), 5 * tasks);
        }
    }

    #[tokio::test]
    async fn commits_to_sqlite_are_counted_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("a.db").display());
        assert_commits(&url, [1, 300]).await;
    }

    #[tokio::test]
    async fn commits_to_postgres_are_counted_and_nothing_else() {
        let cluster = TestPostgres::shared().unwrap();
        assert_commits(&cluster.database().await.unwrap(), [1, 20]).await;
    }
}
