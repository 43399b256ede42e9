//! Writes that share transactions, on SQLite and Postgres.

use super::support::{assert_created, assert_failed, bad_task, create_together, new_task};

mod sqlite {
    use super::super::sqlite::{connect, new_file, open};
    use super::*;
    use sqlx::SqliteConnection;
    use std::path::Path;

    /// The number of commits in the write-ahead log. The last frame of each has the size of the database in its header.
    fn commits(path: &Path) -> usize {
        const HEADER: usize = 32;
        const FRAME_HEADER: usize = 24;
        let log = std::fs::read(path.with_extension("db-wal")).expect("there is a log");
        let page = u32::from_be_bytes(log[8..12].try_into().expect("four bytes"));
        let frames = log[HEADER..].chunks_exact(FRAME_HEADER + page as usize);
        let salt = &log[16..24];
        frames
            .take_while(|frame| &frame[8..16] == salt)
            .filter(|frame| frame[4..8] != [0; 4])
            .count()
    }

    /// Runs SQL on the connection that takes and releases the write lock.
    async fn run(connection: &mut SqliteConnection, sql: &'static str) {
        let done = sqlx::raw_sql(sql).execute(connection).await;
        done.expect("the statement succeeds");
    }

    #[tokio::test]
    async fn concurrent_writes_share_commits() {
        let (_dir, path) = new_file();
        let store = open(&path).await;
        let mut other = connect(&path).await;
        let before = commits(&path);
        run(&mut other, "BEGIN IMMEDIATE").await;
        let release = async || run(&mut other, "ROLLBACK").await;
        assert_created(&create_together(&store, (0..20).map(new_task), release).await);
        let commits = commits(&path) - before;
        assert!((1..=2).contains(&commits), "{commits}");
    }

    #[tokio::test]
    async fn failing_write_does_not_affect_others() {
        let (_dir, path) = new_file();
        let store = open(&path).await;
        let mut other = connect(&path).await;
        let refuse = "CREATE TRIGGER refuse AFTER INSERT ON refrain_tasks WHEN NEW.tool = 'bad'
            BEGIN SELECT RAISE(ABORT, 'refused'); END;
            BEGIN IMMEDIATE;";
        run(&mut other, refuse).await;
        let tasks = [new_task(1), bad_task(2), new_task(3)];
        let release = async || run(&mut other, "ROLLBACK").await;
        let mut created = create_together(&store, tasks, release).await;
        assert_failed(&created.remove(1));
        assert_created(&created);
    }

    #[tokio::test]
    async fn writer_survives_a_failed_commit() {
        let (_dir, path) = new_file();
        let store = open(&path).await;
        let mut other = connect(&path).await;
        let refuse = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
            CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
            CREATE TRIGGER refuse AFTER INSERT ON refrain_tasks WHEN NEW.tool = 'bad'
            BEGIN INSERT INTO child VALUES (1); END;
            BEGIN IMMEDIATE;";
        run(&mut other, refuse).await;
        let release = async || run(&mut other, "ROLLBACK").await;
        let created = create_together(&store, [bad_task(1), new_task(2)], release).await;
        for created in &created {
            assert_failed(created);
        }
        assert_created(&[store.create(new_task(2)).await]);
    }

    #[tokio::test]
    async fn dropped_write_is_not_applied() {
        let (_dir, path) = new_file();
        let store = open(&path).await;
        let mut other = connect(&path).await;
        run(&mut other, "BEGIN IMMEDIATE").await;
        let dropped = async || {
            let mut create = store.create(new_task(2));
            tokio::select! {
                biased;
                _ = &mut create => panic!("the file is locked"),
                () = tokio::task::yield_now() => {}
            }
            drop(create);
            run(&mut other, "ROLLBACK").await;
        };
        // The first write waits for the lock, and the dropped one in the queue.
        assert_created(&create_together(&store, [new_task(1)], dropped).await);
        assert_created(&[store.create(new_task(3)).await]);
        assert!(store.find(&new_task(2).id).await.unwrap().is_none());
    }
}

mod postgres {
    use super::super::postgres::{connect, new_store};
    use super::*;
    use sqlx::{Executor, PgConnection};

    /// Locks the tasks until [`unlock`].
    async fn lock(url: &str) -> PgConnection {
        let mut connection = connect(url).await;
        for statement in ["BEGIN", "LOCK TABLE refrain_tasks IN EXCLUSIVE MODE"] {
            connection.execute(statement).await.expect("it locks");
        }
        connection
    }

    async fn unlock(locked: &mut PgConnection) {
        locked.execute("COMMIT").await.expect("it unlocks");
    }

    #[tokio::test]
    async fn concurrent_writes_share_commits() {
        let (_postgres, url, store) = new_store().await;
        let mut locked = lock(&url).await;
        let release = async || unlock(&mut locked).await;
        assert_created(&create_together(&store, (0..20).map(new_task), release).await);
        // The transaction that wrote a row is in its column `xmin`.
        let commits = "SELECT count(DISTINCT xmin::text) FROM refrain_tasks";
        let commits: i64 = sqlx::query_scalar(commits)
            .fetch_one(&mut connect(&url).await)
            .await
            .unwrap();
        // Eight connections commit, and each takes all writes queued by then. Two more commits are
        // tolerated; without sharing there would be 20.
        assert!((1..=10).contains(&commits), "{commits}");
    }

    #[tokio::test]
    async fn failing_write_does_not_affect_others() {
        let (_postgres, url, store) = new_store().await;
        let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
            CREATE TRIGGER refuse AFTER INSERT ON refrain_tasks FOR EACH ROW WHEN (NEW.tool = 'bad') EXECUTE FUNCTION refuse();";
        connect(&url).await.execute(refuse).await.unwrap();
        let mut locked = lock(&url).await;
        let release = async || unlock(&mut locked).await;
        let tasks = (0..40).map(|id| if id == 30 { bad_task(id) } else { new_task(id) });
        let mut created = create_together(&store, tasks, release).await;
        assert_failed(&created.remove(30));
        assert_created(&created);
    }

    #[tokio::test]
    async fn writer_survives_a_failed_commit() {
        let (_postgres, url, store) = new_store().await;
        let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
            CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON refrain_tasks DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW WHEN (NEW.tool = 'bad') EXECUTE FUNCTION refuse();";
        connect(&url).await.execute(refuse).await.unwrap();
        let mut locked = lock(&url).await;
        let release = async || unlock(&mut locked).await;
        let created = create_together(&store, (0..4).map(bad_task), release).await;
        for created in &created {
            assert_failed(created);
        }
        let again = (0..4).map(new_task);
        assert_created(&create_together(&store, again, async || {}).await);
    }
}
