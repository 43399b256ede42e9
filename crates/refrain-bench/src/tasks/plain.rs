//! The floor: the same life of a task, written by hand.
//!
//! | event | written, in one commit each |
//! | --- | --- |
//! | a task is created | the task, with its worker |
//! | it asks, and is set down | the ask, the journal, the status; no worker |
//! | it is answered | the answer, the status, that it is due |
//! | it is claimed | the worker, for as many tasks as are due |
//! | it is completed | the result, the status |
//!
//! Tables and statements are as simple as that allows. There are no principals, no fences, no revisions, no attempts, no
//! times to live and no hints; nothing is run and nothing replayed. Clients are notified within the process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use refrain_core::{Source as _, SystemSource};
use sqlx::SqlSafeStr as _;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::database::Value::{Bytes, Int, Text};
use super::database::{Database, Done, Statement, Value, now};
use crate::error::Error;

/// Tasks claimed at a time, as Refrain's workers do.
const BATCH: i64 = 16;
/// How long a task is claimed for, in microseconds.
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

/// The content of a task, as Refrain has written it.
#[derive(Clone, Debug, Default)]
struct Content {
    owner: String,
    tool: String,
    key: String,
    call: Vec<u8>,
    journal: Vec<u8>,
    outcome: Vec<u8>,
    ask: Vec<u8>,
    answer: Vec<u8>,
}

impl Content {
    /// Copies a completed task of Refrain's.
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

/// The floor at work. Dropping it stops its worker.
pub(crate) struct Floor {
    database: Arc<Database>,
    content: Content,
    waiting: Arc<Waiting>,
    _worker: JoinSet<()>,
}

/// Clients that wait until their task is claimed.
#[derive(Default)]
struct Waiting {
    claimed: Mutex<HashMap<String, oneshot::Sender<()>>>,
    due: Notify,
}

impl Floor {
    pub(crate) async fn start(database: Arc<Database>) -> Result<Self, Error> {
        let content = Content::read(&database).await?;
        let waiting = Arc::new(Waiting::default());
        let mut worker = JoinSet::new();
        worker.spawn(work(database.clone(), waiting.clone()));
        Ok(Self {
            database,
            content,
            waiting,
            _worker: worker,
        })
    }

    /// The whole life of a task.
    pub(crate) async fn life(&self) -> Result<(), Error> {
        let (database, content) = (&self.database, &self.content);
        let id = new_id();
        create(database, &id, content).await?;
        ask(database, &id, content).await?;
        let (claimed, is_claimed) = oneshot::channel();
        self.waiting.claimed.lock().insert(id.clone(), claimed);
        answer(database, &id, content).await?;
        self.waiting.due.notify_one();
        is_claimed.await.map_err(|_| Error::FloorWorker)?;
        complete(database, &id, content).await?;
        Ok(())
    }
}

/// Claims due tasks. A failure ends it, and with it the clients that wait.
async fn work(database: Arc<Database>, waiting: Arc<Waiting>) {
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

async fn create(database: &Database, id: &str, content: &Content) -> Done<()> {
    let Content {
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

async fn ask(database: &Database, id: &str, content: &Content) -> Done<()> {
    let Content {
        key, ask, journal, ..
    } = content;
    let ask = statement(ASK, [Text(id), Text(key), Bytes(ask)]);
    let set_down = statement(SET_DOWN, [Text(id), Bytes(journal), Int(now())]);
    database.execute(vec![ask, set_down]).await
}

async fn answer(database: &Database, id: &str, content: &Content) -> Done<()> {
    let Content { key, answer, .. } = content;
    let answer = statement(ANSWER, [Text(id), Text(key), Bytes(answer)]);
    let answered = statement(ANSWERED, [Text(id), Int(now())]);
    database.execute(vec![answer, answered]).await
}

async fn complete(database: &Database, id: &str, content: &Content) -> Done<()> {
    let values = [Text(id), Bytes(&content.outcome), Int(now())];
    database.execute(vec![statement(COMPLETE, values)]).await
}

/// 192 random bits, as Refrain's ids are.
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
        let content = Content::default();
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
