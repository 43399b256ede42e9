//! Two instances that share one store.

use super::support::{HOUR, Subject, asks, flow, new, pairs};
use crate::{LogKey, Next, RecordState, Retention, StoredStatus};

type Pair = (Subject, Subject);

pub(super) async fn created_task_is_found_by_the_other((one, other): Pair) {
    let task = new();
    one.create(task.clone()).await;
    assert_eq!(other.get(&task.id).await.id, task.id);
    other.create_again(task).await;
}

pub(super) async fn answered_task_is_run_by_the_other((one, other): Pair) {
    let lease = one.lease().await;
    one.commit(&lease, asks(&["a"]).suspend()).await;
    other.answer(&lease, &[("a", "1")]).await;
    let claimed = other.claim().await;
    assert_eq!(claimed.answers, pairs(&[("a", "1")]));
    one.assert_lost(&lease).await;
    other
        .then(&claimed.lease, Next::Complete(b"r".to_vec()))
        .await;
    let task = one.get(&lease.task).await;
    assert_eq!(task.status, StoredStatus::Completed);
}

pub(super) async fn each_task_is_claimed_once((one, other): Pair) {
    one.assert_each_claimed_once(&other, 30).await;
}

pub(super) async fn task_cancelled_by_the_other_is_lost((one, other): Pair) {
    let lease = one.lease().await;
    other.cancel(&lease.task).await;
    one.assert_lost(&lease).await;
}

pub(super) async fn log_and_tokens_are_shared((one, other): Pair) {
    let key = LogKey::round(flow(), 1);
    let (now, until) = (1_000, 2_000);
    let keep = Retention { now, until };
    assert_eq!(one.begin(&key, keep).await, RecordState::Fresh);
    assert_eq!(other.begin(&key, keep).await, RecordState::Begun);
    other.finish(&key, "done").await;
    let done = RecordState::Done("done".to_owned());
    assert_eq!(one.begin(&key, keep).await, done);
    one.spill("t", vec![7], HOUR).await;
    assert_eq!(other.spilled("t").await, Some(vec![7]));
}
