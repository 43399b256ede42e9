//! What operators do: looking, starting anew, sweeping.

use super::support::{
    HOUR, alice, answer, assert_lost, assert_none_due, bob, claim, claim_soon, commit, create,
    create_leased, get, id, new, next, pairs, publish,
};
use crate::{Commit, Lease, ListTasks, NewTask, Next, Store, Swept, TaskId, TaskRow, TaskStatus};
use refrain_core::Principal;
use std::sync::Arc;
use std::time::Duration;

async fn find(store: &dyn Store, id: &TaskId) -> TaskRow {
    let row = store.find(id).await.expect("the store answers");
    row.expect("the task is there")
}

async fn list(store: &dyn Store, list: ListTasks) -> Vec<TaskId> {
    let rows = store.list(list).await.expect("the store answers");
    rows.into_iter().map(|row| row.task.id).collect()
}

fn all() -> ListTasks {
    ListTasks {
        most: 100,
        ..ListTasks::default()
    }
}

pub(super) async fn an_operator_sees_every_task(store: Arc<dyn Store>) {
    for owner in [alice(), bob(), Principal::anonymous(), Principal::new("")] {
        let owned = NewTask {
            owner: owner.clone(),
            ..new()
        };
        let task = create(&*store, owned).await;
        let row = find(&*store, &task.id).await;
        assert_eq!(row.owner, owner);
        assert_eq!(row.task.id, task.id);
        assert_eq!(row.worker, None);
        assert_eq!(row.due, Some(task.created));
        assert_eq!((row.attempts, row.last_error), (0, None));
    }
    assert_eq!(list(&*store, all()).await.len(), 4);
    let unknown = store.find(&id()).await.expect("the store answers");
    assert!(unknown.is_none());
}

pub(super) async fn the_latest_are_listed_first(store: Arc<dyn Store>) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(create(&*store, new()).await.id);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    ids.reverse();
    assert_eq!(list(&*store, all()).await, ids);
    let two = ListTasks { most: 2, ..all() };
    assert_eq!(list(&*store, two).await, ids[..2]);
    let none = ListTasks { most: 0, ..all() };
    assert!(list(&*store, none).await.is_empty());
}

pub(super) async fn a_list_can_be_narrowed(store: Arc<dyn Store>) {
    let asking = create_leased(&*store).await;
    commit(&*store, &asking, publish(&[("a", "A?"), ("b", "B?")])).await;
    let other = NewTask {
        tool: "other".to_owned(),
        ..new()
    };
    let other = create(&*store, other).await.id;
    let done = create_leased(&*store).await;
    commit(&*store, &done, next(Next::Complete(b"r".to_vec()))).await;
    let narrowed = async |status, tool: Option<&str>| {
        let tool = tool.map(str::to_owned);
        let narrow = ListTasks {
            status,
            tool,
            ..all()
        };
        list(&*store, narrow).await
    };
    let input = Some(TaskStatus::InputRequired);
    assert_eq!(
        narrowed(input, None).await,
        std::slice::from_ref(&asking.task)
    );
    assert_eq!(narrowed(None, Some("other")).await, [other]);
    assert_eq!(narrowed(None, Some("tool")).await.len(), 2);
    let completed = Some(TaskStatus::Completed);
    assert_eq!(
        narrowed(completed, Some("tool")).await,
        std::slice::from_ref(&done.task)
    );
    assert!(narrowed(completed, Some("other")).await.is_empty());
    let rows = store.list(all()).await.expect("the store answers");
    let asks = |id: &TaskId| {
        let row = rows.iter().find(|row| row.task.id == *id);
        row.map(|row| row.task.asks.clone())
    };
    let expected = pairs(&[("a", "A?"), ("b", "B?")]);
    assert_eq!(asks(&asking.task), Some(expected));
    assert_eq!(asks(&done.task), Some(Vec::new()));
}

async fn requeue(store: &dyn Store, id: &TaskId) -> TaskRow {
    let row = store.requeue(id).await.expect("the store answers");
    row.expect("the task is there")
}

pub(super) async fn a_requeued_task_is_due_at_once(store: Arc<dyn Store>) {
    let unknown = store.requeue(&id()).await.expect("the store answers");
    assert!(unknown.is_none());
    create(&*store, new()).await;
    let lease = claim(&*store).await.lease;
    let retry = next(Next::Retry(HOUR / 2, "it broke".to_owned()));
    commit(&*store, &lease, retry).await;
    let row = requeue(&*store, &lease.task).await;
    assert_eq!(row.attempts, 0);
    assert_eq!(row.worker, None);
    assert_eq!(row.task.status, TaskStatus::Working);
    assert_eq!(row.task.ttl, HOUR, "it lives no longer than before");
    let claimed = claim(&*store).await;
    assert_eq!(claimed.lease.task, lease.task);
    assert_eq!(claimed.attempt, 1);
    // Also one that waits for an answer.
    let ask = Commit {
        next: Next::SetDown(None),
        ..publish(&[("a", "?")])
    };
    commit(&*store, &claimed.lease, ask).await;
    let row = requeue(&*store, &lease.task).await;
    assert_eq!(row.task.status, TaskStatus::InputRequired);
    assert_eq!(row.task.asks, pairs(&[("a", "?")]));
    claim(&*store).await;
}

pub(super) async fn a_requeued_task_is_lost_to_its_worker(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    requeue(&*store, &lease.task).await;
    assert_lost(&*store, &lease).await;
    assert!(claim(&*store).await.lease.fence > lease.fence);
}

pub(super) async fn a_failed_task_can_be_requeued(store: Arc<dyn Store>) {
    let short = NewTask {
        ttl: Duration::from_millis(50),
        ..new()
    };
    create(&*store, short).await;
    let lease = claim_soon(&*store).await.lease;
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    answer(&*store, &lease.task, &[("a", "1")]).await;
    commit(&*store, &lease, next(Next::Fail(b"error".to_vec()))).await;
    let failed = get(&*store, &lease.task).await;
    let row = requeue(&*store, &lease.task).await;
    assert_eq!(row.task.status, TaskStatus::InputRequired, "as it was");
    assert_eq!(row.task.asks, pairs(&[("b", "?")]));
    assert_eq!(row.task.outcome, None);
    assert_eq!(row.attempts, 0);
    // It lives for as long as it was to live, from now.
    let end = row.task.created + row.task.ttl;
    assert!(end >= failed.updated + Duration::from_millis(50));
    let claimed = claim(&*store).await;
    assert_eq!(claimed.ttl, Duration::from_millis(50));
    assert_eq!(claimed.answers, pairs(&[("a", "1")]));
    assert_lost(&*store, &lease).await;
    let done = next(Next::Complete(b"after all".to_vec()));
    commit(&*store, &claimed.lease, done).await;
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.outcome.as_deref(), Some(&b"after all"[..]));
}

pub(super) async fn what_is_done_or_cancelled_is_not_requeued(store: Arc<dyn Store>) {
    let done = create_leased(&*store).await;
    commit(&*store, &done, next(Next::Complete(b"r".to_vec()))).await;
    let cancelled = create_leased(&*store).await;
    assert!(
        store
            .cancel(&cancelled.task, &alice())
            .await
            .expect("no error")
    );
    for (lease, status) in [
        (&done, TaskStatus::Completed),
        (&cancelled, TaskStatus::Cancelled),
    ] {
        let before = get(&*store, &lease.task).await;
        let row = requeue(&*store, &lease.task).await;
        assert_eq!(row.task.status, status);
        assert_eq!(row.task.revision, before.revision);
        assert_eq!(row.due, None);
    }
    assert_none_due(&*store).await;
}

/// A task that is over, of this time to live.
async fn create_ended(store: &dyn Store, ttl: Duration) -> Lease {
    let claimed = Some(("maker".to_owned(), HOUR));
    let new = NewTask {
        ttl,
        claimed,
        ..new()
    };
    let lease = super::support::lease_of(store.create(new).await);
    let end = Commit {
        next: Next::Complete(b"r".to_vec()),
        ..publish(&[("a", "?")])
    };
    commit(store, &lease, end).await;
    lease
}

/// Sweeps until this many tasks are gone in all.
async fn sweep_tasks(store: &dyn Store, wanted: u64) {
    let sweeping = async {
        let mut gone = 0;
        while gone < wanted {
            let swept = store.sweep(Duration::ZERO, 100).await;
            gone += swept.expect("the store answers").tasks;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        gone
    };
    let gone = tokio::time::timeout(Duration::from_secs(60), sweeping).await;
    assert_eq!(gone.expect("they are swept within a minute"), wanted);
}

pub(super) async fn a_sweep_takes_what_is_over(store: Arc<dyn Store>) {
    let ended = create_ended(&*store, Duration::ZERO).await;
    let kept = create_ended(&*store, HOUR).await;
    sweep_tasks(&*store, 1).await;
    let found = store.find(&ended.task).await.expect("an answer");
    assert!(found.is_none());
    find(&*store, &kept.task).await;
    let rest = store.sweep(Duration::ZERO, 100).await;
    assert_eq!(rest.expect("no error"), Swept::default());
}

pub(super) async fn a_sweep_leaves_what_is_not_over(store: Arc<dyn Store>) {
    // One whose time is over, but that nobody has ended yet; and one that ended just now.
    let running = NewTask {
        ttl: Duration::ZERO,
        ..new()
    };
    let running = create(&*store, running).await.id;
    let ended = create_ended(&*store, Duration::ZERO).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    for keep in [HOUR, Duration::MAX] {
        assert_eq!(
            store.sweep(keep, 100).await.expect("no error"),
            Swept::default()
        );
    }
    sweep_tasks(&*store, 1).await;
    let found = store.find(&ended.task).await.expect("an answer");
    assert!(found.is_none());
    assert_eq!(claim(&*store).await.lease.task, running);
}

pub(super) async fn a_sweep_takes_no_more_than_it_may(store: Arc<dyn Store>) {
    for _ in 0..5 {
        create_ended(&*store, Duration::ZERO).await;
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
    let none = store.sweep(Duration::ZERO, 0).await;
    assert_eq!(none.expect("no error"), Swept::default());
    let two = store.sweep(Duration::ZERO, 2).await.expect("an answer");
    assert!(two.tasks <= 2, "{two:?}");
    sweep_tasks(&*store, 5 - two.tasks).await;
    assert!(list(&*store, all()).await.is_empty());
}

pub(super) async fn a_swept_flow_may_become_a_task_again(store: Arc<dyn Store>) {
    let again = NewTask {
        ttl: Duration::ZERO,
        claimed: Some(("maker".to_owned(), HOUR)),
        ..new()
    };
    let lease = super::support::lease_of(store.create(again.clone()).await);
    commit(&*store, &lease, publish(&[("a", "?")])).await;
    commit(&*store, &lease, next(Next::Fail(Vec::new()))).await;
    sweep_tasks(&*store, 1).await;
    // Even with the same id, nothing of its past is there.
    let lease = super::support::lease_of(store.create(again).await);
    commit(&*store, &lease, publish(&[("a", "new?")])).await;
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.asks, pairs(&[("a", "new?")]));
}
