//! Extreme values: large, odd, long.

use super::support::{Subject, alice, asks, keep, new, open, pairs, until};
use crate::{Commit, NewTask, Next};
use refrain_core::Principal;
use std::time::Duration;

pub(super) async fn bytes_are_kept(store: Subject) {
    let every: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    for bytes in [Vec::new(), vec![0], vec![0xff; 3], every] {
        let big = NewTask {
            call: bytes.clone(),
            journal: bytes.clone(),
            ..new()
        };
        store.create(big).await;
        let claimed = store.claim().await;
        assert_eq!(claimed.call, bytes);
        assert_eq!(claimed.journal, bytes);
        let pair = vec![("k".to_owned(), bytes.clone())];
        let ask = Commit {
            publish: pair.clone(),
            journal: Some(bytes.clone()),
            ..keep()
        };
        store.commit(&claimed.lease, ask.suspend()).await;
        let id = &claimed.lease.task;
        assert_eq!(store.get(id).await.asks[0].1, bytes);
        assert_eq!(store.open_asks(id, &["k"]).await[0].1, bytes);
        let answered = store.0.answer(id, &alice(), pair).await;
        assert!(answered.expect("no error"));
        let claimed = store.claim().await;
        assert_eq!(claimed.answers[0].1, bytes);
        assert_eq!(claimed.journal, bytes);
        store
            .then(&claimed.lease, Next::Complete(bytes.clone()))
            .await;
        assert_eq!(store.get(id).await.outcome, Some(bytes.into()));
    }
}

const ODD: [&str; 11] = [
    "",
    " ",
    "\0",
    "a\0b\0",
    "\u{1a}",
    "\u{1a}0\0\u{1a}\u{1a}1",
    "\\0 \\ \\\\",
    "'; DROP TABLE refrain_tasks; --",
    "\"quoted\" 'twice' %s $1 ?1",
    "\u{feff}\u{202e}\u{1f468}\u{200d}\u{1f469} Straße, 東京\r\n\t\u{7f}",
    "\u{10ffff}\u{ffff}",
];

pub(super) async fn text_is_kept(store: Subject) {
    for text in ODD {
        let owner = Principal::new(text);
        let named = NewTask {
            status_message: Some(text.to_owned()),
            ..new().owner(&owner).tool(text)
        };
        let lease = store.create_claimed(named, text, Duration::ZERO).await;
        let id = &lease.task;
        let claimed = until(async || store.claim_as(text, &[text], 1).await.pop()).await;
        assert_eq!((claimed.tool.as_str(), &claimed.owner), (text, &owner));
        let say = asks(&[text, "other"]).message(text);
        store.commit(&claimed.lease, say).await;
        let row = store.find(id).await;
        assert_eq!(row.owner, owner);
        assert_eq!(row.worker.as_deref(), Some(text));
        assert_eq!(row.task.tool, text);
        assert_eq!(row.task.status_message.as_deref(), Some(text));
        assert_eq!(row.task.asks[0].0, text);
        let task = store.0.get(id, &owner).await.expect("no error");
        assert_eq!(task.expect("the task").asks[0].0, text);
        let found = store.0.open_asks(id, &owner, &[text]).await;
        let found = found.expect("no error").expect("the task");
        assert_eq!(found.tool, text);
        assert_eq!(found.asks, open(&[(text, "?")]));
        let answers = pairs(&[(text, "1")]);
        assert!(store.0.answer(id, &owner, answers).await.expect("no error"));
        let retry = Next::Retry(Duration::ZERO, text.to_owned());
        let taken = keep().taken(&[text]).withdrawn(&["other"]).next(retry);
        assert!(!store.commit(&claimed.lease, taken).await.answers);
        let row = store.find(id).await;
        assert_eq!(row.last_error.as_deref(), Some(text));
        assert!(store.0.cancel(id, &owner).await.expect("no error"));
        store.spill(text, vec![1], Duration::MAX).await;
        assert_eq!(store.spilled(text).await, Some(vec![1]));
    }
}

pub(super) async fn similar_keys_are_different_asks(store: Subject) {
    let lease = store.asking(&["\0", "\u{1a}0", "\\0"]).await;
    store.answer(&lease, &[("\u{1a}0", "1")]).await;
    let left = open(&[("\0", "?"), ("\\0", "?")]);
    assert_eq!(store.get(&lease.task).await.asks, left);
    let all = ["\\0", "\u{1a}0", "\0"];
    assert_eq!(store.open_asks(&lease.task, &all).await, left);
    assert_eq!(store.open_asks(&lease.task, &all[1..]).await, left[..1]);
}

pub(super) async fn long_time_does_not_overflow(store: Subject) {
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    for ttl in [Duration::MAX, Duration::from_millis(u64::MAX)] {
        let long = NewTask {
            poll_interval: Duration::MAX,
            ..new().ttl(ttl)
        };
        let lease = store.create_claimed(long, "creator", Duration::MAX).await;
        let task = store.get(&lease.task).await;
        assert!(task.ttl > century && task.poll_interval > century);
        let held = store.extend(&[&lease], Duration::MAX).await;
        assert_eq!(held, std::slice::from_ref(&lease));
        store
            .then(&lease, Next::Retry(Duration::MAX, String::new()))
            .await;
        store.requeue(&lease.task).await;
        let claimed = store.claim_soon().await;
        assert!(claimed.left > century);
        store.then(&claimed.lease, Next::Fail(Vec::new())).await;
        store.requeue(&lease.task).await;
        let claimed = store.claim().await;
        assert!(claimed.left > century);
        store
            .then(&claimed.lease, Next::Suspend(Some(Duration::MAX)))
            .await;
        store.sweep(Duration::MAX, usize::MAX).await;
        store.get(&lease.task).await;
    }
}

pub(super) async fn task_without_time_to_live_is_due_at_once(store: Subject) {
    let none = new().ttl(Duration::ZERO);
    let lease = store.create_claimed(none, "creator", Duration::ZERO).await;
    // Suspended without a wait, the task is due when it expires, which is at once.
    store.then(&lease, Next::Suspend(None)).await;
    let claimed = store.claim_soon().await;
    assert_eq!(claimed.left, Duration::ZERO);
    assert_eq!(claimed.ttl, Duration::ZERO);
}
