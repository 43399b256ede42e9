//! Helpers for the tests of the databases.

use refrain_core::{FlowId, Principal};
use refrain_store::{
    Claim, ClaimedTask, Commit, Creation, Lease, LogError, LogKey, NewTask, Next, OpenStoreError,
    Quota, RecordState, Retention, Store, StoreError, TaskId, TaskStore,
};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Statements that undo the migrations after version 2, apart from triggers and the deletion of
/// the former table `refrain_notes`.
pub(crate) const UNDO_MIGRATIONS: &[&str] = &[
    "DROP TABLE refrain_outbox",
    "ALTER TABLE refrain_tasks DROP COLUMN webhooks",
    "DROP TABLE refrain_usage",
    "ALTER TABLE refrain_log DROP COLUMN account",
    "ALTER TABLE refrain_tasks DROP COLUMN extra",
    "ALTER TABLE refrain_tokens DROP COLUMN owner",
    "DROP INDEX refrain_tasks_turn",
    "DROP INDEX refrain_tasks_account",
    "ALTER TABLE refrain_tasks DROP COLUMN account",
    "DROP INDEX refrain_tasks_due",
    "ALTER TABLE refrain_tasks DROP COLUMN turn",
    "CREATE INDEX refrain_tasks_due ON refrain_tasks (due) WHERE due IS NOT NULL",
    "DROP TABLE refrain_turns",
    "DELETE FROM refrain_schema WHERE version > 2",
];

pub(crate) fn new_task(id: u8) -> NewTask {
    NewTask {
        id: TaskId::new([id; 24]),
        flow: FlowId::from_bytes([id; 16]),
        owner: Principal::anonymous(),
        account: Principal::anonymous(),
        tool: "tool".to_owned(),
        call: Vec::new(),
        journal: Vec::new(),
        status_message: None,
        ttl: HOUR,
        poll_interval: Duration::from_secs(1),
        claimed: None,
        webhooks: Vec::new(),
    }
}

/// Creates a task together with a lease.
pub(crate) async fn create_leased(store: &dyn Store, id: u8) -> Lease {
    let claimed = Some(("maker".to_owned(), HOUR));
    let new = NewTask {
        claimed,
        ..new_task(id)
    };
    match store.create(new).await {
        Ok(Creation::New(_, Some(lease))) => lease,
        result => panic!("no lease was granted: {result:?}"),
    }
}

#[track_caller]
pub(crate) fn assert_failed<T: Debug>(done: &Result<T, StoreError>) {
    assert!(matches!(done, Err(StoreError::Failed(_))), "{done:?}");
}

#[track_caller]
pub(crate) fn assert_unavailable<T: Debug>(done: &Result<T, StoreError>) {
    assert!(matches!(done, Err(StoreError::Unavailable(_))), "{done:?}");
}

/// Writes to a store whose transactions fail at their commit, and checks that each write reports it.
pub(crate) async fn assert_late_failures_are_reported(store: &dyn Store, lease: &Lease) {
    for next in [Next::Keep, Next::HandOn, Next::Complete(Vec::new())] {
        assert_failed(&store.commit(lease, commit(next.clone())).await);
        let asks = Commit {
            publish: vec![("a".to_owned(), b"?".to_vec())],
            ..commit(next)
        };
        assert_failed(&store.commit(lease, asks).await);
    }
    assert_failed(&store.create(new_task(2)).await);
}

/// An empty commit with this continuation.
pub(crate) fn commit(next: Next) -> Commit {
    Commit {
        next,
        ..Commit::default()
    }
}

/// Checks the error of opening a store whose schema has version 99.
#[track_caller]
pub(crate) fn assert_newer_schema(error: &OpenStoreError) {
    let OpenStoreError::Newer { found, known } = error else {
        panic!("{error:?}");
    };
    assert_eq!((*found, *known), (99, 9));
    assert!(error.to_string().contains("version 99"), "{error}");
}

/// Claims all tasks that are due.
pub(crate) async fn claim(store: &(impl TaskStore + ?Sized), lease: Duration) -> Vec<ClaimedTask> {
    let claim = Claim {
        worker: "worker",
        tools: &["tool".to_owned()],
        lease,
        most: 10,
        except: &[],
        anonymous: true,
    };
    store.claim(claim).await.expect("no error")
}

/// Claims the only task that is due.
pub(crate) async fn assert_claimable(store: &dyn Store, id: &TaskId) {
    let claimed = claim(store, HOUR).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].lease.task, *id);
}

/// Asserts that the owner of [`new_task`] has one task less than `limit`.
pub(crate) async fn assert_counted(store: &dyn Store, limit: u64) {
    store.set_quota(Quota {
        tasks: limit,
        ..Quota::default()
    });
    assert_created(&[store.create(new_task(201)).await]);
    let rejected = store.create(new_task(202)).await;
    assert!(
        matches!(rejected, Err(StoreError::Quota(_))),
        "{rejected:?}"
    );
}

/// Asserts that changing and deleting a record of an earlier version changes no usage. The
/// anonymous account has two tasks of 1 KiB each; the quota leaves room for one record of 100
/// bytes, not for two.
pub(crate) async fn assert_old_record_is_not_counted(store: &dyn Store) {
    store.set_quota(Quota {
        bytes: 2 * 1024 + 150,
        ..Quota::default()
    });
    let account = Principal::anonymous();
    let begin = async |round| {
        let key = LogKey::round(FlowId::from_bytes([7; 16]), round);
        let keep = Retention {
            now: 1_000,
            until: 9_000,
        };
        (store.begin(&key, &account, keep).await, key)
    };
    let (old, key) = begin(1).await;
    let old = old.expect("no quota applies");
    assert_eq!(old, RecordState::Done("old".to_owned()));
    store.finish(&key, "longer").await.expect("no error");
    store.forget(&key).await.expect("no error");
    let begun = begin(1).await.0.expect("the quota allows it");
    assert_eq!(begun, RecordState::Fresh);
    let rejected = begin(2).await.0;
    assert!(matches!(rejected, Err(LogError::Quota(_))), "{rejected:?}");
}

/// Selects the owners in the table of usage.
pub(crate) const USAGE_OWNERS: &str = "SELECT DISTINCT owner FROM refrain_usage ORDER BY owner";

/// Creates and deletes tasks of three accounts, and leaves a task of the first.
pub(crate) async fn leave_data_of_one_account(store: &dyn Store) {
    let new = |id: u8, ttl| NewTask {
        account: Principal::new(format!("account {}", id % 3)),
        ttl,
        ..new_task(id)
    };
    for id in 0..6 {
        let task = new(id, Duration::ZERO);
        assert_created(&[store.create(task.clone()).await]);
        let cancelled = store.cancel(&task.id, &task.owner).await;
        assert!(cancelled.expect("no error"));
    }
    assert_created(&[store.create(new(6, HOUR)).await]);
    let mut deleted = 0;
    while deleted < 6 {
        deleted += store
            .sweep(Duration::ZERO, 100)
            .await
            .expect("no error")
            .tasks;
    }
    // A sweep skips rows of the usage that another write has locked, so sweep once more.
    store.sweep(Duration::ZERO, 100).await.expect("no error");
}

/// A task of a tool that the tests reject.
pub(crate) fn bad_task(id: u8) -> NewTask {
    NewTask {
        tool: "bad".to_owned(),
        ..new_task(id)
    }
}

/// Creates tasks concurrently. They are queued while another connection has a lock, which `release` releases. For a runtime
/// with one thread.
pub(crate) async fn create_together(
    store: &Arc<dyn Store>,
    tasks: impl IntoIterator<Item = NewTask>,
    release: impl AsyncFnOnce(),
) -> Vec<Result<Creation, StoreError>> {
    let create = |task| {
        let store = store.clone();
        tokio::spawn(async move { store.create(task).await })
    };
    let creations: Vec<_> = tasks.into_iter().map(create).collect();
    // Lets every creation run until its write is queued.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    release().await;
    let mut created = Vec::new();
    for creation in creations {
        created.push(creation.await.expect("no panic"));
    }
    created
}

#[track_caller]
pub(crate) fn assert_created(created: &[Result<Creation, StoreError>]) {
    let is_new = |created: &Result<_, _>| matches!(created, Ok(Creation::New(..)));
    assert!(created.iter().all(is_new), "{created:?}");
}
