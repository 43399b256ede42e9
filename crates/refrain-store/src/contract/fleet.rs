//! What two instances see of each other.

use super::support::{
    HOUR, alice, answer, assert_lost, claim, claim_for, commit, create, create_leased, flow, get,
    new, next, pairs, publish,
};
use crate::{Commit, Keep, LogKey, Next, Recorded, Store, TaskStatus};
use std::collections::HashSet;
use std::sync::Arc;

pub(super) async fn what_one_creates_the_other_finds(one: Arc<dyn Store>, other: Arc<dyn Store>) {
    let given = new();
    create(&*one, given.clone()).await;
    assert_eq!(get(&*other, &given.id).await.id, given.id);
    let again = other.create(given).await;
    assert!(matches!(again, Ok(crate::Created::Before(_))), "{again:?}");
}

pub(super) async fn what_one_answers_the_other_runs(one: Arc<dyn Store>, other: Arc<dyn Store>) {
    let lease = create_leased(&*one).await;
    let ask = Commit {
        next: Next::SetDown(None),
        ..publish(&[("a", "?")])
    };
    commit(&*one, &lease, ask).await;
    answer(&*other, &lease.task, &[("a", "1")]).await;
    let claimed = claim(&*other).await;
    assert_eq!(claimed.answers, pairs(&[("a", "1")]));
    assert_lost(&*one, &lease).await;
    let done = next(Next::Complete(b"r".to_vec()));
    commit(&*other, &claimed.lease, done).await;
    let task = get(&*one, &lease.task).await;
    assert_eq!(task.status, TaskStatus::Completed);
}

pub(super) async fn each_task_is_taken_once(one: Arc<dyn Store>, other: Arc<dyn Store>) {
    for _ in 0..30 {
        create(&*one, new()).await;
    }
    let workers = [one.clone(), other.clone(), one.clone(), other].map(|store| {
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let claimed = claim_for(&*store, 2, HOUR).await;
                if claimed.is_empty() {
                    return mine;
                }
                mine.extend(claimed.into_iter().map(|claimed| claimed.lease.task));
            }
        })
    });
    let mut taken = Vec::new();
    for worker in workers {
        taken.extend(worker.await.expect("no worker panics"));
    }
    let left = claim_for(&*one, 30, HOUR).await;
    taken.extend(left.into_iter().map(|claimed| claimed.lease.task));
    assert_eq!(taken.len(), 30, "no task is taken twice");
    let distinct: HashSet<_> = taken.into_iter().collect();
    assert_eq!(distinct.len(), 30, "and none is left out");
}

pub(super) async fn a_cancelled_task_is_lost_everywhere(
    one: Arc<dyn Store>,
    other: Arc<dyn Store>,
) {
    let lease = create_leased(&*one).await;
    assert!(other.cancel(&lease.task, &alice()).await.expect("no error"));
    assert_lost(&*one, &lease).await;
}

pub(super) async fn the_log_is_one(one: Arc<dyn Store>, other: Arc<dyn Store>) {
    let key = LogKey::round(flow(), 1);
    let keep = Keep {
        now: 1_000,
        until: 2_000,
    };
    assert_eq!(
        one.begin(&key, keep).await.expect("no error"),
        Recorded::Fresh
    );
    assert_eq!(
        other.begin(&key, keep).await.expect("no error"),
        Recorded::Begun
    );
    other.finish(&key, "done").await.expect("the log answers");
    let done = Recorded::Done("done".to_owned());
    assert_eq!(one.begin(&key, keep).await.expect("no error"), done);
    one.spill("t", vec![7], HOUR).await.expect("an answer");
    assert_eq!(other.spilled("t").await.expect("no error"), Some(vec![7]));
}
