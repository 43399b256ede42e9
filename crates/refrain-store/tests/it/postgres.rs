//! The store in Postgres: contract, fleets, restarts, lost connections.

use super::support::{
    HOUR, UNDO_MIGRATIONS, USAGE_OWNERS, assert_claimable, assert_counted, assert_created,
    assert_failed, assert_late_failures_are_reported, assert_newer_schema,
    assert_old_record_is_not_counted, assert_unavailable, claim, commit, create_leased,
    leave_data_of_one_account, new_task,
};
use refrain_core::Principal;
use refrain_store::test_postgres::TestPostgres;
use refrain_store::{
    Commit, Creation, Hint, NewTask, Next, PgStore, Store, StoredStatus, contract, open,
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::Receiver;

/// The time limit of one wait.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("it connects")
}

/// A new database, and its server.
async fn new_database() -> (Arc<TestPostgres>, String) {
    let postgres = TestPostgres::shared().expect("a Postgres server");
    let url = postgres.database().await.expect("a database");
    (postgres, url)
}

/// A store in a new database.
pub(crate) async fn new_store() -> (Arc<TestPostgres>, String, Arc<dyn Store>) {
    let (postgres, url) = new_database().await;
    let store = open(&url).await.expect("it opens");
    (postgres, url, store)
}

/// Creates a schema in this database, which is faster than a new database, and returns its URL.
async fn schema(url: &str) -> String {
    static SCHEMAS: AtomicU32 = AtomicU32::new(0);
    let name = format!("schema{}", SCHEMAS.fetch_add(1, Ordering::SeqCst));
    let create = AssertSqlSafe(format!("CREATE SCHEMA {name}"));
    let created = connect(url).await.execute(create).await;
    created.expect("the schema is made");
    let join = if url.contains('?') { '&' } else { '?' };
    format!("{url}{join}options=-c%20search_path%3D{name}")
}

/// Repeats `attempt` until it returns a value.
pub(crate) async fn until<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let attempts = async {
        loop {
            if let Some(value) = attempt().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let value = tokio::time::timeout(PATIENCE, attempts).await;
    value.expect("the attempt succeeds in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgres_store_fulfils_the_contract() {
    let (_postgres, url) = new_database().await;
    contract::all(async || open(&schema(&url).await).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shared_postgres_store_fulfils_the_contract() {
    let (_postgres, database) = new_database().await;
    contract::shared(async || {
        let url = schema(&database).await;
        (open(&url).await.unwrap(), open(&url).await.unwrap())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn concurrent_opens_of_a_new_database_succeed() {
    let (_postgres, url) = new_database().await;
    let openers = (0..8).map(|id| {
        let url = url.clone();
        tokio::spawn(async move {
            let store = open(&url).await.expect("it opens");
            assert_created(&[store.create(new_task(id)).await]);
        })
    });
    let openers: Vec<_> = openers.collect();
    for opener in openers {
        opener.await.unwrap();
    }
    let versions: Vec<i64> = sqlx::query_scalar("SELECT version FROM refrain_schema")
        .fetch_all(&mut connect(&url).await)
        .await
        .unwrap();
    assert_eq!(versions, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[tokio::test]
async fn earlier_version_is_upgraded() {
    let (_postgres, url) = new_database().await;
    let task = new_task(1);
    assert_created(&[open(&url).await.unwrap().create(task.clone()).await]);
    // The state after version 2.
    let mut connection = connect(&url).await;
    let notes = "CREATE TABLE refrain_notes (session TEXT, name TEXT, value BYTEA, until BIGINT, PRIMARY KEY (session, name))";
    for statement in [
        notes,
        "INSERT INTO refrain_notes VALUES ('s', 'level', '\\x01', 1)",
        "DROP FUNCTION refrain_add_deliveries CASCADE",
        "DROP FUNCTION refrain_count_task CASCADE",
        "DROP FUNCTION refrain_count_token CASCADE",
        "DROP FUNCTION refrain_count_record CASCADE",
        "INSERT INTO refrain_log VALUES ('\\x07070707070707070707070707070707', 'round 1', 'old', 9000, NULL)",
        "DROP FUNCTION refrain_count",
    ]
    .iter()
    .chain(UNDO_MIGRATIONS)
    {
        connection.execute(*statement).await.unwrap();
    }
    let store = open(&url).await.unwrap();
    let found = store.get(&task.id, &task.owner).await.unwrap();
    assert_eq!(found.unwrap().id, task.id);
    assert_claimable(&*store, &task.id).await;
    assert_counted(&*store, 2).await;
    assert_old_record_is_not_counted(&*store).await;
    let gone: bool = sqlx::query_scalar("SELECT to_regclass('refrain_notes') IS NULL")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(gone);
}

#[tokio::test]
async fn error_of_the_server_has_its_code() {
    let (_postgres, url) = new_database().await;
    let (url, parameters) = url.split_once('?').unwrap_or((&url, ""));
    let (server, _) = url.rsplit_once('/').expect("a database");
    let absent = open(&format!("{server}/absent?{parameters}")).await;
    let error = absent.err().expect("there is no such database").to_string();
    assert_eq!(
        error,
        "store failed: database \"absent\" does not exist (3D000)"
    );
}

#[tokio::test]
async fn newer_schema_is_not_changed() {
    let (_postgres, url) = new_database().await;
    drop(open(&url).await.unwrap());
    sqlx::query("INSERT INTO refrain_schema (version) VALUES (99)")
        .execute(&mut connect(&url).await)
        .await
        .unwrap();
    assert_newer_schema(&PgStore::open(&url).await.unwrap_err());
}

#[tokio::test]
async fn hint_reaches_other_instances() {
    let (_postgres, url) = new_database().await;
    let (one, other) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let mut hints = other.hints();
    let task = new_task(1).id;
    one.create(new_task(1)).await.unwrap();
    let hint = tokio::time::timeout(PATIENCE, hints.recv()).await;
    let due = Hint {
        task,
        due: true,
        own: true,
    };
    assert_eq!(hint.expect("it comes in time"), Ok(due));
}

#[tokio::test]
async fn hint_is_received_once_by_every_instance() {
    let (_postgres, url) = new_database().await;
    let (one, other) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let (mut here, mut elsewhere) = (one.hints(), other.hints());
    let lease = create_leased(&*one, 1).await;
    let status = |text: &str| Commit {
        status_message: Some(text.to_owned()),
        ..Commit::default()
    };
    one.commit(&lease, status("first")).await.unwrap();
    one.commit(&lease, status("second")).await.unwrap();
    let hint = |own| Hint {
        task: lease.task.clone(),
        due: false,
        own,
    };
    let receive = async |hints: &mut Receiver<Hint>| {
        let hint = tokio::time::timeout(PATIENCE, hints.recv()).await;
        hint.expect("it comes in time").unwrap()
    };
    assert_eq!(receive(&mut elsewhere).await, hint(true));
    assert_eq!(receive(&mut elsewhere).await, hint(true));
    // Hints arrive in order, so duplicates of the first two would have arrived by now.
    other
        .cancel(&lease.task, &Principal::anonymous())
        .await
        .unwrap();
    for own in [true, true, false] {
        assert_eq!(receive(&mut here).await, hint(own));
    }
    assert_eq!(receive(&mut elsewhere).await, hint(false));
}

/// A commit that waits for an answer to the same task must see the answer afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_written_during_a_commit_is_not_lost() {
    let (_postgres, url, store) = new_store().await;
    for (id, suspend) in [
        (1, Commit::default()),
        (
            2,
            Commit {
                publish: vec![("c".to_owned(), b"?".to_vec())],
                taken: vec!["b".to_owned()],
                ..Commit::default()
            },
        ),
    ] {
        let lease = create_leased(&*store, id).await;
        let asks = ["a", "b"].map(|key| (key.to_owned(), b"?".to_vec()));
        let publish = Commit {
            publish: asks.to_vec(),
            ..Commit::default()
        };
        store.commit(&lease, publish).await.unwrap();
        let owner = Principal::anonymous();
        let b = vec![("b".to_owned(), b"2".to_vec())];
        assert!(store.answer(&lease.task, &owner, b).await.unwrap());

        // The statements of an answer, so that the transaction can be held open.
        let mut connection = connect(&url).await;
        let mut answer = connection.begin().await.unwrap();
        sqlx::query("UPDATE refrain_tasks SET open = open - 1, unread = unread + 1, revision = revision + 1 WHERE id = $1")
            .bind(lease.task.as_str())
            .execute(&mut *answer)
            .await
            .unwrap();
        sqlx::query("UPDATE refrain_asks SET state = 'answered', answer = '1' WHERE task = $1 AND key = 'a'")
            .bind(lease.task.as_str())
            .execute(&mut *answer)
            .await
            .unwrap();
        let committing = {
            let (store, lease) = (store.clone(), lease.clone());
            let suspend = Commit {
                next: Next::Suspend(None),
                ..suspend
            };
            tokio::spawn(async move { store.commit(&lease, suspend).await })
        };
        let mut observer = connect(&url).await;
        until(async || {
            let waits: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT 1 FROM pg_stat_activity \
                 WHERE wait_event_type = 'Lock' AND datname = current_database())",
            )
            .fetch_one(&mut observer)
            .await
            .unwrap();
            waits.then_some(())
        })
        .await;
        answer.commit().await.unwrap();
        let committed = committing.await.unwrap().unwrap();
        assert!(committed.answers, "the worker sees the answer");
        let claimed = claim(&*store, HOUR).await;
        assert_eq!(claimed.len(), 1, "and the task is due");
        assert_eq!(claimed[0].answers[0], ("a".to_owned(), b"1".to_vec()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_works_after_a_server_restart() {
    let postgres = TestPostgres::start().unwrap();
    if !postgres.can_stop() {
        println!("skipped: the server in REFRAIN_TEST_POSTGRES cannot be stopped");
        return;
    }
    let url = postgres.database().await.unwrap();
    let store = open(&url).await.unwrap();
    let lease = create_leased(&*store, 1).await;
    postgres.stop().unwrap();
    assert_unavailable(&store.create(new_task(2)).await);
    postgres.start_again().unwrap();
    let created = until(async || store.create(new_task(3)).await.ok()).await;
    assert!(matches!(created, Creation::New(..)), "{created:?}");
    // The task and the lease are still valid.
    let done = commit(Next::Complete(b"r".to_vec()));
    until(async || store.commit(&lease, done.clone()).await.ok()).await;
    let row = until(async || store.find(&lease.task).await.ok()).await;
    assert_eq!(row.unwrap().task.status, StoredStatus::Completed);
    // Hints are received again as well.
    let mut hints = store.hints();
    let mut id = 10;
    until(async || {
        id += 1;
        let _ = store.create(new_task(id)).await;
        let hint = tokio::time::timeout(Duration::from_secs(1), hints.recv()).await;
        hint.ok()
    })
    .await
    .unwrap();
}

/// A proxy to the server that can hold back bytes.
struct DelayProxy {
    url: String,
    paused: Arc<AtomicBool>,
}

impl DelayProxy {
    async fn start(url: &str) -> Self {
        let (before, server) = url.split_once('@').expect("a user");
        let (server, after) = server.split_once('/').expect("a database");
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("an address");
        let url = format!("{before}@{address}/{after}");
        let paused = Arc::new(AtomicBool::new(false));
        let (server, shared) = (server.to_owned(), paused.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await;
                let server = server.expect("the server is there");
                let (client_in, client_out) = client.into_split();
                let (server_in, server_out) = server.into_split();
                tokio::spawn(copy_bytes(client_in, server_out, shared.clone()));
                tokio::spawn(copy_bytes(server_in, client_out, shared.clone()));
            }
        });
        Self { url, paused }
    }
}

async fn copy_bytes(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    paused: Arc<AtomicBool>,
) {
    let mut bytes = [0; 8192];
    while let Ok(1..) = from.peek(&mut bytes).await {
        while paused.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let Ok(read) = from.read(&mut bytes).await else {
            return;
        };
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connection_is_unavailable_and_does_not_hang() {
    let (_postgres, url) = new_database().await;
    let proxy = DelayProxy::start(&url).await;
    let store = open(&proxy.url).await.unwrap();
    let lease = create_leased(&*store, 1).await;
    let journal = |text: &str| Commit {
        journal: Some(text.as_bytes().to_vec()),
        ..Commit::default()
    };
    // The first commit prepares the statement, so that the next one is sent in one piece.
    store.commit(&lease, journal("first")).await.unwrap();
    let mut observer = connect(&url).await;
    // The pool uses the connection of this commit again, since it was used last.
    // `pg_stat_activity` shows the last statement of each connection.
    let backends: Vec<i32> = until(async || {
        let writers = sqlx::query_scalar(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
             AND query LIKE 'UPDATE refrain_tasks%'",
        );
        let writers: Vec<i32> = writers.fetch_all(&mut observer).await.unwrap();
        (!writers.is_empty()).then_some(writers)
    })
    .await;
    proxy.paused.store(true, Ordering::SeqCst);
    let calls = async {
        assert_unavailable(&store.commit(&lease, journal("delayed")).await);
        assert_unavailable(&store.create(new_task(2)).await);
    };
    let ended = tokio::time::timeout(PATIENCE, calls).await;
    ended.expect("each call ends by itself");
    // Another commit overtakes the delayed one, which has not reached the server.
    let direct = open(&url).await.unwrap();
    direct.commit(&lease, journal("newer")).await.unwrap();
    proxy.paused.store(false, Ordering::SeqCst);
    until(async || {
        let gone = "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = ANY($1))";
        let gone = sqlx::query_scalar(gone).bind(&backends);
        let gone: bool = gone.fetch_one(&mut observer).await.unwrap();
        gone.then_some(())
    })
    .await;
    until(async || store.find(&lease.task).await.ok()).await;
    direct.commit(&lease, commit(Next::HandOn)).await.unwrap();
    let claimed = claim(&*direct, HOUR).await;
    let claimed = claimed.iter().find(|one| one.lease.task == lease.task);
    assert_eq!(claimed.unwrap().journal, b"newer");
}

#[tokio::test]
async fn too_long_indexed_value_is_rejected() {
    let (_postgres, _, store) = new_store().await;
    let lease = create_leased(&*store, 1).await;
    let long = "k".repeat(5000);
    let publish = Commit {
        publish: vec![(long.clone(), b"?".to_vec())],
        ..Commit::default()
    };
    let error = store.commit(&lease, publish).await.unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("ask key too long: 5000 bytes"),
        "{message}"
    );
    let owned = NewTask {
        owner: Principal::new(long.clone()),
        ..new_task(2)
    };
    let message = store.create(owned).await.unwrap_err().to_string();
    assert!(
        message.contains("task owner too long: 5000 bytes"),
        "{message}"
    );
    // Looking up a value that is too long finds nothing.
    let owner = Principal::anonymous();
    let answer = vec![(long.clone(), b"1".to_vec())];
    assert!(store.answer(&lease.task, &owner, answer).await.unwrap());
    assert_eq!(store.spilled(&long).await.unwrap(), None);
}

#[tokio::test]
async fn errors_do_not_contain_the_password() {
    let (postgres, url) = new_database().await;
    let store = PgStore::open(&url).await.unwrap();
    let text = format!("{store:?} {postgres:?}");
    let secret = url.split(['/', '@']).nth(2).unwrap().split_once(':');
    assert!(secret.is_none_or(|(_, secret)| !text.contains(secret)));
    let address = url.split_once('@').unwrap().1;
    for url in [
        format!("postgres://refrain:hunter2@{address}"),
        "postgres://refrain:hunter2@127.0.0.1:1/x".to_owned(),
        "postgres://refrain:pass?sslmode=hunter2@127.0.0.1/x".to_owned(),
        "postgres://refrain:hunter2@127.0.0.1:port/x".to_owned(),
        "postgres://refrain:#hunter2@127.0.0.1/x".to_owned(),
    ] {
        let Err(error) = open(&url).await else {
            panic!("{url} was opened");
        };
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// A transaction may fail at its commit, after all rows were sent.
#[tokio::test]
async fn failure_at_commit_is_reported() {
    let (_postgres, url, store) = new_store().await;
    let lease = create_leased(&*store, 1).await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON refrain_tasks
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();";
    sqlx::raw_sql(refuse)
        .execute(&mut connect(&url).await)
        .await
        .unwrap();
    assert_late_failures_are_reported(&*store, &lease).await;
    let owner = Principal::anonymous();
    assert_failed(&store.cancel(&lease.task, &owner).await);
    assert_failed(&store.extend(std::slice::from_ref(&lease), HOUR).await);
}

/// Each connection counts in its own row of an account. The rows of `left` add up to 0, those of
/// `kept` do not.
#[tokio::test]
async fn sweep_deletes_the_usage_of_accounts_without_data() {
    let (_postgres, url, store) = new_store().await;
    let mut connection = connect(&url).await;
    let rows = "INSERT INTO refrain_usage (owner, slot, tasks, bytes) \
        VALUES ('=left', 16, 1, -10), ('=left', 17, -1, 10), ('=kept', 16, 1, 0), ('=kept', 17, 0, -10)";
    connection.execute(rows).await.unwrap();
    leave_data_of_one_account(&*store).await;
    let owners = sqlx::query_scalar(USAGE_OWNERS);
    let owners: Vec<String> = owners.fetch_all(&mut connection).await.unwrap();
    assert_eq!(owners, ["*", "=account 0", "=kept"]);
}

/// A count that is added while a sweep deletes the account's rows is kept, and the sweep does not wait for it.
#[tokio::test]
async fn sweep_does_not_lose_concurrent_usage() {
    let (_postgres, url, store) = new_store().await;
    let (mut writer, mut other) = (connect(&url).await, connect(&url).await);
    let rows = "INSERT INTO refrain_usage (owner, slot, tasks, bytes) \
        VALUES ('=a', 16, 1, 10), ('=a', 17, -1, -10), ('=a', 18, 0, 0)";
    writer.execute(rows).await.unwrap();
    for statement in [
        "BEGIN",
        "UPDATE refrain_usage SET tasks = tasks + 1 WHERE slot = 17",
    ] {
        writer.execute(statement).await.unwrap();
    }
    store.sweep(Duration::ZERO, 100).await.unwrap();
    writer.execute("COMMIT").await.unwrap();
    store.sweep(Duration::ZERO, 100).await.unwrap();
    let tasks =
        "SELECT sum(tasks)::bigint, sum(bytes)::bigint FROM refrain_usage WHERE owner = '=a'";
    let sums: (i64, i64) = sqlx::query_as(tasks).fetch_one(&mut other).await.unwrap();
    assert_eq!(sums, (1, 0));
}

/// With 100,000 tasks that wait for an answer and 100,000 ready tasks, a claim reads only the tasks that it takes.
#[tokio::test]
async fn claim_does_not_read_waiting_tasks() {
    let (_postgres, url, store) = new_store().await;
    let mut connection = connect(&url).await;
    let uncounted = "ALTER TABLE refrain_tasks DISABLE TRIGGER refrain_count";
    connection.execute(uncounted).await.unwrap();
    sqlx::query(
        "INSERT INTO refrain_tasks (id, flow, tool, call, journal, status, created, updated, ttl, \
            poll_interval, expires, due, fence, attempts, revision, last_commit, open, unread) \
         SELECT 'task' || n, decode(lpad(to_hex(n), 32, '0'), 'hex'), 'tool', '', '', 'input_required', \
            0, 0, 0, 0, 9000000000000000, 9000000000000000, 0, 0, 1, 0, 1, 0 \
         FROM generate_series(1, 100000) n",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO refrain_tasks (id, flow, owner, tool, call, journal, status, created, updated, ttl, \
            poll_interval, expires, due, fence, attempts, revision, last_commit, open, unread, turn) \
         SELECT 'ready' || n, decode(lpad(to_hex(n), 32, '0'), 'hex'), 'alice', 'tool', '', '', 'working', \
            0, 0, 0, 0, 9000000000000000, n, 0, 0, 1, 0, 0, 0, n \
         FROM generate_series(1, 100000) n",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    for id in 0..10 {
        store.create(new_task(id)).await.unwrap();
    }
    sqlx::query("ANALYZE refrain_tasks")
        .execute(&mut connection)
        .await
        .unwrap();
    let plan = sqlx::query(
        "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) \
         SELECT id FROM refrain_tasks \
         WHERE turn IS NOT NULL AND due <= (extract(epoch FROM statement_timestamp()) * 1000000)::bigint \
            AND coalesce(account, owner, '') <> ALL('{bob}') \
            AND (tool = ANY('{tool}') OR expires <= (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) \
         ORDER BY turn, due LIMIT 10 FOR UPDATE SKIP LOCKED",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    let scan = "Index Scan using refrain_tasks_turn on refrain_tasks (actual rows=10 ";
    assert!(plan.contains(scan), "{plan}");
    assert!(!plan.contains("Rows Removed"), "{plan}");
    println!("{plan}");
}
