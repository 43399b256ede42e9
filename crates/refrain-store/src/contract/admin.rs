//! Administration: list, find, requeue, sweep.

use super::support::{
    HOUR, Subject, alice, asks, bob, id, new, open, pairs, publish, sleep_millis, until,
};
use crate::{Lease, ListTasks, Next, StoredStatus, SweepCounts, TaskId};
use refrain_core::Principal;
use std::time::Duration;

/// Lists at most this many tasks.
async fn list(store: &Subject, most: usize) -> Vec<TaskId> {
    let list = ListTasks {
        most,
        ..ListTasks::default()
    };
    let rows = store.0.list(list).await.expect("no error");
    rows.into_iter().map(|row| row.task.id).collect()
}

pub(super) async fn list_contains_tasks_of_all_owners(store: Subject) {
    for owner in [alice(), bob(), Principal::anonymous(), Principal::new("")] {
        let task = store.create(new().owner(&owner)).await;
        let row = store.find(&task.id).await;
        assert_eq!(row.owner, owner);
        assert_eq!(row.task.id, task.id);
        assert_eq!(row.worker, None);
        assert_eq!(row.due, Some(task.created));
        assert_eq!((row.attempts, row.last_error), (0, None));
    }
    assert_eq!(list(&store, 100).await.len(), 4);
    let unknown = store.0.find(&id()).await.expect("no error");
    assert!(unknown.is_none());
}

pub(super) async fn latest_tasks_are_listed_first(store: Subject) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.insert(0, store.create(new()).await.id);
        sleep_millis(2).await;
    }
    assert_eq!(list(&store, 100).await, ids);
    assert_eq!(list(&store, 2).await, ids[..2]);
    assert!(list(&store, 0).await.is_empty());
}

pub(super) async fn list_can_be_filtered(store: Subject) {
    let both = [("a", "A?"), ("b", "B?")];
    let asking = store.lease().await;
    store.commit(&asking, publish(&both)).await;
    let other = store.create(new().tool("other")).await.id;
    let done = store.lease().await;
    store.then(&done, Next::Complete(b"r".to_vec())).await;
    let listed = async |status, tool: Option<&str>| {
        let list = ListTasks {
            status,
            tool: tool.map(str::to_owned),
            most: 100,
        };
        let rows = store.0.list(list).await.expect("no error").into_iter();
        let mut tasks: Vec<_> = rows.map(|row| (row.task.id, row.task.asks)).collect();
        tasks.sort();
        tasks
    };
    let mut all = [
        (asking.task, open(&both)),
        (other, Vec::new()),
        (done.task, Vec::new()),
    ];
    let input = Some(StoredStatus::InputRequired);
    assert_eq!(listed(input, None).await, all[..1]);
    assert_eq!(listed(None, Some("other")).await, all[1..2]);
    assert_eq!(listed(None, Some("tool")).await.len(), 2);
    let completed = Some(StoredStatus::Completed);
    assert_eq!(listed(completed, Some("tool")).await, all[2..]);
    assert!(listed(completed, Some("other")).await.is_empty());
    all.sort();
    assert_eq!(listed(None, None).await, all);
}

pub(super) async fn requeued_task_is_due_at_once(store: Subject) {
    let unknown = store.0.requeue(&id()).await.expect("no error");
    assert!(unknown.is_none());
    store.create(new()).await;
    let lease = store.claim().await.lease;
    store
        .then(&lease, Next::Retry(HOUR / 2, "it broke".to_owned()))
        .await;
    let row = store.requeue(&lease.task).await;
    assert_eq!(row.attempts, 0);
    assert_eq!(row.worker, None);
    assert_eq!(row.task.status, StoredStatus::Working);
    assert_eq!(row.task.ttl, HOUR, "its time to live is unchanged");
    let claimed = store.claim().await;
    assert_eq!(claimed.lease.task, lease.task);
    assert_eq!(claimed.attempt, 1);
    // A task that waits for an answer becomes due as well.
    let ask = asks(&["a"]).suspend();
    store.commit(&claimed.lease, ask).await;
    let row = store.requeue(&lease.task).await;
    assert_eq!(row.task.status, StoredStatus::InputRequired);
    assert_eq!(row.task.asks, open(&[("a", "?")]));
    store.claim().await;
}

pub(super) async fn requeued_task_is_lost_to_its_worker(store: Subject) {
    let lease = store.lease().await;
    store.requeue(&lease.task).await;
    store.assert_lost(&lease).await;
    assert!(store.claim().await.lease.fence > lease.fence);
}

pub(super) async fn failed_task_can_be_requeued(store: Subject) {
    let ttl = Duration::from_millis(50);
    store.create(new().ttl(ttl)).await;
    let lease = store.claim_soon().await.lease;
    store.commit(&lease, asks(&["a", "b"])).await;
    store.answer(&lease, &[("a", "1")]).await;
    store.then(&lease, Next::Fail(b"error".to_vec())).await;
    let failed = store.get(&lease.task).await;
    let row = store.requeue(&lease.task).await;
    assert_eq!(row.task.status, StoredStatus::InputRequired, "as before");
    assert_eq!(row.task.asks, open(&[("b", "?")]));
    assert_eq!(row.task.outcome, None);
    assert_eq!(row.attempts, 0);
    // Its time to live starts again.
    assert!(row.task.created + row.task.ttl >= failed.updated + ttl);
    let claimed = store.claim().await;
    assert_eq!(claimed.ttl, ttl);
    assert_eq!(claimed.answers, pairs(&[("a", "1")]));
    store.assert_lost(&lease).await;
    store
        .then(&claimed.lease, Next::Complete(b"after all".to_vec()))
        .await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.outcome.as_deref(), Some(&b"after all"[..]));
}

pub(super) async fn completed_or_cancelled_task_is_not_requeued(store: Subject) {
    let done = store.lease().await;
    store.then(&done, Next::Complete(b"r".to_vec())).await;
    let cancelled = store.lease().await;
    store.cancel(&cancelled.task).await;
    for (id, status) in [
        (&done.task, StoredStatus::Completed),
        (&cancelled.task, StoredStatus::Cancelled),
    ] {
        let before = store.get(id).await;
        let row = store.requeue(id).await;
        assert_eq!(row.task.status, status);
        assert_eq!(row.task.revision, before.revision);
        assert_eq!(row.due, None);
    }
    store.assert_none_due().await;
}

/// Creates a task and ends it.
async fn create_ended(store: &Subject, ttl: Duration) -> Lease {
    let lease = store.create_claimed(new().ttl(ttl), "creator", HOUR).await;
    let end = asks(&["a"]).next(Next::Complete(b"r".to_vec()));
    store.commit(&lease, end).await;
    lease
}

/// Sweeps until this many tasks are deleted.
async fn sweep_tasks(store: &Subject, wanted: u64) {
    let mut deleted = 0;
    let sweep = async || {
        deleted += store.sweep(Duration::ZERO, 100).await.tasks;
        (deleted >= wanted).then_some(deleted)
    };
    assert_eq!(until(sweep).await, wanted);
}

async fn assert_deleted(store: &Subject, id: &TaskId) {
    assert!(store.0.find(id).await.expect("no error").is_none());
}

pub(super) async fn sweep_deletes_ended_tasks(store: Subject) {
    let ended = create_ended(&store, Duration::ZERO).await;
    let kept = create_ended(&store, HOUR).await;
    sweep_tasks(&store, 1).await;
    assert_deleted(&store, &ended.task).await;
    store.find(&kept.task).await;
    let rest = store.sweep(Duration::ZERO, 100).await;
    assert_eq!(rest, SweepCounts::default());
}

pub(super) async fn sweep_keeps_other_tasks(store: Subject) {
    // One task has expired but not ended, the other ended just now.
    let running = store.create(new().ttl(Duration::ZERO)).await.id;
    let ended = create_ended(&store, Duration::ZERO).await;
    sleep_millis(2).await;
    for keep in [HOUR, Duration::MAX] {
        assert_eq!(store.sweep(keep, 100).await, SweepCounts::default());
    }
    sweep_tasks(&store, 1).await;
    assert_deleted(&store, &ended.task).await;
    assert_eq!(store.claim().await.lease.task, running);
}

pub(super) async fn sweep_is_limited(store: Subject) {
    for _ in 0..5 {
        create_ended(&store, Duration::ZERO).await;
    }
    sleep_millis(2).await;
    let none = store.sweep(Duration::ZERO, 0).await;
    assert_eq!(none, SweepCounts::default());
    let two = store.sweep(Duration::ZERO, 2).await;
    assert!(two.tasks <= 2, "{two:?}");
    sweep_tasks(&store, 5 - two.tasks).await;
    assert!(list(&store, 100).await.is_empty());
}

pub(super) async fn swept_task_may_be_created_again(store: Subject) {
    let again = new().ttl(Duration::ZERO);
    let create = async || store.create_claimed(again.clone(), "creator", HOUR).await;
    let lease = create().await;
    store.commit(&lease, asks(&["a"])).await;
    store.then(&lease, Next::Fail(Vec::new())).await;
    sweep_tasks(&store, 1).await;
    // No data of the deleted task is left, even with the same id.
    let lease = create().await;
    store.commit(&lease, publish(&[("a", "new?")])).await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.asks, open(&[("a", "new?")]));
}
