//! Helpers for the tests of the databases.

use refrain_core::{FlowId, Principal};
use refrain_store::{
    Claim, ClaimedTask, Commit, Creation, Lease, NewTask, Next, OpenStoreError, Store, StoreError,
    TaskId, TaskStore,
};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

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
    assert_eq!((*found, *known), (99, 10));
    assert!(error.to_string().contains("version 99"), "{error}");
}

/// Makes a schema look like that of an unreleased version.
pub(crate) const MAKE_OLDER: &str = "UPDATE refrain_schema SET version = 9";

/// Checks the error of opening a store after [`MAKE_OLDER`].
#[track_caller]
pub(crate) fn assert_older_schema(error: &OpenStoreError) {
    assert!(
        matches!(error, OpenStoreError::Older { found: 9 }),
        "{error:?}"
    );
    let message = error.to_string();
    assert!(message.contains("version 9"), "{message}");
    assert!(message.contains("empty database"), "{message}");
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
