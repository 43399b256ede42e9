//! The replay log, and tokens that are too large to travel.

use super::support::{HOUR, flow};
use crate::{Keep, LogKey, Recorded, Store, Swept};
use std::sync::Arc;
use std::time::Duration;

const KEEP: Keep = Keep {
    now: 1_000,
    until: u64::MAX,
};

async fn begin(store: &dyn Store, key: &LogKey, keep: Keep) -> Recorded {
    store.begin(key, keep).await.expect("the log answers")
}

pub(super) async fn what_has_begun_is_fresh_once(store: Arc<dyn Store>) {
    let flow = flow();
    let key = LogKey::round(flow, 1);
    assert_eq!(begin(&*store, &key, KEEP).await, Recorded::Fresh);
    assert_eq!(begin(&*store, &key, KEEP).await, Recorded::Begun);
    let next = LogKey::round(flow, 2);
    assert_eq!(begin(&*store, &next, KEEP).await, Recorded::Fresh);
    let other = LogKey::round(super::support::flow(), 1);
    assert_eq!(begin(&*store, &other, KEEP).await, Recorded::Fresh);
}

pub(super) async fn what_was_done_is_given_back(store: Arc<dyn Store>) {
    let key = LogKey::round(flow(), 1);
    begin(&*store, &key, KEEP).await;
    let value = "{\"said\":\"a\0b \u{1a} \u{1f980} \\0\"}";
    store.finish(&key, value).await.expect("the log answers");
    let done = Recorded::Done(value.to_owned());
    assert_eq!(begin(&*store, &key, KEEP).await, done);
    let long = "x".repeat(1 << 20);
    store.finish(&key, &long).await.expect("the log answers");
    assert_eq!(begin(&*store, &key, KEEP).await, Recorded::Done(long));
    store.finish(&key, "").await.expect("the log answers");
    let done = Recorded::Done(String::new());
    assert_eq!(begin(&*store, &key, KEEP).await, done);
}

pub(super) async fn what_was_taken_back_may_begin_again(store: Arc<dyn Store>) {
    let key = LogKey::round(flow(), 1);
    begin(&*store, &key, KEEP).await;
    store.forget(&key).await.expect("the log answers");
    store.forget(&key).await.expect("twice does no harm");
    assert_eq!(begin(&*store, &key, KEEP).await, Recorded::Fresh);
}

pub(super) async fn an_end_without_a_beginning_is_not_recorded(store: Arc<dyn Store>) {
    let key = LogKey::round(flow(), 1);
    store.finish(&key, "never begun").await.expect("an answer");
    assert_eq!(begin(&*store, &key, KEEP).await, Recorded::Fresh);
}

pub(super) async fn a_record_ends_with_its_time(store: Arc<dyn Store>) {
    let key = LogKey::round(flow(), 1);
    let keep = |now, until| Keep { now, until };
    begin(&*store, &key, keep(1_000, 2_000)).await;
    store.finish(&key, "done").await.expect("the log answers");
    let done = Recorded::Done("done".to_owned());
    assert_eq!(begin(&*store, &key, keep(2_000, 9_000)).await, done);
    let fresh = begin(&*store, &key, keep(2_001, 9_000)).await;
    assert_eq!(fresh, Recorded::Fresh);
    assert_eq!(
        begin(&*store, &key, keep(9_000, 9_000)).await,
        Recorded::Begun
    );
}

pub(super) async fn one_of_many_beginnings_at_once_is_fresh(store: Arc<dyn Store>) {
    let key = LogKey::round(flow(), 1);
    // The first time there is no record, the second time one whose time is over.
    for keep in [1_000, 3_000].map(|now| Keep {
        now,
        until: now + 1_000,
    }) {
        let beginners = (0..8).map(|_| {
            let (store, key) = (store.clone(), key.clone());
            tokio::spawn(async move { begin(&*store, &key, keep).await })
        });
        let beginners: Vec<_> = beginners.collect();
        let mut fresh = 0;
        for beginner in beginners {
            match beginner.await.expect("no beginner panics") {
                Recorded::Fresh => fresh += 1,
                Recorded::Begun => {}
                Recorded::Done(value) => panic!("nothing was done: {value}"),
            }
        }
        assert_eq!(fresh, 1);
    }
}

pub(super) async fn a_token_that_was_kept_is_found(store: Arc<dyn Store>) {
    let token = |fill| vec![fill; 300_000];
    assert_eq!(store.spilled("a").await.expect("no error"), None);
    store.spill("a", token(1), HOUR).await.expect("an answer");
    store.spill("b", token(2), HOUR).await.expect("an answer");
    assert_eq!(store.spilled("a").await.expect("no error"), Some(token(1)));
    assert_eq!(store.spilled("b").await.expect("no error"), Some(token(2)));
    assert_eq!(store.spilled("A").await.expect("no error"), None);
    store.spill("a", token(1), HOUR).await.expect("once more");
    assert_eq!(store.spilled("a").await.expect("no error"), Some(token(1)));
}

pub(super) async fn a_token_ends_with_its_time(store: Arc<dyn Store>) {
    let no_time = Duration::ZERO;
    store.spill("a", vec![1], no_time).await.expect("an answer");
    assert_eq!(store.spilled("a").await.expect("no error"), None);
    let long = Duration::MAX;
    store.spill("a", vec![2], long).await.expect("an answer");
    assert_eq!(store.spilled("a").await.expect("no error"), Some(vec![2]));
}

pub(super) async fn a_sweep_takes_records_and_tokens_whose_time_is_over(store: Arc<dyn Store>) {
    let flow = flow();
    for round in 0..3 {
        let key = LogKey::round(flow, round);
        let past = Keep {
            now: 1_000,
            until: 2_000,
        };
        begin(&*store, &key, past).await;
        let id = format!("token {round}");
        let spilled = store.spill(&id, vec![1], Duration::ZERO).await;
        spilled.expect("the store answers");
    }
    let kept = LogKey::round(flow, 9);
    begin(&*store, &kept, KEEP).await;
    store.spill("kept", vec![1], HOUR).await.expect("an answer");
    tokio::time::sleep(Duration::from_millis(2)).await;
    let sweep = async || store.sweep(HOUR, 2).await.expect("the store answers");
    let swept = |records, tokens| Swept {
        records,
        tokens,
        ..Swept::default()
    };
    assert_eq!(sweep().await, swept(2, 2));
    assert_eq!(sweep().await, swept(1, 1));
    assert_eq!(sweep().await, swept(0, 0));
    assert_eq!(begin(&*store, &kept, KEEP).await, Recorded::Begun);
    assert_eq!(
        store.spilled("kept").await.expect("no error"),
        Some(vec![1])
    );
}
