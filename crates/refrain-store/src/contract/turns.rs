//! The order of claims between owners.

use super::support::{HOUR, Subject, alice, asks, bob, new, sleep_millis};
use crate::{Lease, Next};
use refrain_core::Principal;
use std::time::Duration;

/// Creates due tasks of an owner, each due later than the one before.
async fn create(store: &Subject, owner: &Principal, count: usize) {
    for _ in 0..count {
        store.create(new().owner(owner)).await;
        sleep_millis(2).await;
    }
}

/// Claims tasks, and returns their owners.
async fn claim(store: &Subject, most: usize) -> Vec<Principal> {
    let claimed = store.claim_up_to(most).await.into_iter();
    claimed.map(|claimed| claimed.owner).collect()
}

pub(super) async fn owners_take_turns(store: Subject) {
    let anonymous = Principal::anonymous();
    create(&store, &alice(), 5).await;
    create(&store, &bob(), 2).await;
    create(&store, &anonymous, 1).await;
    let expected = [alice(), bob(), anonymous, alice(), bob(), alice(), alice()];
    assert_eq!(claim(&store, 7).await, expected);
    assert_eq!(claim(&store, 7).await, [alice()]);
}

pub(super) async fn anonymous_accounts_take_turns(store: Subject) {
    for account in ["one", "one", "one", "two", "two"] {
        store.create(new().account(account)).await;
        sleep_millis(2).await;
    }
    let claimed = store.claim_up_to(4).await.into_iter();
    let accounts: Vec<_> = claimed.map(|claimed| claimed.account).collect();
    let expected = ["one", "two", "one", "two"].map(Principal::new);
    assert_eq!(accounts, expected);
    let except = [Principal::new("one")];
    let left = store.claim_except("w", &["tool"], 10, &except).await;
    assert!(left.is_empty(), "{left:?}");
}

pub(super) async fn task_of_a_new_owner_comes_next(store: Subject) {
    create(&store, &alice(), 10).await;
    assert_eq!(claim(&store, 3).await.len(), 3);
    create(&store, &bob(), 2).await;
    let expected = [alice(), bob(), alice(), bob(), alice()];
    assert_eq!(claim(&store, 5).await, expected);
}

pub(super) async fn owner_with_one_task_at_a_time_leaves_turns_to_others(store: Subject) {
    create(&store, &alice(), 5).await;
    for _ in 0..5 {
        create(&store, &bob(), 1).await;
        let owners = [claim(&store, 1).await, claim(&store, 1).await].concat();
        assert_eq!(owners, [alice(), bob()]);
    }
}

/// Tasks return after a hand-on, an answer, a failed attempt, and a lost worker.
pub(super) async fn returned_tasks_take_their_turns(store: Subject) {
    let claimed = async || store.create_claimed(new(), "worker", HOUR).await;
    let (handed_on, answered, retried) = (claimed().await, claimed().await, claimed().await);
    store.then(&handed_on, Next::HandOn).await;
    store.commit(&answered, asks(&["a"]).suspend()).await;
    store.answer(&answered, &[("a", "1")]).await;
    let now = Duration::ZERO;
    store.then(&retried, Next::Retry(now, "e".to_owned())).await;
    store.create_claimed(new(), "lost", now).await;
    let again = store.create(new()).await.id;
    store.requeue(&again).await;
    create(&store, &bob(), 1).await;
    sleep_millis(2).await;
    let first = claim(&store, 2).await;
    assert!(first.contains(&bob()), "{first:?}");
    let rest = claim(&store, 10).await;
    assert_eq!(rest, vec![alice(); 4]);
}

pub(super) async fn unclaimable_task_does_not_block_other_owners(store: Subject) {
    store.create(new().tool("removed")).await;
    create(&store, &bob(), 4).await;
    assert_eq!(claim(&store, 2).await, [bob(), bob()]);
    let carol = Principal::new("carol");
    create(&store, &carol, 2).await;
    let expected = [bob(), carol.clone(), bob(), carol];
    assert_eq!(claim(&store, 4).await, expected);
}

pub(super) async fn excluded_owner_is_skipped(store: Subject) {
    create(&store, &alice(), 2).await;
    create(&store, &bob(), 1).await;
    create(&store, &Principal::anonymous(), 1).await;
    let except = [alice(), Principal::anonymous()];
    let claimed = store.claim_except("w", &["tool"], 10, &except).await;
    let owners: Vec<_> = claimed.into_iter().map(|claimed| claimed.owner).collect();
    assert_eq!(owners, [bob()]);
    assert_eq!(claim(&store, 10).await.len(), 3);
}

/// An account that begins with U+0001 is the address of an anonymous caller, as `Principal::account` makes it.
pub(super) async fn tasks_of_anonymous_callers_can_be_excluded(store: Subject) {
    store.create(new().account("\u{1}192.0.2.1")).await;
    create(&store, &Principal::anonymous(), 1).await;
    create(&store, &bob(), 1).await;
    let claimed = store.claim_authenticated(10).await.into_iter();
    let owners: Vec<_> = claimed.map(|claimed| claimed.owner).collect();
    assert_eq!(owners, [bob()]);
    assert_eq!(claim(&store, 10).await.len(), 2);
}

pub(super) async fn ready_task_that_changes_leaves_the_queue(store: Subject) {
    let ready = async || -> Lease {
        let lease = store.create_claimed(new(), "worker", Duration::ZERO).await;
        sleep_millis(2).await;
        // A worker without this tool finds that the lease has expired, and leaves the task.
        assert!(store.claim_as("other", &["other"], 10).await.is_empty());
        lease
    };
    let lease = ready().await;
    assert_eq!(store.extend(&[&lease], HOUR).await, [lease]);
    store.assert_none_due().await;
    let lease = ready().await;
    store.commit(&lease, asks(&["a"]).suspend()).await;
    store.assert_none_due().await;
    store.answer(&lease, &[("a", "1")]).await;
    assert_eq!(store.claim().await.lease.task, lease.task);
    let lease = ready().await;
    store.then(&lease, Next::Complete(b"r".to_vec())).await;
    store.assert_none_due().await;
    let lease = ready().await;
    store.cancel(&lease.task).await;
    store.assert_none_due().await;
}
