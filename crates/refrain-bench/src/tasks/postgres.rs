//! The floor in a database of Postgres: as many connections as Refrain's store has.

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

use super::plain::{
    ANSWER, ASK, BATCH, CONTENT, Content, LEASE, Plain, SELECT, TASKS, WAITING, copies,
};
use crate::error::Error;

type Done<T> = Result<T, sqlx::Error>;

const CONNECTIONS: u32 = 10;

const TABLES: &str = "
DROP TABLE IF EXISTS floor_tasks;
DROP TABLE IF EXISTS floor_asks;
CREATE TABLE floor_tasks (
    id      TEXT        NOT NULL PRIMARY KEY,
    owner   TEXT        NOT NULL,
    tool    TEXT        NOT NULL,
    call    BYTEA       NOT NULL,
    journal BYTEA       NOT NULL,
    status  TEXT        NOT NULL,
    created TIMESTAMPTZ NOT NULL,
    updated TIMESTAMPTZ NOT NULL,
    worker  TEXT,
    due     TIMESTAMPTZ,
    outcome BYTEA
);
CREATE INDEX floor_tasks_due ON floor_tasks (due) WHERE due IS NOT NULL;
CREATE TABLE floor_asks (
    task   TEXT  NOT NULL,
    key    TEXT  NOT NULL,
    ask    BYTEA NOT NULL,
    answer BYTEA,
    PRIMARY KEY (task, key)
);
";

const CREATE: &str = "
INSERT INTO floor_tasks (id, owner, tool, call, journal, status, created, updated, worker, due)
VALUES ($1, $2, $3, $4, '', 'working', now(), now(), 'worker', now() + $5 * interval '1 microsecond')";
const SET_DOWN: &str = "
UPDATE floor_tasks SET status = 'input_required', journal = $2, updated = now(), worker = NULL, due = NULL WHERE id = $1";
const ANSWERED: &str =
    "UPDATE floor_tasks SET status = 'working', updated = now(), due = now() WHERE id = $1";
const CLAIM: &str = "
UPDATE floor_tasks SET worker = 'worker', due = now() + $1 * interval '1 microsecond'
WHERE id IN (SELECT id FROM floor_tasks WHERE due <= now() ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING id, call, journal";
const ANSWERS: &str = "SELECT task, key, answer FROM floor_asks WHERE task = ANY($1)";
const COMPLETE: &str = "
UPDATE floor_tasks SET status = 'completed', outcome = $2, updated = now(), worker = NULL, due = NULL WHERE id = $1";

/// Notes every transaction that writes a task or an ask, and no other: what tells a hint has a number, too, but nothing
/// that has to be on the disk.
const COUNT: &str = "
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
const COUNTED: &str = "DROP FUNCTION floor_count CASCADE; DROP TABLE floor_commits;";

pub(crate) struct Postgres {
    pool: PgPool,
}

impl Plain for Postgres {
    type Mark = ();

    async fn open(url: &str) -> Done<Self> {
        let options: PgConnectOptions = url.parse()?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect_lazy_with(options.disable_statement_logging());
        sqlx::raw_sql(TABLES).execute(&pool).await?;
        Ok(Self { pool })
    }

    async fn version(&self) -> Done<String> {
        let version = sqlx::query_scalar("SELECT 'Postgres ' || current_setting('server_version')");
        version.fetch_one(&self.pool).await
    }

    async fn tasks(&self) -> Done<(i64, i64)> {
        sqlx::query_as(TASKS).fetch_one(&self.pool).await
    }

    async fn content(&self) -> Done<Content> {
        sqlx::query_as(CONTENT).fetch_one(&self.pool).await
    }

    async fn create(&self, id: &str, content: &Content) -> Done<()> {
        sqlx::query(CREATE)
            .bind(id)
            .bind(&content.owner)
            .bind(&content.tool)
            .bind(&content.call)
            .bind(LEASE)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn ask(&self, id: &str, content: &Content) -> Done<()> {
        let mut tx = self.pool.begin().await?;
        sqlx::query(ASK)
            .bind(id)
            .bind(&content.key)
            .bind(&content.ask)
            .execute(&mut *tx)
            .await?;
        sqlx::query(SET_DOWN)
            .bind(id)
            .bind(&content.journal)
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }

    async fn answer(&self, id: &str, content: &Content) -> Done<()> {
        let mut tx = self.pool.begin().await?;
        sqlx::query(ANSWER)
            .bind(id)
            .bind(&content.key)
            .bind(&content.answer)
            .execute(&mut *tx)
            .await?;
        sqlx::query(ANSWERED).bind(id).execute(&mut *tx).await?;
        tx.commit().await
    }

    async fn claim(&self) -> Done<Vec<String>> {
        let claimed: Vec<(String, Vec<u8>, Vec<u8>)> = sqlx::query_as(CLAIM)
            .bind(LEASE)
            .bind(BATCH)
            .fetch_all(&self.pool)
            .await?;
        let ids: Vec<String> = claimed.into_iter().map(|(id, ..)| id).collect();
        let _: Vec<(String, String, Vec<u8>)> = sqlx::query_as(ANSWERS)
            .bind(&ids)
            .fetch_all(&self.pool)
            .await?;
        Ok(ids)
    }

    async fn complete(&self, id: &str, content: &Content) -> Done<()> {
        sqlx::query(COMPLETE)
            .bind(id)
            .bind(&content.outcome)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn select(&self, id: &str) -> Done<()> {
        let select = sqlx::query(SELECT).bind(id);
        select.fetch_one(&self.pool).await.map(drop)
    }

    async fn copy(&self, id: &str, waiting: u64) -> Done<()> {
        const COLUMNS: &str = "
            SELECT attname::text FROM pg_attribute
            WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
        let columns = async |table| -> Done<Vec<String>> {
            sqlx::query_scalar(COLUMNS)
                .bind(table)
                .fetch_all(&self.pool)
                .await
        };
        let tasks = columns("refrain_tasks").await?;
        let asks = columns("refrain_asks").await?;
        let mut tx = self.pool.begin().await?;
        let there: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut *tx).await?;
        tx.execute("CREATE TEMP TABLE made (id TEXT, flow BYTEA) ON COMMIT DROP")
            .await?;
        let made = "
            INSERT INTO made
            SELECT encode(substring(sha256(r::text::bytea) FOR 24), 'hex'), decode(replace(r::text, '-', ''), 'hex')
            FROM (SELECT gen_random_uuid() AS r FROM generate_series(1, $1)) AS made";
        sqlx::query(made)
            .bind(waiting as i64 - there)
            .execute(&mut *tx)
            .await?;
        for copy in copies(&tasks, &asks) {
            let copy = sqlx::query(AssertSqlSafe(copy)).bind(id);
            copy.execute(&mut *tx).await?;
        }
        tx.commit().await
    }

    async fn mark(&self) -> Result<(), Error> {
        sqlx::raw_sql(COUNT).execute(&self.pool).await?;
        Ok(())
    }

    async fn commits(&self, (): ()) -> Result<u64, Error> {
        let commits: i64 = sqlx::query_scalar("SELECT count(*) FROM floor_commits")
            .fetch_one(&self.pool)
            .await?;
        sqlx::raw_sql(COUNTED).execute(&self.pool).await?;
        Ok(commits.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_store::cluster::Cluster;

    #[tokio::test]
    async fn commits_are_counted_and_nothing_else() {
        let cluster = Cluster::shared().unwrap();
        let url = cluster.database().await.unwrap();
        drop(refrain_store::open(&url).await.unwrap());
        let postgres = Postgres::open(&url).await.unwrap();
        let content = Content::default();
        for tasks in [1, 20] {
            postgres.mark().await.unwrap();
            for number in 0..tasks {
                let id = format!("{tasks}-{number}");
                postgres.create(&id, &content).await.unwrap();
                postgres.ask(&id, &content).await.unwrap();
                postgres.answer(&id, &content).await.unwrap();
                assert_eq!(postgres.claim().await.unwrap(), [id.as_str()]);
                postgres.complete(&id, &content).await.unwrap();
            }
            assert_eq!(postgres.claim().await.unwrap(), [""; 0]);
            postgres.pool.execute("NOTIFY refrain").await.unwrap();
            assert_eq!(postgres.commits(()).await.unwrap(), 5 * tasks);
        }
    }
}
