//! What a worker writes.

use super::support::{
    HOUR, alice, answer, answers, assert_is_lost, assert_lost, assert_none_due, claim, claim_soon,
    commit, create, create_leased, get, keys, new, next, pairs, publish,
};
use crate::{Commit, Lease, NewTask, Next, Store, Task, TaskRow, TaskStatus};
use std::sync::Arc;
use std::time::Duration;

async fn row(store: &dyn Store, lease: &Lease) -> TaskRow {
    let row = store.find(&lease.task).await.expect("the store answers");
    row.expect("the task is there")
}

fn asked(task: &Task) -> Vec<&str> {
    task.asks.iter().map(|(key, _)| key.as_str()).collect()
}

pub(super) async fn all_of_a_commit_is_done(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    answer(&*store, &lease.task, &[("a", "1")]).await;
    let all = Commit {
        progress: true,
        journal: Some(b"further".to_vec()),
        publish: pairs(&[("c", "C?")]),
        taken: keys(&["a"]),
        withdrawn: keys(&["b"]),
        status_message: Some("waiting".to_owned()),
        next: Next::HandOn,
    };
    assert!(!commit(&*store, &lease, all).await.answers);
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.status, TaskStatus::InputRequired);
    assert_eq!(task.status_message.as_deref(), Some("waiting"));
    assert_eq!(task.asks, pairs(&[("c", "C?")]));
    let claimed = claim(&*store).await;
    assert_eq!(claimed.journal, b"further");
    assert_eq!(claimed.answers, Vec::new());
}

pub(super) async fn nothing_of_a_lost_commit_is_done(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    answer(&*store, &lease.task, &[("a", "1")]).await;
    store.requeue(&lease.task).await.expect("the store answers");
    let before = get(&*store, &lease.task).await;
    let all = Commit {
        progress: true,
        journal: Some(b"stale".to_vec()),
        publish: pairs(&[("c", "?")]),
        taken: keys(&["a"]),
        withdrawn: keys(&["b"]),
        status_message: Some("stale".to_owned()),
        next: Next::Complete(b"stale".to_vec()),
    };
    assert_is_lost(&store.commit(&lease, all).await);
    let after = get(&*store, &lease.task).await;
    assert_eq!(after.revision, before.revision);
    assert_eq!(after.asks, pairs(&[("b", "?")]));
    assert_eq!(after.status_message, None);
    let claimed = claim(&*store).await;
    assert_eq!(claimed.journal, b"journal");
    assert_eq!(claimed.answers, pairs(&[("a", "1")]));
    // The key of the lost commit is free still.
    commit(&*store, &claimed.lease, publish(&[("c", "C?")])).await;
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.asks, pairs(&[("b", "?"), ("c", "C?")]));
}

pub(super) async fn the_status_follows_the_asks(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let status = async || get(&*store, &lease.task).await.status;
    commit(&*store, &lease, Commit::default()).await;
    assert_eq!(status().await, TaskStatus::Working);
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    assert_eq!(status().await, TaskStatus::InputRequired);
    answer(&*store, &lease.task, &[("a", "1")]).await;
    assert_eq!(status().await, TaskStatus::InputRequired);
    answer(&*store, &lease.task, &[("b", "1")]).await;
    assert_eq!(status().await, TaskStatus::Working);
    commit(&*store, &lease, publish(&[("c", "?")])).await;
    assert_eq!(status().await, TaskStatus::InputRequired);
    let withdrawn = keys(&["c"]);
    let withdraw = Commit {
        withdrawn,
        ..next(Next::SetDown(None))
    };
    commit(&*store, &lease, withdraw).await;
    assert_eq!(status().await, TaskStatus::Working);
}

pub(super) async fn a_used_key_is_left_as_it_is(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let asks = [
        ("open", "1"),
        ("answered", "1"),
        ("taken", "1"),
        ("no", "1"),
    ];
    commit(&*store, &lease, publish(&asks)).await;
    answer(&*store, &lease.task, &[("answered", "A"), ("taken", "T")]).await;
    let settle = Commit {
        taken: keys(&["taken"]),
        withdrawn: keys(&["no"]),
        ..Commit::default()
    };
    commit(&*store, &lease, settle).await;
    let again = [
        ("open", "2"),
        ("answered", "2"),
        ("taken", "2"),
        ("no", "2"),
    ];
    let committed = commit(&*store, &lease, publish(&again)).await;
    assert!(committed.answers);
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.asks, pairs(&[("open", "1")]));
    assert_eq!(answers(&*store, &lease).await, pairs(&[("answered", "A")]));
    // One key twice in one commit is one ask.
    commit(&*store, &lease, publish(&[("two", "1"), ("two", "2")])).await;
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.asks, pairs(&[("open", "1"), ("two", "1")]));
    answer(&*store, &lease.task, &[("open", "O"), ("two", "T")]).await;
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.status, TaskStatus::Working);
}

pub(super) async fn asks_keep_their_order(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("z", "?"), ("m", "?")])).await;
    commit(
        &*store,
        &lease,
        publish(&[("a", "?"), ("z", "?"), ("B", "?")]),
    )
    .await;
    let many: Vec<String> = (0..30).map(|n| format!("k{}", (n * 7) % 30)).collect();
    let more: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "?")).collect();
    commit(&*store, &lease, publish(&more)).await;
    let task = get(&*store, &lease.task).await;
    let expected = ["z", "m", "a", "B"].into_iter();
    let expected: Vec<&str> = expected.chain(more.iter().map(|(key, _)| *key)).collect();
    assert_eq!(asked(&task), expected);
    let row = row(&*store, &lease).await;
    assert_eq!(asked(&row.task), expected);
}

pub(super) async fn what_is_withdrawn_needs_no_answer(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    let withdraw = Commit {
        withdrawn: keys(&["a", "never asked"]),
        ..Commit::default()
    };
    commit(&*store, &lease, withdraw).await;
    assert_eq!(asked(&get(&*store, &lease.task).await), ["b"]);
    answer(&*store, &lease.task, &[("a", "1")]).await;
    assert_eq!(answers(&*store, &lease).await, Vec::new());
}

pub(super) async fn an_ask_may_be_withdrawn_as_it_is_published(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let both = Commit {
        withdrawn: keys(&["a"]),
        ..publish(&[("a", "?")])
    };
    commit(&*store, &lease, both).await;
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.status, TaskStatus::Working);
    commit(&*store, &lease, publish(&[("a", "again?")])).await;
    assert_eq!(asked(&get(&*store, &lease.task).await), [""; 0]);
}

pub(super) async fn a_task_set_down_for_good_waits_for_its_end(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let ask = Commit {
        next: Next::SetDown(None),
        ..publish(&[("a", "?")])
    };
    commit(&*store, &lease, ask).await;
    assert_none_due(&*store).await;
    let row = row(&*store, &lease).await;
    assert_eq!(row.worker, None);
    let end = row.task.created + row.task.ttl;
    assert_eq!(row.due, Some(end), "it is due when its life is over");
}

pub(super) async fn a_task_set_down_for_a_while_is_due_after_it(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, next(Next::SetDown(Some(HOUR / 2)))).await;
    assert_none_due(&*store).await;
    let row = row(&*store, &lease).await;
    let due = row.due.expect("it is not over");
    assert!(due >= row.task.created + HOUR / 2, "not before");
    assert!(due < row.task.created + HOUR, "and before its life is over");
    assert!(store.cancel(&lease.task, &alice()).await.expect("no error"));
    let lease = create_leased(&*store).await;
    let moment = Duration::from_millis(5);
    commit(&*store, &lease, next(Next::SetDown(Some(moment)))).await;
    assert_eq!(claim_soon(&*store).await.lease.task, lease.task);
}

pub(super) async fn no_wait_is_longer_than_the_life(store: Arc<dyn Store>) {
    for next in [
        Next::SetDown(Some(2 * HOUR)),
        Next::Retry(2 * HOUR, "later".to_owned()),
    ] {
        let lease = create_leased(&*store).await;
        commit(&*store, &lease, super::support::next(next)).await;
        let row = row(&*store, &lease).await;
        assert_eq!(row.due, Some(row.task.created + row.task.ttl));
    }
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, next(Next::SetDown(Some(Duration::MAX)))).await;
    assert_none_due(&*store).await;
}

pub(super) async fn a_task_handed_on_is_due(store: Arc<dyn Store>) {
    let first = create_leased(&*store).await;
    commit(&*store, &first, next(Next::HandOn)).await;
    let second = claim(&*store).await.lease;
    assert!(second.fence > first.fence);
    assert_lost(&*store, &first).await;
}

pub(super) async fn a_retry_is_due_after_its_wait(store: Arc<dyn Store>) {
    create(&*store, new()).await;
    let lease = claim(&*store).await.lease;
    let retry = |wait| next(Next::Retry(wait, "it broke".to_owned()));
    commit(&*store, &lease, retry(Duration::ZERO)).await;
    let claimed = claim_soon(&*store).await;
    assert_eq!(claimed.attempt, 2);
    assert_eq!(claimed.last_error.as_deref(), Some("it broke"));
    commit(&*store, &claimed.lease, retry(HOUR / 2)).await;
    assert_none_due(&*store).await;
    let row = row(&*store, &lease).await;
    assert_eq!(row.attempts, 2);
    assert_eq!(row.last_error.as_deref(), Some("it broke"));
    assert_eq!(row.worker, None);
    assert!(row.due.expect("it is not over") >= row.task.created + HOUR / 2);
}

pub(super) async fn attempts_are_counted_until_it_gets_on(store: Arc<dyn Store>) {
    create(&*store, new()).await;
    for attempt in 1..=3 {
        let claimed = claim_soon(&*store).await;
        assert_eq!(claimed.attempt, attempt);
        commit(&*store, &claimed.lease, publish(&[("a", "?")])).await;
        let retry = Next::Retry(Duration::ZERO, "again".to_owned());
        commit(&*store, &claimed.lease, next(retry)).await;
    }
    let lease = claim_soon(&*store).await.lease;
    let further = |progress| Commit {
        journal: Some(b"further".to_vec()),
        progress,
        ..Commit::default()
    };
    commit(&*store, &lease, further(false)).await;
    let stands = row(&*store, &lease).await;
    assert_eq!(
        (stands.attempts, stands.last_error.as_deref()),
        (4, Some("again"))
    );
    commit(&*store, &lease, further(true)).await;
    assert_eq!(row(&*store, &lease).await.attempts, 0);
    commit(&*store, &lease, next(Next::HandOn)).await;
    let claimed = claim(&*store).await;
    assert_eq!(claimed.attempt, 1);
    assert_eq!(claimed.last_error, None, "that attempt is behind it");
    commit(&*store, &claimed.lease, next(Next::HandOn)).await;
    let claimed = claim(&*store).await;
    assert_eq!(claimed.attempt, 1, "it was given back");
    let set_down = Next::SetDown(Some(Duration::ZERO));
    commit(&*store, &claimed.lease, next(set_down)).await;
    let claimed = claim_soon(&*store).await;
    assert_eq!(claimed.attempt, 1, "it was given back");
    // A failed attempt may have got on all the same.
    let both = Commit {
        journal: Some(b"further still".to_vec()),
        progress: true,
        ..next(Next::Retry(Duration::ZERO, "new".to_owned()))
    };
    commit(&*store, &claimed.lease, both).await;
    let claimed = claim_soon(&*store).await;
    assert_eq!(claimed.attempt, 1);
    assert_eq!(claimed.last_error.as_deref(), Some("new"));
}

pub(super) async fn a_status_message_stays_until_the_next(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    for (said, stands) in [(Some("one"), "one"), (None, "one"), (Some(""), "")] {
        let say = Commit {
            status_message: said.map(str::to_owned),
            ..Commit::default()
        };
        commit(&*store, &lease, say).await;
        let task = get(&*store, &lease.task).await;
        assert_eq!(task.status_message.as_deref(), Some(stands));
    }
}

pub(super) async fn a_status_message_goes_with_what_it_was_about(store: Arc<dyn Store>) {
    let say = |message: &str, next: Next| Commit {
        status_message: Some(message.to_owned()),
        next,
        ..Commit::default()
    };
    let message = async |lease: &Lease| get(&*store, &lease.task).await.status_message;
    for parting in [None, Some("done".to_owned())] {
        let lease = create_leased(&*store).await;
        commit(&*store, &lease, say("at work", Next::Keep)).await;
        let done = Commit {
            status_message: parting.clone(),
            ..next(Next::Complete(b"result".to_vec()))
        };
        commit(&*store, &lease, done).await;
        assert_eq!(message(&lease).await, parting);
    }

    let lease = create_leased(&*store).await;
    commit(&*store, &lease, say("at work", Next::Keep)).await;
    assert!(store.cancel(&lease.task, &alice()).await.expect("a store"));
    assert_eq!(message(&lease).await, None);

    let lease = create_leased(&*store).await;
    commit(&*store, &lease, say("why", Next::Fail(b"error".to_vec()))).await;
    assert_eq!(message(&lease).await.as_deref(), Some("why"));
    let requeued = store.requeue(&lease.task).await.expect("a store");
    assert_eq!(requeued.expect("a task").task.status_message, None);
}

/// It is over, as `status`, with this outcome.
async fn assert_over(store: &dyn Store, lease: &Lease, status: TaskStatus, outcome: &[u8]) {
    assert_lost(store, lease).await;
    let task = get(store, &lease.task).await;
    assert_eq!(task.status, status);
    assert_eq!(task.outcome.as_deref(), Some(outcome));
    assert!(task.asks.is_empty(), "nobody is asked any more");
    assert_none_due(store).await;
    let row = row(store, lease).await;
    assert_eq!((row.due, row.worker), (None, None));
}

pub(super) async fn a_completed_task_is_over(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    let complete = Commit {
        journal: Some(b"all".to_vec()),
        next: Next::Complete(b"result".to_vec()),
        ..publish(&[("late", "?")])
    };
    commit(&*store, &lease, complete).await;
    assert_over(&*store, &lease, TaskStatus::Completed, b"result").await;
}

pub(super) async fn a_failed_task_is_over(store: Arc<dyn Store>) {
    let short = NewTask {
        ttl: Duration::ZERO,
        ..new()
    };
    create(&*store, short).await;
    let lease = claim_soon(&*store).await.lease;
    commit(&*store, &lease, next(Next::Fail(b"error".to_vec()))).await;
    assert_over(&*store, &lease, TaskStatus::Failed, b"error").await;
}

pub(super) async fn a_commit_done_twice_does_no_harm(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("a", "?")])).await;
    answer(&*store, &lease.task, &[("a", "1")]).await;
    let step = Commit {
        journal: Some(b"further".to_vec()),
        publish: pairs(&[("b", "?")]),
        taken: keys(&["a"]),
        next: Next::SetDown(None),
        ..Commit::default()
    };
    for _ in 0..2 {
        assert!(!commit(&*store, &lease, step.clone()).await.answers);
        let task = get(&*store, &lease.task).await;
        assert_eq!(task.asks, pairs(&[("b", "?")]));
        assert_none_due(&*store).await;
    }
    answer(&*store, &lease.task, &[("b", "2")]).await;
    let claimed = claim(&*store).await;
    assert_eq!(claimed.answers, pairs(&[("b", "2")]));
    assert_eq!(get(&*store, &lease.task).await.status, TaskStatus::Working);
}
