//! The store in a SQLite file: contract, sharing, locking.

use super::support::{
    UNDO_MIGRATIONS, USAGE_OWNERS, assert_claimable, assert_counted, assert_created,
    assert_late_failures_are_reported, assert_newer_schema, assert_old_record_is_not_counted,
    assert_unavailable, create_leased, leave_data_of_one_account, new_task,
};
use refrain_store::{Creation, OpenStoreError, SqliteStore, Store, StoreError, contract};
use sqlx::{Connection, SqliteConnection};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// The path of a store in a new directory, which is deleted when it is dropped.
pub(crate) fn new_file() -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("refrain.db");
    (dir, path)
}

pub(crate) async fn open(path: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(path).await.expect("it opens"))
}

/// A separate connection to the same file.
pub(crate) async fn connect(path: &Path) -> SqliteConnection {
    let url = format!("sqlite:{}", path.display());
    SqliteConnection::connect(&url).await.expect("it opens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_store_fulfils_the_contract() {
    let dir = TempDir::new().unwrap();
    let files = AtomicU32::new(0);
    contract::all(async || {
        let number = files.fetch_add(1, Ordering::Relaxed);
        open(&dir.path().join(format!("{number}.db"))).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shared_sqlite_store_fulfils_the_contract() {
    let dir = TempDir::new().unwrap();
    let files = AtomicU32::new(0);
    contract::shared(async || {
        let number = files.fetch_add(1, Ordering::Relaxed);
        let path = dir.path().join(format!("{number}.db"));
        (open(&path).await, open(&path).await)
    })
    .await;
}

#[tokio::test]
async fn task_survives_a_restart() {
    let (_dir, path) = new_file();
    let task = new_task(1);
    assert_created(&[open(&path).await.create(task.clone()).await]);
    let again = open(&path).await;
    let found = again.get(&task.id, &task.owner).await.unwrap();
    assert_eq!(found.unwrap().id, task.id);
}

#[tokio::test]
async fn earlier_version_is_upgraded() {
    let (_dir, path) = new_file();
    let task = new_task(1);
    assert_created(&[open(&path).await.create(task.clone()).await]);
    // The state after version 2.
    let mut connection = connect(&path).await;
    for statement in [
        "CREATE TABLE refrain_notes (session TEXT, name TEXT, value BLOB, until INTEGER, PRIMARY KEY (session, name))",
        "INSERT INTO refrain_notes VALUES ('s', 'level', x'01', 1)",
        "DROP TRIGGER refrain_add_deliveries",
        "DROP TRIGGER refrain_count_new_task",
        "DROP TRIGGER refrain_count_task",
        "DROP TRIGGER refrain_count_old_task",
        "DROP TRIGGER refrain_count_new_token",
        "DROP TRIGGER refrain_count_token",
        "DROP TRIGGER refrain_count_old_token",
        "DROP TRIGGER refrain_count_new_record",
        "DROP TRIGGER refrain_uncount_record",
        "DROP TRIGGER refrain_count_record",
        "DROP TRIGGER refrain_count_old_record",
        "INSERT INTO refrain_log VALUES (x'07070707070707070707070707070707', 'round 1', 'old', 9000, NULL)",
    ]
    .iter()
    .chain(UNDO_MIGRATIONS)
    {
        sqlx::query(*statement)
            .execute(&mut connection)
            .await
            .unwrap();
    }
    let store = open(&path).await;
    let found = store.get(&task.id, &task.owner).await.unwrap();
    assert_eq!(found.unwrap().id, task.id);
    assert_claimable(&*store, &task.id).await;
    assert_counted(&*store, 2).await;
    assert_old_record_is_not_counted(&*store).await;
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_master WHERE name LIKE 'refrain_notes%'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(tables, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn concurrent_opens_of_a_new_file_succeed() {
    let (_dir, path) = new_file();
    let openers = (0..8).map(|id| {
        let path = path.clone();
        tokio::spawn(async move {
            let store = open(&path).await;
            assert_created(&[store.create(new_task(id)).await]);
        })
    });
    let openers: Vec<_> = openers.collect();
    for opener in openers {
        opener.await.unwrap();
    }
    let versions: Vec<i64> = sqlx::query_scalar("SELECT version FROM refrain_schema")
        .fetch_all(&mut connect(&path).await)
        .await
        .unwrap();
    assert_eq!(versions, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let tasks: i64 = sqlx::query_scalar("SELECT count(*) FROM refrain_tasks")
        .fetch_one(&mut connect(&path).await)
        .await
        .unwrap();
    assert_eq!(tasks, 8);
}

#[tokio::test]
async fn newer_schema_is_not_changed() {
    let (_dir, path) = new_file();
    drop(open(&path).await);
    sqlx::query("INSERT INTO refrain_schema (version) VALUES (99)")
        .execute(&mut connect(&path).await)
        .await
        .unwrap();
    assert_newer_schema(&SqliteStore::open(&path).await.unwrap_err());
}

#[cfg(unix)]
#[tokio::test]
async fn new_file_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, path) = new_file();
    let store = open(&path).await;
    store.create(new_task(1)).await.unwrap();
    let mut files = 0;
    for entry in dir.path().read_dir().unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        files += 1;
    }
    assert!(files >= 2, "the write-ahead log is a second file");
}

#[tokio::test]
async fn locked_file_is_unavailable_and_does_not_hang() {
    let (_dir, path) = new_file();
    let store = open(&path).await;
    let mut other = connect(&path).await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();
    assert_unavailable(&store.create(new_task(1)).await);
    let read = store.find(&new_task(1).id).await;
    assert!(matches!(read, Ok(None)), "reads still succeed: {read:?}");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    assert_created(&[store.create(new_task(2)).await]);
    // The failed operation may have been applied after the other connection released its lock. It
    // is safe to repeat it.
    let again = store.create(new_task(1)).await.unwrap();
    let (Creation::New(task, _) | Creation::Existing(task)) = again;
    assert_eq!(task.id, new_task(1).id);
}

#[tokio::test]
async fn file_that_is_not_a_database_is_rejected() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("notes.txt");
    std::fs::write(
        &path,
        "not a database, but long enough to look at: ".repeat(50),
    )
    .unwrap();
    let error = SqliteStore::open(&path).await.unwrap_err();
    assert!(
        matches!(error, OpenStoreError::Store(StoreError::Corrupt(_))),
        "{error}"
    );
    let missing = dir.path().join("missing").join("refrain.db");
    let message = SqliteStore::open(&missing).await.unwrap_err().to_string();
    assert!(message.starts_with("could not create"), "{message}");
}

/// A transaction may fail at its commit, after all rows were read.
#[tokio::test]
async fn failure_at_commit_is_reported() {
    let (_dir, path) = new_file();
    let store = open(&path).await;
    let lease = create_leased(&*store, 1).await;
    let refuse = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
        CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER refuse AFTER UPDATE ON refrain_tasks BEGIN INSERT INTO child VALUES (1); END;
        CREATE TRIGGER refuse_new AFTER INSERT ON refrain_tasks BEGIN INSERT INTO child VALUES (1); END;";
    sqlx::raw_sql(refuse)
        .execute(&mut connect(&path).await)
        .await
        .unwrap();
    assert_late_failures_are_reported(&*store, &lease).await;
    let row = store.find(&lease.task).await.unwrap().unwrap();
    assert_eq!(row.task.revision, 1, "nothing was written");
    assert!(row.task.asks.is_empty());
}

#[tokio::test]
async fn sweep_deletes_the_usage_of_accounts_without_data() {
    let (_dir, path) = new_file();
    let store = open(&path).await;
    leave_data_of_one_account(&*store).await;
    let owners = sqlx::query_scalar(USAGE_OWNERS);
    let owners: Vec<String> = owners.fetch_all(&mut connect(&path).await).await.unwrap();
    assert_eq!(owners, ["*", "=account 0"]);
}

/// Checks the query plan of the query that workers run most.
#[tokio::test]
async fn claim_does_not_read_waiting_tasks() {
    let (_dir, path) = new_file();
    drop(open(&path).await);
    let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(
        "EXPLAIN QUERY PLAN SELECT id, turn FROM refrain_tasks WHERE turn IS NOT NULL AND due <= ?1 \
         AND coalesce(account, owner, '') NOT IN (?2) AND (tool IN (?3, ?4) OR expires <= ?5) ORDER BY turn, due LIMIT ?6",
    )
    .fetch_all(&mut connect(&path).await)
    .await
    .unwrap();
    let plan: Vec<&str> = plan.iter().map(|step| step.3.as_str()).collect();
    let found = "SEARCH refrain_tasks USING INDEX refrain_tasks_turn (turn>?)";
    assert_eq!(plan, [found]);
}
