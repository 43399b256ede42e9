//! Claims and leases.

use super::support::{HOUR, Subject, alice, asks, assert_is_lost, keys, new, sleep_millis};
use crate::{Lease, Next};
use std::collections::HashSet;
use std::time::Duration;

const NO_TIME: Duration = Duration::ZERO;

pub(super) async fn task_is_claimed_by_one_worker(store: Subject) {
    store.assert_each_claimed_once(&store, 40).await;
}

pub(super) async fn task_that_is_due_longest_is_claimed_first(store: Subject) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(store.create(new()).await.id);
        sleep_millis(2).await;
    }
    // Handing the first task on puts it behind the others.
    let first = store.claim_up_to(1).await.remove(0).lease;
    assert_eq!(first.task, ids[0]);
    store.then(&first, Next::HandOn).await;
    let claimed = store.claim_up_to(2).await;
    let claimed: Vec<_> = claimed.into_iter().map(|one| one.lease.task).collect();
    assert_eq!(claimed, ids[1..]);
    assert_eq!(store.claim().await.lease.task, ids[0]);
}

pub(super) async fn claim_is_limited(store: Subject) {
    for _ in 0..3 {
        store.create(new()).await;
    }
    assert_eq!(store.claim_up_to(0).await.len(), 0);
    assert_eq!(store.claim_up_to(2).await.len(), 2);
    assert_eq!(store.claim_up_to(usize::MAX).await.len(), 1);
}

pub(super) async fn only_tools_of_the_worker_are_claimed(store: Subject) {
    for tool in ["a", "b", "c"] {
        store.create(new().tool(tool)).await;
    }
    let claim = async |tools: &[&str]| {
        let claimed = store.claim_as("w", tools, 10).await;
        claimed.into_iter().map(|one| one.tool).collect::<Vec<_>>()
    };
    assert_eq!(claim(&[]).await, keys(&[]));
    assert_eq!(claim(&["d", "A"]).await, keys(&[]));
    assert_eq!(claim(&["c", "a"]).await, keys(&["a", "c"]));
    assert_eq!(claim(&["a", "b", "c"]).await, keys(&["b"]));
}

pub(super) async fn expired_task_is_claimed_by_any_worker(store: Subject) {
    store.create(new().tool("other").ttl(NO_TIME)).await;
    let claimed = store.claim_soon().await;
    assert_eq!(claimed.left, NO_TIME);
    assert_eq!(claimed.tool, "other");
    store.assert_none_due().await;
}

pub(super) async fn claim_returns_the_task(store: Subject) {
    let task = new();
    store.create(task.clone()).await;
    let claimed = store.claim().await;
    assert_eq!(claimed.lease.task, task.id);
    assert_eq!(claimed.owner, alice());
    assert_eq!(claimed.flow, task.flow);
    assert_eq!(claimed.tool, "tool");
    assert_eq!(claimed.call, b"call");
    assert_eq!(claimed.journal, b"journal");
    assert_eq!(claimed.answers, Vec::new());
    assert_eq!(claimed.attempt, 1);
    assert_eq!(claimed.last_error, None);
    assert!(claimed.left <= HOUR && claimed.left > HOUR / 2);
    assert_eq!(claimed.ttl, HOUR);
    let row = store.find(&task.id).await;
    assert_eq!(row.worker.as_deref(), Some("worker"));
}

pub(super) async fn task_may_be_created_with_a_worker(store: Subject) {
    let lease = store.lease().await;
    store.assert_none_due().await;
    let row = store.find(&lease.task).await;
    assert_eq!(row.worker.as_deref(), Some("creator"));
    assert_eq!(row.attempts, 1);
    store.then(&lease, Next::Complete(Vec::new())).await;
}

/// Creates a task whose lease has expired.
async fn create_expired(store: &Subject) -> Lease {
    store.create_claimed(new(), "creator", NO_TIME).await
}

pub(super) async fn expired_lease_is_taken_over(store: Subject) {
    let first = create_expired(&store).await;
    let second = store.claim_soon().await;
    assert_eq!(second.lease.task, first.task);
    assert!(second.lease.fence > first.fence);
    assert_eq!(second.attempt, 2);
    store.assert_none_due().await;
    store.assert_lost(&first).await;
    store.then(&second.lease, Next::Keep).await;
}

pub(super) async fn lower_fence_writes_nothing(store: Subject) {
    let first = create_expired(&store).await;
    let second = store.claim_soon().await.lease;
    store.commit(&second, asks(&["k"])).await;
    let before = store.get(&first.task).await;
    for next in [
        Next::Keep,
        Next::Suspend(None),
        Next::HandOn,
        Next::Retry(NO_TIME, "stale".to_owned()),
        Next::Complete(b"stale".to_vec()),
        Next::Fail(b"stale".to_vec()),
    ] {
        let stale = asks(&["stale"]).journal("stale").withdrawn(&["k"]);
        let stale = stale.message("stale").next(next);
        assert_is_lost(&store.0.commit(&first, stale).await);
    }
    store.assert_lost(&first).await;
    let after = store.get(&first.task).await;
    assert_eq!(after.revision, before.revision);
    assert_eq!(after.asks, before.asks);
    assert_eq!(after.status_message, None);
    store.then(&second, Next::HandOn).await;
    assert_eq!(store.claim().await.journal, b"journal");
}

pub(super) async fn extended_lease_is_held(store: Subject) {
    let (lease, other) = (store.lease().await, store.lease().await);
    let wrong = Lease {
        fence: lease.fence + 1,
        ..lease.clone()
    };
    let held = store.extend(&[&wrong, &lease, &other], NO_TIME).await;
    let held: HashSet<_> = held.into_iter().collect();
    assert_eq!(held, HashSet::from([lease.clone(), other.clone()]));
    // The leases have expired now, and can still be extended.
    assert_eq!(store.extend(&[&lease, &other], HOUR).await.len(), 2);
    store.assert_none_due().await;
    assert_eq!(store.extend(&[], HOUR).await, []);
}

pub(super) async fn expired_lease_can_be_extended(store: Subject) {
    let lease = create_expired(&store).await;
    let held = std::slice::from_ref(&lease);
    assert_eq!(store.extend(&[&lease], HOUR).await, held);
    store.assert_none_due().await;
    store.then(&lease, Next::Keep).await;
    assert_eq!(store.extend(&[&lease], NO_TIME).await, held);
    // Another worker's claim ends the lease.
    store.claim_soon().await;
    assert_eq!(store.extend(&[&lease], HOUR).await, []);
}

pub(super) async fn released_lease_is_not_extended(store: Subject) {
    let lease = store.lease().await;
    store.then(&lease, Next::HandOn).await;
    // A late heartbeat must not keep others from the task.
    assert_eq!(store.extend(&[&lease], HOUR).await, []);
    assert_eq!(store.claim().await.lease.task, lease.task);
}
