//! Answers: which count, and that none is lost.

use super::support::{HOUR, Subject, asks, keep, new, next, open, pairs, publish};
use crate::{Next, StoredStatus};
use std::time::Duration;

pub(super) async fn answers_come_in_the_order_of_their_asks(store: Subject) {
    let lease = store.asking(&["c", "a"]).await;
    store.commit(&lease, asks(&["b"])).await;
    let answers = [("b", "3"), ("a", "2"), ("c", "1")];
    store.answer(&lease, &answers).await;
    let expected = pairs(&[("c", "1"), ("a", "2"), ("b", "3")]);
    assert_eq!(store.answers(&lease).await, expected);
    store.then(&lease, Next::HandOn).await;
    assert_eq!(store.claim().await.answers, expected);
}

pub(super) async fn answers_may_arrive_separately(store: Subject) {
    let lease = store.lease().await;
    let both = publish(&[("a", "A?"), ("b", "B?")]);
    store.commit(&lease, both).await;
    store.answer(&lease, &[("b", "2")]).await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.asks, open(&[("a", "A?")]));
    assert_eq!(store.answers(&lease).await, pairs(&[("b", "2")]));
    store.answer(&lease, &[("a", "1")]).await;
    let both = pairs(&[("a", "1"), ("b", "2")]);
    assert_eq!(store.answers(&lease).await, both);
}

pub(super) async fn open_asks_are_found_by_key(store: Subject) {
    let lease = store.lease().await;
    let task = &lease.task;
    assert_eq!(store.open_asks(task, &["a"]).await, []);
    let some = publish(&[("c", "C?"), ("a", "A?"), ("b", "B?"), ("d", "D?")]);
    store.commit(&lease, some).await;
    assert_eq!(store.open_asks(task, &[]).await, []);
    let found = store.open_asks(task, &["b", "never", "C", "c", "b"]).await;
    assert_eq!(found, open(&[("c", "C?"), ("b", "B?")]));
    store.answer(&lease, &[("a", "1"), ("b", "2")]).await;
    store
        .commit(&lease, keep().taken(&["a"]).withdrawn(&["c"]))
        .await;
    let found = store.open_asks(task, &["a", "b", "c", "d"]).await;
    assert_eq!(found, open(&[("d", "D?")]));
    // An expired task exists until it is deleted.
    let expired = store
        .create_claimed(new().ttl(Duration::ZERO), "creator", HOUR)
        .await;
    store.commit(&expired, asks(&["k"])).await;
    let found = store.open_asks(&expired.task, &["k"]).await;
    assert_eq!(found, open(&[("k", "?")]));
}

pub(super) async fn ended_task_has_no_open_asks(store: Subject) {
    let ends = [
        Some(Next::Complete(b"done".to_vec())),
        Some(Next::Fail(b"no".to_vec())),
        None,
    ];
    for end in ends {
        let lease = store.asking(&["k"]).await;
        match end {
            Some(end) => store.then(&lease, end).await,
            None => store.cancel(&lease.task).await,
        }
        assert_eq!(store.open_asks(&lease.task, &["k"]).await, []);
    }
}

pub(super) async fn first_answer_counts(store: Subject) {
    let lease = store.asking(&["a", "b"]).await;
    store.answer(&lease, &[("a", "1"), ("a", "2")]).await;
    store.answer(&lease, &[("a", "3"), ("b", "4")]).await;
    let expected = pairs(&[("a", "1"), ("b", "4")]);
    assert_eq!(store.answers(&lease).await, expected);
}

pub(super) async fn answers_to_keys_that_are_not_open_are_ignored(store: Subject) {
    let lease = store.asking(&["done", "no", "open"]).await;
    store.answer(&lease, &[("done", "1")]).await;
    let close = keep().taken(&["done"]).withdrawn(&["no"]).suspend();
    store.commit(&lease, close).await;
    let before = store.revision(&lease.task).await;
    let answers = [("done", "2"), ("no", "2"), ("never", "2"), ("OPEN", "2")];
    store.answer(&lease, &answers).await;
    store.answer(&lease, &[]).await;
    assert_eq!(store.revision(&lease.task).await, before);
    store.assert_none_due().await;
}

pub(super) async fn answer_wakes_a_suspended_task(store: Subject) {
    let lease = store.lease().await;
    store.commit(&lease, asks(&["a", "b"]).suspend()).await;
    store.assert_none_due().await;
    store.answer(&lease, &[("a", "1")]).await;
    assert_eq!(store.claim().await.answers, pairs(&[("a", "1")]));
    let task = store.get(&lease.task).await;
    assert_eq!(task.status, StoredStatus::InputRequired);
}

pub(super) async fn answer_leaves_a_running_task_with_its_worker(store: Subject) {
    let lease = store.lease().await;
    let asked = store.commit(&lease, asks(&["a"])).await;
    assert!(!asked.answers);
    store.answer(&lease, &[("a", "1")]).await;
    store.assert_none_due().await;
    assert!(store.revision(&lease.task).await > asked.revision);
    assert!(
        store
            .commit(&lease, keep().journal("without it"))
            .await
            .answers
    );
    assert_eq!(store.answers(&lease).await, pairs(&[("a", "1")]));
    assert!(!store.commit(&lease, keep().taken(&["a"])).await.answers);
}

pub(super) async fn answer_before_the_suspension_is_not_lost(store: Subject) {
    for wait in [None, Some(HOUR / 2)] {
        let lease = store.asking(&["a", "b"]).await;
        // The answer arrives after the worker has read the answers and found none.
        store.answer(&lease, &[("a", "1")]).await;
        let suspended = store.commit(&lease, next(Next::Suspend(wait))).await;
        assert!(suspended.answers);
        let claimed = store.claim().await;
        assert_eq!(claimed.answers, pairs(&[("a", "1")]));
        // The same, with asks written in the same commit.
        store.answer(&lease, &[("b", "2")]).await;
        let suspend = asks(&["c"]).taken(&["a"]).next(Next::Suspend(wait));
        assert!(store.commit(&claimed.lease, suspend).await.answers);
        assert_eq!(store.claim().await.answers, pairs(&[("b", "2")]));
    }
}

pub(super) async fn answer_during_the_suspension_is_not_lost(store: Subject) {
    for round in 0..30 {
        let lease = store.asking(&["a", "b"]).await;
        store.answer(&lease, &[("b", "2")]).await;
        let answering = {
            let (store, lease) = (store.clone(), lease.clone());
            tokio::spawn(async move { store.answer(&lease, &[("a", "1")]).await })
        };
        // Stores write a commit that changes asks in another way than others.
        let read: &[&str] = if round % 2 == 0 { &["b"] } else { &[] };
        store.commit(&lease, keep().taken(read).suspend()).await;
        answering.await.expect("the answer is accepted");
        let claimed = store.claim().await;
        assert_eq!(claimed.lease.task, lease.task);
        let first = claimed.answers.first();
        assert_eq!(first, pairs(&[("a", "1")]).first(), "round {round}");
    }
}

pub(super) async fn taken_answer_is_not_returned_again(store: Subject) {
    let lease = store.asking(&["a", "b"]).await;
    store.answer(&lease, &[("a", "1")]).await;
    let taken = keep().journal("with a").taken(&["a", "b", "never asked"]);
    store.commit(&lease, taken.suspend()).await;
    store.assert_none_due().await;
    store.answer(&lease, &[("b", "2")]).await;
    assert_eq!(store.claim().await.answers, pairs(&[("b", "2")]));
}

pub(super) async fn withdrawn_answer_does_not_wake_the_task(store: Subject) {
    let lease = store.asking(&["a"]).await;
    store.answer(&lease, &[("a", "1")]).await;
    let withdraw = next(Next::Suspend(None)).withdrawn(&["a"]);
    assert!(!store.commit(&lease, withdraw).await.answers);
    store.assert_none_due().await;
}

pub(super) async fn answer_to_an_ended_task_is_ignored(store: Subject) {
    for end in [Next::Complete(b"r".to_vec()), Next::Fail(b"e".to_vec())] {
        let lease = store.lease().await;
        let ended = store.commit(&lease, asks(&["a"]).next(end)).await;
        store.answer(&lease, &[("a", "1")]).await;
        assert_eq!(store.revision(&lease.task).await, ended.revision);
    }
    let lease = store.asking(&["a"]).await;
    store.cancel(&lease.task).await;
    let before = store.revision(&lease.task).await;
    store.answer(&lease, &[("a", "1")]).await;
    assert_eq!(store.revision(&lease.task).await, before);
    store.assert_none_due().await;
}

pub(super) async fn one_of_many_concurrent_answers_counts(store: Subject) {
    store.create(new()).await;
    let lease = store.claim_soon().await.lease;
    store.commit(&lease, asks(&["a", "b"])).await;
    let before = store.revision(&lease.task).await;
    let answer = async |store: Subject, lease, n: usize| {
        let mine = n.to_string();
        store.answer(&lease, &[("a", &mine), ("b", &mine)]).await;
    };
    store
        .concurrently(|store, n| answer(store, lease.clone(), n))
        .await;
    assert_eq!(store.revision(&lease.task).await, before + 1);
    let counted = store.answers(&lease).await;
    assert_eq!(counted.len(), 2);
    assert_eq!(counted[0].1, counted[1].1, "both are of one client");
    assert!(
        !store
            .commit(&lease, keep().taken(&["a", "b"]))
            .await
            .answers
    );
}
