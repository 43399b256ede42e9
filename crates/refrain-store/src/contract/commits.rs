//! Commits of a worker.

use super::support::{HOUR, Subject, asks, assert_is_lost, keep, new, next, open, pairs, publish};
use crate::{Commit, Lease, Next, StoredStatus, StoredTask};
use std::time::Duration;

fn open_keys(task: &StoredTask) -> Vec<&str> {
    task.asks.iter().map(|(key, _)| key.as_str()).collect()
}

pub(super) async fn commit_writes_all_its_parts(store: Subject) {
    let lease = store.asking(&["a", "b"]).await;
    store.answer(&lease, &[("a", "1")]).await;
    let all = publish(&[("c", "C?")]).taken(&["a"]).withdrawn(&["b"]);
    let all = all.progress().journal("further").message("waiting");
    let committed = store.commit(&lease, all.next(Next::HandOn)).await;
    assert!(!committed.answers);
    let task = store.get(&lease.task).await;
    assert_eq!(task.status, StoredStatus::InputRequired);
    assert_eq!(task.status_message.as_deref(), Some("waiting"));
    assert_eq!(task.asks, open(&[("c", "C?")]));
    let claimed = store.claim().await;
    assert_eq!(claimed.journal, b"further");
    assert_eq!(claimed.answers, Vec::new());
}

pub(super) async fn lost_commit_writes_nothing(store: Subject) {
    let lease = store.asking(&["a", "b"]).await;
    store.answer(&lease, &[("a", "1")]).await;
    store.requeue(&lease.task).await;
    let before = store.get(&lease.task).await;
    let all = asks(&["c"]).taken(&["a"]).withdrawn(&["b"]).progress();
    let all = all.journal("stale").message("stale");
    let all = all.next(Next::Complete(b"stale".to_vec()));
    assert_is_lost(&store.0.commit(&lease, all).await);
    let after = store.get(&lease.task).await;
    assert_eq!(after.revision, before.revision);
    assert_eq!(after.asks, open(&[("b", "?")]));
    assert_eq!(after.status_message, None);
    let claimed = store.claim().await;
    assert_eq!(claimed.journal, b"journal");
    assert_eq!(claimed.answers, pairs(&[("a", "1")]));
    // The rejected commit did not use the key `c`.
    let publish = publish(&[("c", "C?")]);
    store.commit(&claimed.lease, publish).await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.asks, open(&[("b", "?"), ("c", "C?")]));
}

pub(super) async fn lost_commit_does_not_affect_concurrent_ones(store: Subject) {
    let (one, lost, other) = (
        store.lease().await,
        store.asking(&["a"]).await,
        store.asking(&["a"]).await,
    );
    store.requeue(&lost.task).await;
    let commit = |lease, text| store.0.commit(lease, asks(&["b"]).journal(text));
    let (first, rejected, last) = tokio::join!(
        commit(&one, "one"),
        commit(&lost, "lost"),
        commit(&other, "other")
    );
    assert_is_lost(&rejected);
    assert!(first.is_ok() && last.is_ok(), "{first:?} {last:?}");
    let claimed = store.claim().await;
    assert_eq!(
        (claimed.lease.task, claimed.journal.as_slice()),
        (lost.task.clone(), &b"journal"[..])
    );
    let open = [&one, &lost, &other].map(|lease| async { store.get(&lease.task).await.asks.len() });
    let [one, lost, other] = open;
    assert_eq!(tokio::join!(one, lost, other), (1, 1, 2));
}

pub(super) async fn status_follows_the_asks(store: Subject) {
    let lease = store.lease().await;
    let status = async || store.get(&lease.task).await.status;
    store.commit(&lease, keep()).await;
    assert_eq!(status().await, StoredStatus::Working);
    store.commit(&lease, asks(&["a", "b"])).await;
    assert_eq!(status().await, StoredStatus::InputRequired);
    store.answer(&lease, &[("a", "1")]).await;
    assert_eq!(status().await, StoredStatus::InputRequired);
    store.answer(&lease, &[("b", "1")]).await;
    assert_eq!(status().await, StoredStatus::Working);
    store.commit(&lease, asks(&["c"])).await;
    assert_eq!(status().await, StoredStatus::InputRequired);
    let withdraw = keep().withdrawn(&["c"]).suspend();
    store.commit(&lease, withdraw).await;
    assert_eq!(status().await, StoredStatus::Working);
}

pub(super) async fn used_key_is_not_published_again(store: Subject) {
    let lease = store.lease().await;
    let used = ["open", "answered", "taken", "no"];
    let with_text = |text| publish(&used.map(|key| (key, text)));
    store.commit(&lease, with_text("1")).await;
    store
        .answer(&lease, &[("answered", "A"), ("taken", "T")])
        .await;
    let close = keep().taken(&["taken"]).withdrawn(&["no"]);
    store.commit(&lease, close).await;
    assert!(store.commit(&lease, with_text("2")).await.answers);
    let task = store.get(&lease.task).await;
    assert_eq!(task.asks, open(&[("open", "1")]));
    assert_eq!(store.answers(&lease).await, pairs(&[("answered", "A")]));
    // One key twice in one commit is one ask.
    let twice = publish(&[("two", "1"), ("two", "2")]);
    store.commit(&lease, twice).await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.asks, open(&[("open", "1"), ("two", "1")]));
    store.answer(&lease, &[("open", "O"), ("two", "T")]).await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.status, StoredStatus::Working);
}

pub(super) async fn asks_keep_their_order(store: Subject) {
    let lease = store.asking(&["z", "m"]).await;
    store.commit(&lease, asks(&["a", "z", "B"])).await;
    let many: Vec<String> = (0..30).map(|n| format!("k{}", (n * 7) % 30)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    store.commit(&lease, asks(&many)).await;
    let expected = [&["z", "m", "a", "B"], &many[..]].concat();
    assert_eq!(open_keys(&store.get(&lease.task).await), expected);
    assert_eq!(open_keys(&store.find(&lease.task).await.task), expected);
}

pub(super) async fn withdrawn_ask_is_closed(store: Subject) {
    let lease = store.asking(&["a", "b"]).await;
    let withdraw = keep().withdrawn(&["a", "never asked"]);
    store.commit(&lease, withdraw).await;
    assert_eq!(open_keys(&store.get(&lease.task).await), ["b"]);
    store.answer(&lease, &[("a", "1")]).await;
    assert_eq!(store.answers(&lease).await, Vec::new());
}

pub(super) async fn ask_may_be_published_and_withdrawn_at_once(store: Subject) {
    let lease = store.lease().await;
    store.commit(&lease, asks(&["a"]).withdrawn(&["a"])).await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.status, StoredStatus::Working);
    store.commit(&lease, publish(&[("a", "again?")])).await;
    assert_eq!(open_keys(&store.get(&lease.task).await), [""; 0]);
}

pub(super) async fn task_suspended_without_a_limit_waits_until_it_expires(store: Subject) {
    let lease = store.lease().await;
    store.commit(&lease, asks(&["a"]).suspend()).await;
    store.assert_none_due().await;
    let row = store.find(&lease.task).await;
    assert_eq!(row.worker, None);
    assert_eq!(row.due, Some(row.task.created + row.task.ttl));
}

pub(super) async fn task_suspended_with_a_limit_is_due_after_it(store: Subject) {
    let lease = store.lease().await;
    let suspend = |wait| next(Next::Suspend(Some(wait)));
    store.commit(&lease, suspend(HOUR / 2)).await;
    store.assert_none_due().await;
    let row = store.find(&lease.task).await;
    let due = row.due.expect("it has not ended");
    assert!(due >= row.task.created + HOUR / 2, "not before");
    assert!(due < row.task.created + HOUR, "and before it expires");
    store.cancel(&lease.task).await;
    let lease = store.lease().await;
    let short = Duration::from_millis(5);
    store.commit(&lease, suspend(short)).await;
    assert_eq!(store.claim_soon().await.lease.task, lease.task);
}

pub(super) async fn wait_ends_when_the_task_expires(store: Subject) {
    for next in [
        Next::Suspend(Some(2 * HOUR)),
        Next::Retry(2 * HOUR, "later".to_owned()),
    ] {
        let lease = store.lease().await;
        store.commit(&lease, super::support::next(next)).await;
        let row = store.find(&lease.task).await;
        assert_eq!(row.due, Some(row.task.created + row.task.ttl));
    }
    let lease = store.lease().await;
    store.then(&lease, Next::Suspend(Some(Duration::MAX))).await;
    store.assert_none_due().await;
}

pub(super) async fn task_handed_on_is_due(store: Subject) {
    let first = store.lease().await;
    store.then(&first, Next::HandOn).await;
    let second = store.claim().await.lease;
    assert!(second.fence > first.fence);
    store.assert_lost(&first).await;
}

pub(super) async fn retry_is_due_after_its_wait(store: Subject) {
    store.create(new()).await;
    let lease = store.claim().await.lease;
    let retry = |wait| next(Next::Retry(wait, "it broke".to_owned()));
    store.commit(&lease, retry(Duration::ZERO)).await;
    let claimed = store.claim_soon().await;
    assert_eq!(claimed.attempt, 2);
    assert_eq!(claimed.last_error.as_deref(), Some("it broke"));
    store.commit(&claimed.lease, retry(HOUR / 2)).await;
    store.assert_none_due().await;
    let row = store.find(&lease.task).await;
    assert_eq!(row.attempts, 2);
    assert_eq!(row.last_error.as_deref(), Some("it broke"));
    assert_eq!(row.worker, None);
    assert!(row.due.expect("it has not ended") >= row.task.created + HOUR / 2);
}

pub(super) async fn attempts_are_counted_until_progress(store: Subject) {
    store.create(new()).await;
    let retry = |error: &str| next(Next::Retry(Duration::ZERO, error.to_owned()));
    for attempt in 1..=3 {
        let claimed = store.claim_soon().await;
        assert_eq!(claimed.attempt, attempt);
        store.commit(&claimed.lease, asks(&["a"])).await;
        store.commit(&claimed.lease, retry("again")).await;
    }
    let lease = store.claim_soon().await.lease;
    store.commit(&lease, keep().journal("further")).await;
    let row = store.find(&lease.task).await;
    assert_eq!(row.attempts, 4);
    assert_eq!(row.last_error.as_deref(), Some("again"));
    store
        .commit(&lease, keep().journal("further").progress())
        .await;
    assert_eq!(store.find(&lease.task).await.attempts, 0);
    store.then(&lease, Next::HandOn).await;
    let claimed = store.claim().await;
    assert_eq!((claimed.attempt, claimed.last_error), (1, None));
    store.then(&claimed.lease, Next::HandOn).await;
    let claimed = store.claim().await;
    assert_eq!(claimed.attempt, 1, "handing on does not count");
    store
        .then(&claimed.lease, Next::Suspend(Some(Duration::ZERO)))
        .await;
    let claimed = store.claim_soon().await;
    assert_eq!(claimed.attempt, 1, "suspending does not count");
    // A failed attempt may still have made progress.
    let both = retry("new").journal("further still").progress();
    store.commit(&claimed.lease, both).await;
    let claimed = store.claim_soon().await;
    assert_eq!(claimed.attempt, 1);
    assert_eq!(claimed.last_error.as_deref(), Some("new"));
}

pub(super) async fn status_message_stays_until_the_next(store: Subject) {
    let lease = store.lease().await;
    for (message, expected) in [(Some("one"), "one"), (None, "one"), (Some(""), "")] {
        let commit = Commit {
            status_message: message.map(str::to_owned),
            ..keep()
        };
        store.commit(&lease, commit).await;
        let task = store.get(&lease.task).await;
        assert_eq!(task.status_message.as_deref(), Some(expected));
    }
}

pub(super) async fn status_message_ends_with_its_task(store: Subject) {
    let message = async |lease: &Lease| store.get(&lease.task).await.status_message;
    let at_work = || keep().message("at work");
    for last in [None, Some("done".to_owned())] {
        let lease = store.lease().await;
        store.commit(&lease, at_work()).await;
        let done = Commit {
            status_message: last.clone(),
            ..next(Next::Complete(b"result".to_vec()))
        };
        store.commit(&lease, done).await;
        assert_eq!(message(&lease).await, last);
    }
    let lease = store.lease().await;
    store.commit(&lease, at_work()).await;
    store.cancel(&lease.task).await;
    assert_eq!(message(&lease).await, None);

    let lease = store.lease().await;
    let failed = next(Next::Fail(b"error".to_vec())).message("why");
    store.commit(&lease, failed).await;
    assert_eq!(message(&lease).await.as_deref(), Some("why"));
    let requeued = store.requeue(&lease.task).await;
    assert_eq!(requeued.task.status_message, None);
}

async fn assert_ended(store: &Subject, lease: &Lease, status: StoredStatus, outcome: &[u8]) {
    store.assert_lost(lease).await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.status, status);
    assert_eq!(task.outcome.as_deref(), Some(outcome));
    assert!(task.asks.is_empty(), "no ask is open");
    store.assert_none_due().await;
    let row = store.find(&lease.task).await;
    assert_eq!((row.due, row.worker), (None, None));
}

pub(super) async fn completed_task_has_ended(store: Subject) {
    let lease = store.lease().await;
    let complete = asks(&["late"]).journal("all");
    let complete = complete.next(Next::Complete(b"result".to_vec()));
    store.commit(&lease, complete).await;
    assert_ended(&store, &lease, StoredStatus::Completed, b"result").await;
}

pub(super) async fn failed_task_has_ended(store: Subject) {
    store.create(new().ttl(Duration::ZERO)).await;
    let lease = store.claim_soon().await.lease;
    store.then(&lease, Next::Fail(b"error".to_vec())).await;
    assert_ended(&store, &lease, StoredStatus::Failed, b"error").await;
}

pub(super) async fn repeated_commit_has_no_effect(store: Subject) {
    let lease = store.asking(&["a"]).await;
    store.answer(&lease, &[("a", "1")]).await;
    let step = asks(&["b"]).journal("further").taken(&["a"]).suspend();
    for _ in 0..2 {
        assert!(!store.commit(&lease, step.clone()).await.answers);
        let task = store.get(&lease.task).await;
        assert_eq!(task.asks, open(&[("b", "?")]));
        store.assert_none_due().await;
    }
    store.answer(&lease, &[("b", "2")]).await;
    assert_eq!(store.claim().await.answers, pairs(&[("b", "2")]));
    let task = store.get(&lease.task).await;
    assert_eq!(task.status, StoredStatus::Working);
}
