//! Deliveries to webhooks.

use super::support::{HOUR, Subject, alice, assert_is_lost, bob, keys, new, next, sleep_millis};
use crate::{Delivery, Lease, Next, StoredStatus, TaskId};
use refrain_core::Principal;
use std::collections::HashSet;
use std::time::Duration;

const NO_TIME: Duration = Duration::ZERO;

/// A name that a database could mistake for something else.
const ODD: &str = "it's [\"ö\"]:\u{0}\\";

/// Creates a task with a worker and this webhook, and ends it.
async fn end_task(store: &Subject, endpoint: &str) -> Lease {
    let lease = leased(store, &[endpoint]).await;
    store.then(&lease, Next::Complete(b"result".to_vec())).await;
    lease
}

async fn leased(store: &Subject, endpoints: &[&str]) -> Lease {
    store.create(new().webhooks(endpoints)).await;
    store.claim().await.lease
}

fn tasks_of(deliveries: &[Delivery]) -> HashSet<String> {
    let ids = deliveries.iter().map(|delivery| delivery.task.to_string());
    ids.collect()
}

pub(super) async fn ended_task_is_delivered_to_each_endpoint(store: Subject) {
    let lease = leased(&store, &["one", ODD]).await;
    assert_eq!(store.deliveries("one").await, [], "it has not ended");
    store.then(&lease, Next::Complete(b"result".to_vec())).await;
    let task = store.get(&lease.task).await;
    let mut ids = HashSet::new();
    for endpoint in ["one", ODD] {
        let [delivery] = &store.deliveries(endpoint).await[..] else {
            panic!("one delivery to {endpoint:?}");
        };
        assert_eq!(delivery.endpoint, endpoint);
        assert_eq!(delivery.task, lease.task);
        assert_eq!(delivery.tool, "tool");
        assert_eq!(delivery.status, StoredStatus::Completed);
        assert_eq!(delivery.created, task.created);
        assert!(delivery.ended >= delivery.created);
        assert_eq!(delivery.attempt, 1);
        ids.insert(delivery.id.clone());
    }
    assert_eq!(ids.len(), 1, "both are the same event");
    assert_eq!(store.deliveries("two").await, []);
}

pub(super) async fn task_without_webhooks_adds_no_delivery(store: Subject) {
    let lease = leased(&store, &[]).await;
    store.then(&lease, Next::Complete(Vec::new())).await;
    assert_eq!(store.trim(NO_TIME, 0).await, 0);
}

pub(super) async fn every_end_adds_a_delivery(store: Subject) {
    let failed = leased(&store, &["one"]).await;
    store.then(&failed, Next::Fail(b"error".to_vec())).await;
    let cancelled = store.create(new().webhooks(&["one"])).await.id;
    let done = store.0.cancel(&cancelled, &alice()).await;
    assert!(done.expect("no error"));
    // The second cancellation does not end it again.
    let done = store.0.cancel(&cancelled, &alice()).await;
    assert!(done.expect("no error"));
    let statuses = store.deliveries("one").await;
    let statuses: Vec<_> = statuses.iter().map(|one| (&one.task, one.status)).collect();
    let failed = (&failed.task, StoredStatus::Failed);
    let cancelled = (&cancelled, StoredStatus::Cancelled);
    assert_eq!(statuses, [failed, cancelled]);
}

pub(super) async fn lost_commit_adds_no_delivery(store: Subject) {
    let lease = leased(&store, &["one"]).await;
    store.0.requeue(&lease.task).await.expect("no error");
    let lost = store.0.commit(&lease, next(Next::Complete(Vec::new())));
    assert_is_lost(&lost.await);
    assert_eq!(store.deliveries("one").await, []);
}

pub(super) async fn requeued_task_is_delivered_again(store: Subject) {
    let lease = leased(&store, &["one"]).await;
    store.then(&lease, Next::Fail(Vec::new())).await;
    store.0.requeue(&lease.task).await.expect("no error");
    let lease = store.claim().await.lease;
    store.then(&lease, Next::Complete(Vec::new())).await;
    let deliveries = store.deliveries("one").await;
    let statuses: Vec<_> = deliveries.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [StoredStatus::Failed, StoredStatus::Completed]);
    assert_ne!(deliveries[0].id, deliveries[1].id);
}

pub(super) async fn claimed_delivery_is_due_again_after_its_lease(store: Subject) {
    end_task(&store, "one").await;
    let claim = async |lease| {
        let claimed = store.0.claim_deliveries("one", lease, 10).await;
        let claimed = claimed.expect("no error").into_iter();
        claimed.map(|one| one.attempt).collect::<Vec<_>>()
    };
    assert_eq!(claim(NO_TIME).await, [1]);
    sleep_millis(2).await;
    assert_eq!(claim(HOUR).await, [2]);
    assert_eq!(claim(HOUR).await, [0; 0]);
}

pub(super) async fn failed_delivery_waits_for_its_retry(store: Subject) {
    end_task(&store, "one").await;
    let delivery = store.deliveries("one").await.remove(0);
    let retry = async |delivery: &Delivery, wait| {
        let finished = store.0.finish_delivery(delivery, Some(wait)).await;
        finished.expect("no error");
        store.deliveries("one").await
    };
    assert_eq!(retry(&delivery, HOUR).await, []);
    let again = retry(&delivery, NO_TIME).await.remove(0);
    let expected = Delivery {
        attempt: 2,
        ..delivery
    };
    assert_eq!(again, expected);
}

pub(super) async fn late_retry_does_not_affect_a_newer_claim(store: Subject) {
    end_task(&store, "one").await;
    let first = store.0.claim_deliveries("one", NO_TIME, 1).await;
    let first = first.expect("no error").remove(0);
    sleep_millis(2).await;
    assert_eq!(store.deliveries("one").await.len(), 1);
    let late = store.0.finish_delivery(&first, Some(NO_TIME)).await;
    late.expect("no error");
    assert_eq!(store.deliveries("one").await, []);
}

pub(super) async fn finished_delivery_is_deleted(store: Subject) {
    end_task(&store, ODD).await;
    for delivery in store.deliveries(ODD).await {
        let finished = store.0.finish_delivery(&delivery, None).await;
        finished.expect("no error");
    }
    assert_eq!(store.trim(NO_TIME, 0).await, 0);
}

pub(super) async fn delivery_outlives_its_task(store: Subject) {
    let new = new().webhooks(&["one"]).ttl(Duration::from_millis(20));
    let id = store.create(new).await.id;
    let done = store.0.cancel(&id, &alice()).await;
    assert!(done.expect("no error"));
    while store.sweep(NO_TIME, 10).await.tasks == 0 {
        sleep_millis(2).await;
    }
    assert_eq!(store.deliveries("one").await[0].task, id);
}

pub(super) async fn claims_of_deliveries_are_limited(store: Subject) {
    let mut ended = Vec::new();
    for _ in 0..3 {
        ended.push(end_task(&store, "one").await.task);
        sleep_millis(2).await;
    }
    let claim = async |most| {
        let claimed = store.0.claim_deliveries("one", HOUR, most).await;
        let claimed = claimed.expect("no error").into_iter();
        claimed.map(|one| one.task).collect::<Vec<_>>()
    };
    assert_eq!(claim(0).await, []);
    assert_eq!(claim(2).await, ended[..2]);
    assert_eq!(claim(2).await, ended[2..]);
}

pub(super) async fn each_delivery_is_claimed_once(store: Subject) {
    assert_each_claimed_once(&store, &store).await;
}

pub(super) async fn two_handles_claim_each_delivery_once((one, other): (Subject, Subject)) {
    assert_each_claimed_once(&one, &other).await;
}

/// Ends tasks and claims their deliveries concurrently, from these two handles of one store.
async fn assert_each_claimed_once(one: &Subject, other: &Subject) {
    let mut ended = HashSet::new();
    for _ in 0..20 {
        ended.insert(end_task(one, "one").await.task.to_string());
    }
    let stores = [one, other];
    let claim = async |store: Subject| store.deliveries("one").await;
    let claimed = one.concurrently(|_, n| claim(stores[n % 2].clone())).await;
    let mut claimed = claimed.concat();
    claimed.extend(other.deliveries("one").await);
    assert_eq!(claimed.len(), 20, "no delivery is claimed twice");
    assert_eq!(tasks_of(&claimed), ended);
}

pub(super) async fn trim_deletes_old_deliveries(store: Subject) {
    for endpoint in keys(&["one", "two"]) {
        end_task(&store, &endpoint).await;
    }
    assert_eq!(store.trim(HOUR, 100).await, 0);
    sleep_millis(2).await;
    assert_eq!(store.trim(NO_TIME, 100).await, 2);
    assert_eq!(store.deliveries("one").await, []);
}

pub(super) async fn trim_keeps_the_latest_rows(store: Subject) {
    let mut ended = Vec::new();
    for _ in 0..3 {
        ended.push(end_task(&store, "one").await.task);
        sleep_millis(2).await;
    }
    assert_eq!(store.trim(HOUR, 3).await, 0);
    assert_eq!(store.trim(HOUR, 2).await, 1);
    let left = store.deliveries("one").await.into_iter();
    let left: Vec<_> = left.map(|one| one.task).collect();
    assert_eq!(left, ended[1..]);
}

/// Creates a task of the owner with a webhook, and cancels it.
async fn end_task_of(store: &Subject, owner: Principal) -> TaskId {
    let new = new().owner(&owner).webhooks(&["one"]);
    let id = store.create(new).await.id;
    store.0.cancel(&id, &owner).await.expect("no error");
    sleep_millis(2).await;
    id
}

pub(super) async fn trim_drops_deliveries_of_the_caller_with_the_most(store: Subject) {
    let of_bob = end_task_of(&store, bob()).await;
    let mut of_alice = Vec::new();
    for _ in 0..4 {
        of_alice.push(end_task_of(&store, alice()).await);
    }
    assert_eq!(store.trim(HOUR, 3).await, 2);
    let left = store.deliveries("one").await.into_iter();
    let left: Vec<_> = left.map(|one| one.task).collect();
    assert_eq!(left, [vec![of_bob], of_alice[2..].to_vec()].concat());
}

pub(super) async fn deliveries_of_two_callers_take_turns(store: Subject) {
    let mut of_alice = Vec::new();
    for _ in 0..4 {
        of_alice.push(end_task_of(&store, alice()).await);
    }
    let claim = async |most| {
        let claimed = store.0.claim_deliveries("one", HOUR, most).await;
        claimed.expect("no error")
    };
    // Two of Alice's are delivered before Bob's first task ends.
    for delivery in claim(2).await {
        let finished = store.0.finish_delivery(&delivery, None).await;
        finished.expect("no error");
    }
    let of_bob = [
        end_task_of(&store, bob()).await,
        end_task_of(&store, bob()).await,
    ];
    let first: HashSet<_> = claim(2).await.into_iter().map(|one| one.task).collect();
    assert_eq!(
        first,
        HashSet::from([of_alice[2].clone(), of_bob[0].clone()])
    );
    let rest: HashSet<_> = claim(9).await.into_iter().map(|one| one.task).collect();
    assert_eq!(
        rest,
        HashSet::from([of_alice[3].clone(), of_bob[1].clone()])
    );
}
