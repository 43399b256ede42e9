//! Leases: who has a task, and for how long.

use super::support::{
    HOUR, alice, assert_is_lost, assert_lost, assert_none_due, claim, claim_for, claim_soon,
    commit, create, create_leased, get, keys, lease_of, new, next, publish,
};
use crate::{Claim, Commit, Lease, NewTask, Next, Store};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

const NO_TIME: Duration = Duration::ZERO;

pub(super) async fn a_task_is_taken_by_one_worker(store: Arc<dyn Store>) {
    for _ in 0..40 {
        create(&*store, new()).await;
    }
    let workers = (0..8).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let claimed = claim_for(&*store, 3, HOUR).await;
                if claimed.is_empty() {
                    return mine;
                }
                mine.extend(claimed.into_iter().map(|claimed| claimed.lease.task));
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    let mut taken = Vec::new();
    for worker in workers {
        taken.extend(worker.await.expect("no worker panics"));
    }
    // A worker may have found all that was left in others' hands; then nobody has it, and it is due still.
    let left = claim_for(&*store, 40, HOUR).await;
    taken.extend(left.into_iter().map(|claimed| claimed.lease.task));
    assert_eq!(taken.len(), 40, "no task is taken twice");
    let distinct: HashSet<_> = taken.into_iter().collect();
    assert_eq!(distinct.len(), 40, "and none is left out");
    assert_none_due(&*store).await;
}

pub(super) async fn what_is_longest_due_is_taken_first(store: Arc<dyn Store>) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(create(&*store, new()).await.id);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The first is put behind the others.
    let first = claim_for(&*store, 1, HOUR).await.remove(0).lease;
    assert_eq!(first.task, ids[0]);
    commit(&*store, &first, next(Next::HandOn)).await;
    let claimed = claim_for(&*store, 2, HOUR).await;
    let claimed: Vec<_> = claimed.into_iter().map(|one| one.lease.task).collect();
    assert_eq!(claimed, ids[1..]);
    assert_eq!(claim(&*store).await.lease.task, ids[0]);
}

pub(super) async fn no_more_are_taken_than_wanted(store: Arc<dyn Store>) {
    for _ in 0..3 {
        create(&*store, new()).await;
    }
    assert_eq!(claim_for(&*store, 0, HOUR).await.len(), 0);
    assert_eq!(claim_for(&*store, 2, HOUR).await.len(), 2);
    assert_eq!(claim_for(&*store, usize::MAX, HOUR).await.len(), 1);
}

pub(super) async fn only_the_tools_of_the_worker_are_taken(store: Arc<dyn Store>) {
    for tool in ["a", "b", "c"] {
        let tool = tool.to_owned();
        create(&*store, NewTask { tool, ..new() }).await;
    }
    let take = async |tools: &[&str]| {
        let tools = keys(tools);
        let claim = Claim {
            worker: "w",
            tools: &tools,
            lease: HOUR,
            most: 10,
        };
        let claimed = store.claim(claim).await.expect("the store answers");
        claimed.into_iter().map(|one| one.tool).collect::<Vec<_>>()
    };
    assert_eq!(take(&[]).await, keys(&[]));
    assert_eq!(take(&["d", "A"]).await, keys(&[]));
    assert_eq!(take(&["c", "a"]).await, keys(&["a", "c"]));
    assert_eq!(take(&["a", "b", "c"]).await, keys(&["b"]));
}

pub(super) async fn what_has_outlived_its_time_is_taken_by_anyone(store: Arc<dyn Store>) {
    let short = NewTask {
        tool: "of nobody".to_owned(),
        ttl: NO_TIME,
        ..new()
    };
    create(&*store, short).await;
    let claimed = claim_soon(&*store).await;
    assert_eq!(claimed.left, NO_TIME);
    assert_eq!(claimed.tool, "of nobody");
    assert_none_due(&*store).await;
}

pub(super) async fn a_claim_brings_all_that_a_worker_needs(store: Arc<dyn Store>) {
    let given = new();
    create(&*store, given.clone()).await;
    let claimed = claim(&*store).await;
    assert_eq!(claimed.lease.task, given.id);
    assert_eq!(claimed.owner, alice());
    assert_eq!(claimed.flow, given.flow);
    assert_eq!(claimed.tool, "tool");
    assert_eq!(claimed.call, b"call");
    assert_eq!(claimed.journal, b"journal");
    assert_eq!(claimed.answers, Vec::new());
    assert_eq!(claimed.attempt, 1);
    assert_eq!(claimed.last_error, None);
    assert!(claimed.left <= HOUR && claimed.left > HOUR / 2);
    assert_eq!(claimed.ttl, HOUR);
    let row = store.find(&given.id).await.expect("an answer");
    assert_eq!(row.expect("it is there").worker.as_deref(), Some("worker"));
}

pub(super) async fn a_task_created_with_a_worker_is_that_workers(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    assert_none_due(&*store).await;
    let row = store.find(&lease.task).await.expect("an answer");
    let row = row.expect("it is there");
    assert_eq!(row.worker.as_deref(), Some("maker"));
    assert_eq!(row.attempts, 1);
    commit(&*store, &lease, next(Next::Complete(Vec::new()))).await;
}

/// A task whose lease runs out as it is given.
async fn create_run_out(store: &dyn Store) -> Lease {
    let mut new = new();
    new.claimed = Some(("maker".to_owned(), NO_TIME));
    lease_of(store.create(new).await)
}

pub(super) async fn a_lease_that_ran_out_is_taken_over(store: Arc<dyn Store>) {
    let first = create_run_out(&*store).await;
    let second = claim_soon(&*store).await;
    assert_eq!(second.lease.task, first.task);
    assert!(second.lease.fence > first.fence);
    assert_eq!(second.attempt, 2);
    assert_none_due(&*store).await;
    assert_lost(&*store, &first).await;
    commit(&*store, &second.lease, next(Next::Keep)).await;
}

pub(super) async fn a_lower_fence_writes_nothing(store: Arc<dyn Store>) {
    let first = create_run_out(&*store).await;
    let second = claim_soon(&*store).await.lease;
    commit(&*store, &second, publish(&[("k", "?")])).await;
    let before = get(&*store, &first.task).await;
    for next in [
        Next::Keep,
        Next::SetDown(None),
        Next::HandOn,
        Next::Retry(NO_TIME, "stale".to_owned()),
        Next::Complete(b"stale".to_vec()),
        Next::Fail(b"stale".to_vec()),
    ] {
        let stale = Commit {
            journal: Some(b"stale".to_vec()),
            withdrawn: keys(&["k"]),
            status_message: Some("stale".to_owned()),
            next,
            ..publish(&[("stale", "?")])
        };
        assert_is_lost(&store.commit(&first, stale).await);
    }
    assert_lost(&*store, &first).await;
    let after = get(&*store, &first.task).await;
    assert_eq!(after.revision, before.revision);
    assert_eq!(after.asks, before.asks);
    assert_eq!(after.status_message, None);
    commit(&*store, &second, next(Next::HandOn)).await;
    assert_eq!(claim(&*store).await.journal, b"journal");
}

pub(super) async fn a_lease_that_is_extended_is_held(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let other = create_leased(&*store).await;
    let wrong = Lease {
        fence: lease.fence + 1,
        ..lease.clone()
    };
    let leases = [wrong, lease.clone(), other.clone()];
    let held = store.extend(&leases, NO_TIME).await;
    let held: HashSet<_> = held.expect("an answer").into_iter().collect();
    assert_eq!(held, HashSet::from([lease.clone(), other.clone()]));
    // They were shortened to nothing, and are revived.
    let leases = [lease, other];
    let held = store.extend(&leases, HOUR).await.expect("an answer");
    assert_eq!(held.len(), 2);
    assert_none_due(&*store).await;
    assert_eq!(store.extend(&[], HOUR).await.expect("no error"), Vec::new());
}

pub(super) async fn a_lease_that_ran_out_can_be_revived(store: Arc<dyn Store>) {
    let lease = create_run_out(&*store).await;
    let leases = [lease.clone()];
    assert_eq!(
        store.extend(&leases, HOUR).await.expect("no error"),
        leases.to_vec()
    );
    assert_none_due(&*store).await;
    commit(&*store, &lease, next(Next::Keep)).await;
    // Once another has it, it is gone.
    assert_eq!(
        store.extend(&leases, NO_TIME).await.expect("no error"),
        leases.to_vec()
    );
    claim_soon(&*store).await;
    assert_eq!(
        store.extend(&leases, HOUR).await.expect("no error"),
        Vec::new()
    );
}

pub(super) async fn a_lease_that_was_given_up_is_not_extended(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, next(Next::HandOn)).await;
    // A heartbeat that comes late must not keep others from the task.
    let leases = [lease.clone()];
    assert_eq!(
        store.extend(&leases, HOUR).await.expect("no error"),
        Vec::new()
    );
    assert_eq!(claim(&*store).await.lease.task, lease.task);
}
