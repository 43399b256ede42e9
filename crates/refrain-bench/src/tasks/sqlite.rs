//! The floor in a file of SQLite: one connection that writes, a few that read, every commit on the disk.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};
use tokio::sync::Mutex;

use super::plain::{
    ANSWER, ASK, BATCH, CONTENT, Content, LEASE, Plain, SELECT, TASKS, WAITING, copies,
};
use crate::error::Error;

type Done<T> = Result<T, sqlx::Error>;

/// Connections that read, as many as Refrain's store has.
const READERS: u32 = 4;

const TABLES: &str = "
DROP TABLE IF EXISTS floor_tasks;
DROP TABLE IF EXISTS floor_asks;
CREATE TABLE floor_tasks (
    id      TEXT    NOT NULL PRIMARY KEY,
    owner   TEXT    NOT NULL,
    tool    TEXT    NOT NULL,
    call    BLOB    NOT NULL,
    journal BLOB    NOT NULL,
    status  TEXT    NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    worker  TEXT,
    due     INTEGER,
    outcome BLOB
);
CREATE INDEX floor_tasks_due ON floor_tasks (due) WHERE due IS NOT NULL;
CREATE TABLE floor_asks (
    task   TEXT NOT NULL,
    key    TEXT NOT NULL,
    ask    BLOB NOT NULL,
    answer BLOB,
    PRIMARY KEY (task, key)
);
";

const CREATE: &str = "
INSERT INTO floor_tasks (id, owner, tool, call, journal, status, created, updated, worker, due)
VALUES (?1, ?2, ?3, ?4, x'', 'working', ?5, ?5, 'worker', ?6)";
const SET_DOWN: &str = "
UPDATE floor_tasks SET status = 'input_required', journal = ?2, updated = ?3, worker = NULL, due = NULL WHERE id = ?1";
const ANSWERED: &str =
    "UPDATE floor_tasks SET status = 'working', updated = ?2, due = ?2 WHERE id = ?1";
const CLAIM: &str = "
UPDATE floor_tasks SET worker = 'worker', due = ?2
WHERE id IN (SELECT id FROM floor_tasks WHERE due <= ?1 ORDER BY due LIMIT ?3)
RETURNING id, call, journal";
const ANSWERS: &str = "SELECT key, answer FROM floor_asks WHERE task = ?1";
const COMPLETE: &str = "
UPDATE floor_tasks SET status = 'completed', outcome = ?2, updated = ?3, worker = NULL, due = NULL WHERE id = ?1";

pub(crate) struct Sqlite {
    file: PathBuf,
    options: SqliteConnectOptions,
    writer: Mutex<SqliteConnection>,
    readers: SqlitePool,
}

/// A reader that keeps the log of changes from beginning anew, and the commits that are in it.
pub(crate) struct Mark {
    reader: SqliteConnection,
    log: Log,
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

impl Plain for Sqlite {
    type Mark = Mark;

    async fn open(url: &str) -> Done<Self> {
        let path = url.strip_prefix("sqlite:").unwrap_or(url);
        let file = PathBuf::from(path.strip_prefix("//").unwrap_or(path));
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let mut writer = options.connect().await?;
        sqlx::raw_sql(TABLES).execute(&mut writer).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .test_before_acquire(false)
            .connect_lazy_with(options.clone());
        Ok(Self {
            file,
            options,
            writer: Mutex::new(writer),
            readers,
        })
    }

    async fn version(&self) -> Done<String> {
        let version = sqlx::query_scalar("SELECT 'SQLite ' || sqlite_version()");
        version.fetch_one(&self.readers).await
    }

    async fn tasks(&self) -> Done<(i64, i64)> {
        sqlx::query_as(TASKS).fetch_one(&self.readers).await
    }

    async fn content(&self) -> Done<Content> {
        sqlx::query_as(CONTENT).fetch_one(&self.readers).await
    }

    async fn create(&self, id: &str, content: &Content) -> Done<()> {
        let mut writer = self.writer.lock().await;
        let now = now();
        sqlx::query(CREATE)
            .bind(id)
            .bind(&content.owner)
            .bind(&content.tool)
            .bind(&content.call)
            .bind(now)
            .bind(now + LEASE)
            .execute(&mut *writer)
            .await?;
        Ok(())
    }

    async fn ask(&self, id: &str, content: &Content) -> Done<()> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query(ASK)
            .bind(id)
            .bind(&content.key)
            .bind(&content.ask)
            .execute(&mut *tx)
            .await?;
        sqlx::query(SET_DOWN)
            .bind(id)
            .bind(&content.journal)
            .bind(now())
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }

    async fn answer(&self, id: &str, content: &Content) -> Done<()> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query(ANSWER)
            .bind(id)
            .bind(&content.key)
            .bind(&content.answer)
            .execute(&mut *tx)
            .await?;
        sqlx::query(ANSWERED)
            .bind(id)
            .bind(now())
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }

    async fn claim(&self) -> Done<Vec<String>> {
        let mut writer = self.writer.lock().await;
        let now = now();
        let claimed: Vec<(String, Vec<u8>, Vec<u8>)> = sqlx::query_as(CLAIM)
            .bind(now)
            .bind(now + LEASE)
            .bind(BATCH)
            .fetch_all(&mut *writer)
            .await?;
        drop(writer);
        for (id, ..) in &claimed {
            let _: Vec<(String, Vec<u8>)> = sqlx::query_as(ANSWERS)
                .bind(id)
                .fetch_all(&self.readers)
                .await?;
        }
        Ok(claimed.into_iter().map(|(id, ..)| id).collect())
    }

    async fn complete(&self, id: &str, content: &Content) -> Done<()> {
        let mut writer = self.writer.lock().await;
        sqlx::query(COMPLETE)
            .bind(id)
            .bind(&content.outcome)
            .bind(now())
            .execute(&mut *writer)
            .await?;
        Ok(())
    }

    async fn select(&self, id: &str) -> Done<()> {
        let select = sqlx::query(SELECT).bind(id);
        select.fetch_one(&self.readers).await.map(drop)
    }

    async fn copy(&self, id: &str, waiting: u64) -> Done<()> {
        const COLUMNS: &str = "SELECT name FROM pragma_table_info(?1)";
        let columns = async |table| -> Done<Vec<String>> {
            sqlx::query_scalar(COLUMNS)
                .bind(table)
                .fetch_all(&self.readers)
                .await
        };
        let tasks = columns("refrain_tasks").await?;
        let mut asks = columns("refrain_asks").await?;
        // It is given by the database.
        asks.retain(|column| column != "ord");
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let there: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut *tx).await?;
        tx.execute("CREATE TEMP TABLE made (id TEXT NOT NULL, flow BLOB NOT NULL)")
            .await?;
        let made = "
            WITH RECURSIVE n (n) AS (SELECT 1 WHERE ?1 > 0 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
            INSERT INTO made SELECT lower(hex(randomblob(24))), randomblob(16) FROM n";
        sqlx::query(made)
            .bind(waiting as i64 - there)
            .execute(&mut *tx)
            .await?;
        for copy in copies(&tasks, &asks) {
            let copy = sqlx::query(AssertSqlSafe(copy)).bind(id);
            copy.execute(&mut *tx).await?;
        }
        tx.execute("DROP TABLE made").await?;
        tx.commit().await
    }

    async fn mark(&self) -> Result<Mark, Error> {
        let mut reader = self.options.connect().await?;
        reader.execute("BEGIN").await?;
        reader.execute("SELECT count(*) FROM floor_tasks").await?;
        let log = Log::read(&self.file)?;
        Ok(Mark { reader, log })
    }

    async fn commits(&self, mark: Mark) -> Result<u64, Error> {
        let log = Log::read(&self.file)?;
        mark.reader.close().await?;
        // One that was all in the file already may have begun anew, once.
        let before = match log.salt == mark.log.salt {
            true => mark.log.commits,
            false => 0,
        };
        Ok(log.commits - before)
    }
}

/// The log of changes beside the file (WAL): what tells it from one before it, and how many commits are in it.
#[derive(Debug, PartialEq, Eq)]
struct Log {
    salt: [u8; 8],
    commits: u64,
}

impl Log {
    fn read(file: &Path) -> Result<Self, Error> {
        let mut path = file.as_os_str().to_owned();
        path.push("-wal");
        let path = PathBuf::from(path);
        let bytes = std::fs::read(&path).map_err(Error::system(path.display().to_string()))?;
        Ok(Self::parse(&bytes).unwrap_or(Self {
            salt: [0; 8],
            commits: 0,
        }))
    }

    /// Its head has 32 bytes, the size of a page and the salt among them. Each page in it has a head of 24: with the
    /// last one of a commit is the size of the whole file, and behind that the salt.
    fn parse(bytes: &[u8]) -> Option<Self> {
        const HEAD: usize = 32;
        const PAGE_HEAD: usize = 24;
        let number = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
        let page = number(bytes.get(8..12)?)? as usize;
        let salt: [u8; 8] = bytes.get(16..24)?.try_into().ok()?;
        let pages = bytes.get(HEAD..)?.chunks_exact(PAGE_HEAD + page);
        let commits = pages
            .take_while(|page| page[8..16] == salt)
            .filter(|page| page[4..8] != [0; 4])
            .count() as u64;
        Some(Self { salt, commits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn commits_are_counted_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("a.db").display());
        drop(refrain_store::open(&url).await.unwrap());
        let sqlite = Sqlite::open(&url).await.unwrap();
        let content = Content::default();
        for tasks in [1, 300] {
            let mark = sqlite.mark().await.unwrap();
            for number in 0..tasks {
                let id = format!("{tasks}-{number}");
                sqlite.create(&id, &content).await.unwrap();
                sqlite.ask(&id, &content).await.unwrap();
                sqlite.answer(&id, &content).await.unwrap();
                assert_eq!(sqlite.claim().await.unwrap(), [id.as_str()]);
                sqlite.complete(&id, &content).await.unwrap();
            }
            assert_eq!(sqlite.claim().await.unwrap(), [""; 0]);
            assert_eq!(sqlite.commits(mark).await.unwrap(), 5 * tasks);
        }
    }
}
