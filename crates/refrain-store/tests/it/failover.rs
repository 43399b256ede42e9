//! A Postgres server that is replaced by its standby.

use super::postgres::{connect, until};
use super::support::{commit, create_leased, new_task};
use refrain_store::test_postgres::TestPostgres;
use refrain_store::{Next, OpenStoreError, StoreError, StoredStatus, open};
use sqlx::{AssertSqlSafe, Executor};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_follows_a_failover() {
    let postgres = Arc::new(TestPostgres::start_with_standby().await.unwrap());
    let url = postgres.database().await.unwrap();
    let both = postgres.with_standby(&url);
    // The order of the hosts does not matter.
    let (user, rest) = both.split_once('@').unwrap();
    let (hosts, database) = rest.split_once('/').unwrap();
    let (primary, standby) = hosts.split_once(',').unwrap();
    let reversed = format!("{user}@{standby},{primary}/{database}");
    let (store, elsewhere) = (open(&both).await.unwrap(), open(&reversed).await.unwrap());
    let only_standby = open(&format!("{user}@{standby}/{database}")).await;
    assert!(
        matches!(
            &only_standby,
            Err(OpenStoreError::Store(StoreError::Unavailable(_)))
        ),
        "{:?}",
        only_standby.err()
    );
    let lease = create_leased(&*store, 1).await;

    // The store leaves a server that becomes read-only, and uses it again when it accepts writes.
    let mut primary = connect(&url).await;
    for (setting, writable) in [("on", false), ("off", true)] {
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {setting}");
        primary.execute(AssertSqlSafe(set)).await.unwrap();
        primary.execute("SELECT pg_reload_conf()").await.unwrap();
        let mut id = 10;
        until(async || {
            id = u8::wrapping_add(id, 1);
            let created = store.create(new_task(id)).await;
            (created.is_ok() == writable).then_some(())
        })
        .await;
    }

    let cluster = postgres.clone();
    let failed_over = tokio::task::spawn_blocking(move || cluster.fail_over());
    failed_over.await.unwrap().unwrap();
    let done = commit(Next::Complete(b"r".to_vec()));
    until(async || store.commit(&lease, done.clone()).await.ok()).await;
    let row = until(async || elsewhere.find(&lease.task).await.ok()).await;
    assert_eq!(row.unwrap().task.status, StoredStatus::Completed);
    // Hints reach the other instance again as well.
    let mut hints = elsewhere.hints();
    let mut id = 100;
    until(async || {
        id = u8::wrapping_add(id, 1);
        let _ = store.create(new_task(id)).await;
        let hint = tokio::time::timeout(Duration::from_millis(200), hints.recv()).await;
        hint.ok()
    })
    .await
    .unwrap();
}
