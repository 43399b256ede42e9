//! A SQLite or Postgres database with Refrain's tables and those of the floor.
//!
//! The floor's statements are the same on both, except `FOR UPDATE SKIP LOCKED` and reading several answers at once.
//! Commits are counted differently on each.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgRow};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteRow, SqliteSynchronous,
};
use sqlx::{
    Arguments as _, AssertSqlSafe, ConnectOptions as _, Connection as _, Encode, Executor, FromRow,
    IntoArguments, SqlSafeStr, SqlStr, Type,
};
use tokio::sync::Mutex;

use super::wal::WalState;
use crate::error::Error;

pub(crate) type DbResult<T> = Result<T, sqlx::Error>;

/// The number of Postgres connections and of SQLite readers, the same as in Refrain's store.
const CONNECTIONS: u32 = 10;
const READERS: u32 = 4;

const TABLES: &str = "
DROP TABLE IF EXISTS floor_tasks;
DROP TABLE IF EXISTS floor_asks;
CREATE TABLE floor_tasks (
    id      TEXT   NOT NULL PRIMARY KEY,
    owner   TEXT   NOT NULL,
    tool    TEXT   NOT NULL,
    call    BLOB   NOT NULL,
    journal BLOB   NOT NULL,
    status  TEXT   NOT NULL,
    created BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    worker  TEXT,
    due     BIGINT,
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

/// Counts the Postgres transactions that write tasks or asks. Transactions that only notify do not write to the disk.
const START_COUNTING: &str = "
CREATE UNLOGGED TABLE floor_commits (number XID8 NOT NULL PRIMARY KEY);
CREATE FUNCTION floor_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO floor_commits VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER floor_count AFTER INSERT OR UPDATE ON refrain_tasks FOR EACH ROW EXECUTE FUNCTION floor_count();
CREATE TRIGGER floor_count AFTER INSERT OR UPDATE ON refrain_asks FOR EACH ROW EXECUTE FUNCTION floor_count();
CREATE TRIGGER floor_count AFTER INSERT OR UPDATE ON floor_tasks FOR EACH ROW EXECUTE FUNCTION floor_count();
CREATE TRIGGER floor_count AFTER INSERT OR UPDATE ON floor_asks FOR EACH ROW EXECUTE FUNCTION floor_count();
";
const STOP_COUNTING: &str = "DROP FUNCTION floor_count CASCADE; DROP TABLE floor_commits;";

/// Microseconds since the Unix epoch.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    Int(i64),
}

pub(crate) type Statement<'a> = (SqlStr, Vec<Value<'a>>);

/// A row type of both databases.
pub(crate) trait DatabaseRow:
    for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin
{
}
impl<T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin> DatabaseRow
    for T
{
}

fn arguments<'a, DB: sqlx::Database>(values: &[Value<'a>]) -> DbResult<DB::Arguments>
where
    &'a str: Encode<'a, DB> + Type<DB>,
    &'a [u8]: Encode<'a, DB> + Type<DB>,
    i64: Encode<'a, DB> + Type<DB>,
{
    let mut arguments = DB::Arguments::default();
    for value in values {
        let added = match *value {
            Value::Text(text) => arguments.add(text),
            Value::Bytes(bytes) => arguments.add(bytes),
            Value::Int(number) => arguments.add(number),
        };
        added.map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

/// Runs statements one after another.
async fn run<DB>(connection: &mut DB::Connection, statements: Vec<Statement<'_>>) -> DbResult<()>
where
    DB: sqlx::Database<Arguments: IntoArguments<DB>>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'a> &'a str: Encode<'a, DB> + Type<DB>,
    for<'a> &'a [u8]: Encode<'a, DB> + Type<DB>,
    for<'a> i64: Encode<'a, DB> + Type<DB>,
{
    for (sql, values) in statements {
        let query = sqlx::query_with(sql, arguments::<DB>(&values)?);
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

pub(crate) enum Database {
    /// One writer and several readers.
    Sqlite {
        file: PathBuf,
        options: Box<SqliteConnectOptions>,
        writer: Box<Mutex<SqliteConnection>>,
        readers: SqlitePool,
    },
    Postgres(PgPool),
}

/// The start of a count of commits.
pub(crate) enum CommitMark {
    /// An open reader, which keeps the WAL from being reset, and the initial state of the WAL.
    Sqlite(SqliteConnection, WalState),
    Postgres,
}

impl Database {
    /// Connects and recreates the tables of the floor.
    pub(crate) async fn open(url: &str) -> DbResult<Self> {
        if let Some(file) = url.strip_prefix("sqlite:") {
            return Self::open_file(file.strip_prefix("//").unwrap_or(file).into()).await;
        }
        let options: PgConnectOptions = url.parse()?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect_lazy_with(options.disable_statement_logging());
        let tables = AssertSqlSafe(TABLES.replace("BLOB", "BYTEA"));
        sqlx::raw_sql(tables).execute(&pool).await?;
        Ok(Self::Postgres(pool))
    }

    /// Opens a SQLite file with `synchronous = FULL`.
    async fn open_file(file: PathBuf) -> DbResult<Self> {
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
        Ok(Self::Sqlite {
            file,
            options: Box::new(options),
            writer: Box::new(Mutex::new(writer)),
            readers,
        })
    }

    pub(crate) async fn version(&self) -> DbResult<String> {
        let version = match self {
            Self::Sqlite { .. } => "SELECT 'SQLite ' || sqlite_version()",
            Self::Postgres(_) => "SELECT 'Postgres ' || current_setting('server_version')",
        };
        self.fetch_one(version, &[]).await.map(|(version,)| version)
    }

    /// Runs statements in one commit.
    pub(crate) async fn execute(&self, statements: Vec<Statement<'_>>) -> DbResult<()> {
        let is_single = statements.len() == 1;
        match self {
            Self::Sqlite { writer, .. } => {
                let mut writer = writer.lock().await;
                if is_single {
                    return run::<sqlx::Sqlite>(&mut writer, statements).await;
                }
                let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
                run::<sqlx::Sqlite>(&mut tx, statements).await?;
                tx.commit().await
            }
            Self::Postgres(pool) => {
                if is_single {
                    let mut connection = pool.acquire().await?;
                    return run::<sqlx::Postgres>(&mut connection, statements).await;
                }
                let mut tx = pool.begin().await?;
                run::<sqlx::Postgres>(&mut tx, statements).await?;
                tx.commit().await
            }
        }
    }

    pub(crate) async fn fetch<T: DatabaseRow>(
        &self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> DbResult<Vec<T>> {
        match self {
            Self::Sqlite { readers, .. } => {
                let query = sqlx::query_as_with(sql, arguments::<sqlx::Sqlite>(values)?);
                query.fetch_all(readers).await
            }
            Self::Postgres(pool) => {
                let query = sqlx::query_as_with(sql, arguments::<sqlx::Postgres>(values)?);
                query.fetch_all(pool).await
            }
        }
    }

    pub(crate) async fn fetch_one<T: DatabaseRow>(
        &self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> DbResult<T> {
        let rows = self.fetch(sql, values).await?;
        rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)
    }

    /// Claims due tasks of the floor, and reads their journals and answers.
    pub(crate) async fn claim(&self, lease: i64, max: i64) -> DbResult<Vec<String>> {
        type ClaimedTask = (String, Vec<u8>, Vec<u8>);
        const CLAIM: &str = "
UPDATE floor_tasks SET worker = 'worker', due = $2
WHERE id IN (SELECT id FROM floor_tasks WHERE due <= $1 ORDER BY due LIMIT $3)
RETURNING id, call, journal";
        const CLAIM_SKIP_LOCKED: &str = "
UPDATE floor_tasks SET worker = 'worker', due = $2
WHERE id IN (SELECT id FROM floor_tasks WHERE due <= $1 ORDER BY due LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING id, call, journal";
        const ANSWERS: &str = "SELECT key, answer FROM floor_asks WHERE task = $1";
        const ALL_ANSWERS: &str = "SELECT task, key, answer FROM floor_asks WHERE task = ANY($1)";

        // Read the clock after acquiring the connection, for the largest possible batch.
        let values = || {
            let now = now();
            [now, now + lease, max].map(Value::Int)
        };
        let ids = |claimed: Vec<ClaimedTask>| claimed.into_iter().map(|(id, ..)| id).collect();
        match self {
            Self::Sqlite { writer, .. } => {
                let mut writer = writer.lock().await;
                let query = sqlx::query_as_with(CLAIM, arguments::<sqlx::Sqlite>(&values())?);
                let ids: Vec<String> = ids(query.fetch_all(&mut *writer).await?);
                drop(writer);
                for id in &ids {
                    let _: Vec<(String, Vec<u8>)> = self.fetch(ANSWERS, &[Value::Text(id)]).await?;
                }
                Ok(ids)
            }
            Self::Postgres(pool) => {
                let mut connection = pool.acquire().await?;
                let values = arguments::<sqlx::Postgres>(&values())?;
                let query = sqlx::query_as_with(CLAIM_SKIP_LOCKED, values);
                let ids: Vec<String> = ids(query.fetch_all(&mut *connection).await?);
                let answers = sqlx::query_as(ALL_ANSWERS).bind(&ids);
                let _: Vec<(String, String, Vec<u8>)> = answers.fetch_all(&mut *connection).await?;
                Ok(ids)
            }
        }
    }

    /// Copies a waiting task of Refrain's until this number of tasks waits.
    pub(crate) async fn copy(&self, id: &str, waiting: u64) -> DbResult<()> {
        const WAITING: &str = "SELECT count(*) FROM refrain_tasks WHERE status = 'input_required'";

        let (new_values, new_ask) = match self {
            Self::Sqlite { .. } => (
                "id = lower(hex(randomblob(24))), flow = randomblob(16)",
                // SQLite assigns the key `ord`.
                "task = copy_id, ord = NULL",
            ),
            Self::Postgres(_) => (
                "id = substring(encode(sha256(uuid_send(gen_random_uuid())), 'hex') FOR 48),
                 flow = uuid_send(gen_random_uuid())",
                "task = copy_id",
            ),
        };
        let (count,): (i64,) = self.fetch_one(WAITING, &[]).await?;
        let missing = waiting as i64 - count;
        let statements = [
            format!(
                "CREATE TEMP TABLE copies AS
                 WITH RECURSIVE n (n) AS (SELECT 1 WHERE {missing} > 0 UNION ALL SELECT n + 1 FROM n WHERE n < {missing})
                 SELECT t.* FROM refrain_tasks t, n WHERE id = $1"
            ),
            format!("UPDATE copies SET {new_values}"),
            "CREATE TEMP TABLE ask_copies AS SELECT a.*, copies.id AS copy_id FROM refrain_asks a, copies WHERE task = $1"
                .to_owned(),
            format!("UPDATE ask_copies SET {new_ask}"),
            "ALTER TABLE ask_copies DROP COLUMN copy_id".to_owned(),
            "INSERT INTO refrain_tasks SELECT * FROM copies".to_owned(),
            "INSERT INTO refrain_asks SELECT * FROM ask_copies".to_owned(),
            "DROP TABLE copies".to_owned(),
            "DROP TABLE ask_copies".to_owned(),
        ];
        let statement = |sql: String| {
            let values = match sql.contains("$1") {
                true => vec![Value::Text(id)],
                false => Vec::new(),
            };
            (AssertSqlSafe(sql).into_sql_str(), values)
        };
        self.execute(statements.map(statement).into()).await
    }

    /// Starts to count commits of all connections.
    pub(crate) async fn mark(&self) -> Result<CommitMark, Error> {
        match self {
            Self::Sqlite { file, options, .. } => {
                let mut reader = options.connect().await?;
                reader.execute("BEGIN").await?;
                reader.execute("SELECT count(*) FROM floor_tasks").await?;
                Ok(CommitMark::Sqlite(reader, WalState::read(file)?))
            }
            Self::Postgres(pool) => {
                sqlx::raw_sql(START_COUNTING).execute(pool).await?;
                Ok(CommitMark::Postgres)
            }
        }
    }

    /// The number of commits since the mark.
    pub(crate) async fn commits(&self, mark: CommitMark) -> Result<u64, Error> {
        match (self, mark) {
            (Self::Sqlite { file, .. }, CommitMark::Sqlite(reader, before)) => {
                let commits = WalState::read(file)?.commits_since(&before);
                reader.close().await?;
                Ok(commits)
            }
            _ => {
                let count = "SELECT count(*) FROM floor_commits";
                let (commits,): (i64,) = self.fetch_one(count, &[]).await?;
                if let Self::Postgres(pool) = self {
                    sqlx::raw_sql(STOP_COUNTING).execute(pool).await?;
                }
                Ok(commits.unsigned_abs())
            }
        }
    }
}
