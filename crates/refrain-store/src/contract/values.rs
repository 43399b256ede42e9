//! Values at the edges: large, odd, long.

use super::support::{
    answer, claim, claim_soon, commit, create, create_leased, get, lease_of, new, next, pairs,
};
use crate::{Commit, NewTask, Next, Store};
use refrain_core::Principal;
use std::sync::Arc;
use std::time::Duration;

pub(super) async fn bytes_come_back_as_they_were(store: Arc<dyn Store>) {
    let every: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    for bytes in [Vec::new(), vec![0], vec![0xff; 3], every] {
        let big = NewTask {
            call: bytes.clone(),
            journal: bytes.clone(),
            ..new()
        };
        create(&*store, big).await;
        let claimed = claim(&*store).await;
        assert_eq!(claimed.call, bytes);
        assert_eq!(claimed.journal, bytes);
        let ask = Commit {
            publish: vec![("k".to_owned(), bytes.clone())],
            journal: Some(bytes.clone()),
            next: Next::SetDown(None),
            ..Commit::default()
        };
        commit(&*store, &claimed.lease, ask).await;
        let id = &claimed.lease.task;
        assert_eq!(get(&*store, id).await.asks[0].1, bytes);
        let answers = vec![("k".to_owned(), bytes.clone())];
        let owner = super::support::alice();
        assert!(store.answer(id, &owner, answers).await.expect("no error"));
        let claimed = claim(&*store).await;
        assert_eq!(claimed.answers[0].1, bytes);
        assert_eq!(claimed.journal, bytes);
        let done = next(Next::Complete(bytes.clone()));
        commit(&*store, &claimed.lease, done).await;
        assert_eq!(get(&*store, id).await.outcome, Some(bytes));
    }
}

pub(super) async fn text_comes_back_as_it_was(store: Arc<dyn Store>) {
    let odd = [
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
    for text in odd {
        let owner = Principal::new(text);
        let named = NewTask {
            owner: owner.clone(),
            tool: text.to_owned(),
            status_message: Some(text.to_owned()),
            claimed: Some((text.to_owned(), Duration::ZERO)),
            ..new()
        };
        let id = lease_of(store.create(named).await).task;
        let tools = [text.to_owned()];
        let claim = crate::Claim {
            worker: text,
            tools: &tools,
            lease: super::support::HOUR,
            most: 1,
        };
        let claimed = async {
            loop {
                if let Some(claimed) = store.claim(claim).await.expect("an answer").pop() {
                    return claimed;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let claimed = tokio::time::timeout(Duration::from_secs(60), claimed).await;
        let claimed = claimed.expect("it is due within a minute");
        assert_eq!((&claimed.tool, &claimed.owner), (&text.to_owned(), &owner));
        let say = Commit {
            publish: pairs(&[(text, "?"), ("other", "?")]),
            status_message: Some(text.to_owned()),
            ..Commit::default()
        };
        commit(&*store, &claimed.lease, say).await;
        let row = store.find(&id).await.expect("an answer").expect("the task");
        assert_eq!(row.owner, owner);
        assert_eq!(row.worker.as_deref(), Some(text));
        assert_eq!(row.task.tool, text);
        assert_eq!(row.task.status_message.as_deref(), Some(text));
        assert_eq!(row.task.asks[0].0, text);
        let task = store.get(&id, &owner).await.expect("an answer");
        assert_eq!(task.expect("the task").asks[0].0, text);
        let answers = pairs(&[(text, "1")]);
        assert!(store.answer(&id, &owner, answers).await.expect("no error"));
        let taken = Commit {
            taken: vec![text.to_owned()],
            withdrawn: vec!["other".to_owned()],
            next: Next::Retry(Duration::ZERO, text.to_owned()),
            ..Commit::default()
        };
        assert!(!commit(&*store, &claimed.lease, taken).await.answers);
        let row = store.find(&id).await.expect("an answer").expect("the task");
        assert_eq!(row.last_error.as_deref(), Some(text));
        assert!(store.cancel(&id, &owner).await.expect("no error"));
        store.spill(text, vec![1], Duration::MAX).await.expect("ok");
        assert_eq!(store.spilled(text).await.expect("no error"), Some(vec![1]));
    }
    // An answer to a key of one kind of oddity is none to a key that looks alike.
    let lease = create_leased(&*store).await;
    let asks = [("\0", "?"), ("\u{1a}0", "?"), ("\\0", "?")];
    let publish = super::support::publish(&asks);
    commit(&*store, &lease, publish).await;
    answer(&*store, &lease.task, &[("\u{1a}0", "1")]).await;
    let left = pairs(&[("\0", "?"), ("\\0", "?")]);
    assert_eq!(get(&*store, &lease.task).await.asks, left);
}

pub(super) async fn a_long_life_does_not_overflow(store: Arc<dyn Store>) {
    for ttl in [Duration::MAX, Duration::from_millis(u64::MAX)] {
        let long = NewTask {
            ttl,
            poll_interval: Duration::MAX,
            claimed: Some(("maker".to_owned(), Duration::MAX)),
            ..new()
        };
        let lease = lease_of(store.create(long).await);
        let task = get(&*store, &lease.task).await;
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        assert!(task.ttl > century && task.poll_interval > century);
        let leases = [lease.clone()];
        let held = store.extend(&leases, Duration::MAX).await;
        assert_eq!(held.expect("no error"), leases.to_vec());
        let wait = Next::Retry(Duration::MAX, String::new());
        commit(&*store, &lease, next(wait)).await;
        store.requeue(&lease.task).await.expect("an answer");
        let claimed = claim_soon(&*store).await;
        assert!(claimed.left > century);
        let failed = next(Next::Fail(Vec::new()));
        commit(&*store, &claimed.lease, failed).await;
        store.requeue(&lease.task).await.expect("an answer");
        let claimed = claim(&*store).await;
        assert!(claimed.left > century);
        let down = next(Next::SetDown(Some(Duration::MAX)));
        commit(&*store, &claimed.lease, down).await;
        let swept = store.sweep(Duration::MAX, usize::MAX).await;
        swept.expect("the store answers");
        get(&*store, &lease.task).await;
    }
}

pub(super) async fn a_life_of_no_time_is_over_at_once(store: Arc<dyn Store>) {
    let none = NewTask {
        ttl: Duration::ZERO,
        claimed: Some(("maker".to_owned(), Duration::ZERO)),
        ..new()
    };
    let lease = lease_of(store.create(none).await);
    // It is set down without a limit, and due all the same.
    commit(&*store, &lease, next(Next::SetDown(None))).await;
    let claimed = claim_soon(&*store).await;
    assert_eq!(claimed.left, Duration::ZERO);
    assert_eq!(claimed.ttl, Duration::ZERO);
}
