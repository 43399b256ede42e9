//! Answers, and that none is lost.

use super::support::{
    alice, answer, answers, assert_none_due, claim, claim_soon, commit, create, create_leased, get,
    keys, new, next, pairs, publish, revision,
};
use crate::{Commit, Next, Store, TaskStatus};
use std::sync::Arc;

pub(super) async fn answers_come_in_the_order_of_their_asks(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("c", "?"), ("a", "?")])).await;
    commit(&*store, &lease, publish(&[("b", "?")])).await;
    let given = [("b", "3"), ("a", "2"), ("c", "1")];
    answer(&*store, &lease.task, &given).await;
    let expected = pairs(&[("c", "1"), ("a", "2"), ("b", "3")]);
    assert_eq!(answers(&*store, &lease).await, expected);
    commit(&*store, &lease, next(Next::HandOn)).await;
    assert_eq!(claim(&*store).await.answers, expected);
}

pub(super) async fn some_answers_may_come_before_others(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "A?"), ("b", "B?")])).await;
    answer(&*store, &lease.task, &[("b", "2")]).await;
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.asks, pairs(&[("a", "A?")]));
    assert_eq!(answers(&*store, &lease).await, pairs(&[("b", "2")]));
    answer(&*store, &lease.task, &[("a", "1")]).await;
    let both = pairs(&[("a", "1"), ("b", "2")]);
    assert_eq!(answers(&*store, &lease).await, both);
}

pub(super) async fn the_first_answer_counts(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    answer(&*store, &lease.task, &[("a", "1"), ("a", "2")]).await;
    answer(&*store, &lease.task, &[("a", "3"), ("b", "4")]).await;
    let expected = pairs(&[("a", "1"), ("b", "4")]);
    assert_eq!(answers(&*store, &lease).await, expected);
}

pub(super) async fn answers_to_what_is_not_open_are_ignored(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let asks = [("done", "?"), ("no", "?"), ("open", "?")];
    commit(&*store, &lease, publish(&asks)).await;
    answer(&*store, &lease.task, &[("done", "1")]).await;
    let settle = Commit {
        taken: keys(&["done"]),
        withdrawn: keys(&["no"]),
        next: Next::SetDown(None),
        ..Commit::default()
    };
    commit(&*store, &lease, settle).await;
    let before = revision(&*store, &lease.task).await;
    let given = [("done", "2"), ("no", "2"), ("never", "2"), ("OPEN", "2")];
    answer(&*store, &lease.task, &given).await;
    answer(&*store, &lease.task, &[]).await;
    assert_eq!(revision(&*store, &lease.task).await, before);
    assert_none_due(&*store).await;
}

pub(super) async fn an_answer_wakes_a_task_that_was_set_down(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let ask = Commit {
        next: Next::SetDown(None),
        ..publish(&[("a", "?"), ("b", "?")])
    };
    commit(&*store, &lease, ask).await;
    assert_none_due(&*store).await;
    answer(&*store, &lease.task, &[("a", "1")]).await;
    let claimed = claim(&*store).await;
    assert_eq!(claimed.answers, pairs(&[("a", "1")]));
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.status, TaskStatus::InputRequired);
}

pub(super) async fn an_answer_leaves_a_running_task_with_its_worker(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let asked = commit(&*store, &lease, publish(&[("a", "?")])).await;
    assert!(!asked.answers);
    answer(&*store, &lease.task, &[("a", "1")]).await;
    assert_none_due(&*store).await;
    assert!(revision(&*store, &lease.task).await > asked.revision);
    let journal = Commit {
        journal: Some(b"without it".to_vec()),
        ..Commit::default()
    };
    assert!(commit(&*store, &lease, journal).await.answers);
    assert_eq!(answers(&*store, &lease).await, pairs(&[("a", "1")]));
    let taken = Commit {
        taken: keys(&["a"]),
        ..Commit::default()
    };
    assert!(!commit(&*store, &lease, taken).await.answers);
}

pub(super) async fn an_answer_before_the_set_down_is_not_lost(store: Arc<dyn Store>) {
    for wait in [None, Some(super::support::HOUR / 2)] {
        let lease = create_leased(&*store).await;
        commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
        // The worker has looked, and found none. Then:
        answer(&*store, &lease.task, &[("a", "1")]).await;
        let set_down = commit(&*store, &lease, next(Next::SetDown(wait))).await;
        assert!(set_down.answers);
        let claimed = claim(&*store).await;
        assert_eq!(claimed.answers, pairs(&[("a", "1")]));
        // The same, with asks written in the same commit.
        answer(&*store, &lease.task, &[("b", "2")]).await;
        let set_down = Commit {
            taken: keys(&["a"]),
            next: Next::SetDown(wait),
            ..publish(&[("c", "?")])
        };
        assert!(commit(&*store, &claimed.lease, set_down).await.answers);
        let claimed = claim(&*store).await;
        assert_eq!(claimed.answers, pairs(&[("b", "2")]));
    }
}

pub(super) async fn an_answer_beside_the_set_down_is_not_lost(store: Arc<dyn Store>) {
    for round in 0..30 {
        let lease = create_leased(&*store).await;
        commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
        answer(&*store, &lease.task, &[("b", "2")]).await;
        let answering = {
            let (store, task) = (store.clone(), lease.task.clone());
            tokio::spawn(async move { answer(&*store, &task, &[("a", "1")]).await })
        };
        // One way of writing touches the asks, the other does not.
        let set_down = Commit {
            taken: keys(if round % 2 == 0 { &["b"] } else { &[] }),
            ..next(Next::SetDown(None))
        };
        commit(&*store, &lease, set_down).await;
        answering.await.expect("the answer is taken in");
        let claimed = claim(&*store).await;
        assert_eq!(claimed.lease.task, lease.task);
        let first = claimed.answers.first();
        assert_eq!(first, pairs(&[("a", "1")]).first(), "round {round}");
    }
}

pub(super) async fn a_taken_answer_is_not_given_again(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    answer(&*store, &lease.task, &[("a", "1")]).await;
    let taken = Commit {
        journal: Some(b"with a".to_vec()),
        taken: keys(&["a", "b", "never asked"]),
        next: Next::SetDown(None),
        ..Commit::default()
    };
    commit(&*store, &lease, taken).await;
    assert_none_due(&*store).await;
    answer(&*store, &lease.task, &[("b", "2")]).await;
    assert_eq!(claim(&*store).await.answers, pairs(&[("b", "2")]));
}

pub(super) async fn a_withdrawn_answer_does_not_wake_the_task(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "?")])).await;
    answer(&*store, &lease.task, &[("a", "1")]).await;
    let withdraw = Commit {
        withdrawn: keys(&["a"]),
        next: Next::SetDown(None),
        ..Commit::default()
    };
    assert!(!commit(&*store, &lease, withdraw).await.answers);
    assert_none_due(&*store).await;
}

pub(super) async fn an_answer_to_a_task_that_is_over_is_ignored(store: Arc<dyn Store>) {
    for end in [Next::Complete(b"r".to_vec()), Next::Fail(b"e".to_vec())] {
        let lease = create_leased(&*store).await;
        let ended = Commit {
            next: end,
            ..publish(&[("a", "?")])
        };
        let ended = commit(&*store, &lease, ended).await;
        answer(&*store, &lease.task, &[("a", "1")]).await;
        assert_eq!(revision(&*store, &lease.task).await, ended.revision);
    }
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "?")])).await;
    assert!(store.cancel(&lease.task, &alice()).await.expect("no error"));
    let before = revision(&*store, &lease.task).await;
    answer(&*store, &lease.task, &[("a", "1")]).await;
    assert_eq!(revision(&*store, &lease.task).await, before);
    assert_none_due(&*store).await;
}

pub(super) async fn one_of_many_answers_at_once_counts(store: Arc<dyn Store>) {
    create(&*store, new()).await;
    let lease = claim_soon(&*store).await.lease;
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    let before = revision(&*store, &lease.task).await;
    let clients = (0..8).map(|n| {
        let (store, task) = (store.clone(), lease.task.clone());
        tokio::spawn(async move {
            let mine = format!("{n}");
            let given = [("a", mine.as_str()), ("b", mine.as_str())];
            answer(&*store, &task, &given).await;
        })
    });
    let clients: Vec<_> = clients.collect();
    for client in clients {
        client.await.expect("the answer is taken in");
    }
    assert_eq!(revision(&*store, &lease.task).await, before + 1);
    let counted = answers(&*store, &lease).await;
    assert_eq!(counted.len(), 2);
    assert_eq!(counted[0].1, counted[1].1, "all of one client's");
    let taken = Commit {
        taken: keys(&["a", "b"]),
        ..Commit::default()
    };
    assert!(!commit(&*store, &lease, taken).await.answers);
}
