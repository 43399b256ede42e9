//! The replay log, and spilled tokens.

use super::support::{HOUR, Subject, flow, sleep_millis};
use crate::{LogKey, RecordState, Retention, SweepCounts};
use std::time::Duration;

const KEEP: Retention = retention(1_000, u64::MAX);

const fn retention(now: u64, until: u64) -> Retention {
    Retention { now, until }
}

fn done(value: &str) -> RecordState {
    RecordState::Done(value.to_owned())
}

pub(super) async fn record_begins_once(store: Subject) {
    let flow = flow();
    let key = LogKey::round(flow, 1);
    assert_eq!(store.begin(&key, KEEP).await, RecordState::Fresh);
    assert_eq!(store.begin(&key, KEEP).await, RecordState::Begun);
    let next = LogKey::round(flow, 2);
    assert_eq!(store.begin(&next, KEEP).await, RecordState::Fresh);
    let other = LogKey::round(super::support::flow(), 1);
    assert_eq!(store.begin(&other, KEEP).await, RecordState::Fresh);
}

pub(super) async fn finished_record_returns_its_value(store: Subject) {
    let key = LogKey::round(flow(), 1);
    store.begin(&key, KEEP).await;
    let long = "x".repeat(1 << 20);
    for value in ["{\"said\":\"a\0b \u{1a} \u{1f980} \\0\"}", &long, ""] {
        store.finish(&key, value).await;
        assert_eq!(store.begin(&key, KEEP).await, done(value));
    }
}

pub(super) async fn forgotten_record_may_begin_again(store: Subject) {
    let key = LogKey::round(flow(), 1);
    store.begin(&key, KEEP).await;
    store.0.forget(&key).await.expect("no error");
    store.0.forget(&key).await.expect("twice does no harm");
    assert_eq!(store.begin(&key, KEEP).await, RecordState::Fresh);
}

pub(super) async fn record_that_never_began_is_not_finished(store: Subject) {
    let key = LogKey::round(flow(), 1);
    store.finish(&key, "never begun").await;
    assert_eq!(store.begin(&key, KEEP).await, RecordState::Fresh);
}

pub(super) async fn record_expires(store: Subject) {
    let key = LogKey::round(flow(), 1);
    store.begin(&key, retention(1_000, 2_000)).await;
    store.finish(&key, "done").await;
    let kept = store.begin(&key, retention(2_000, 9_000)).await;
    assert_eq!(kept, done("done"));
    let fresh = store.begin(&key, retention(2_001, 9_000)).await;
    assert_eq!(fresh, RecordState::Fresh);
    let begun = store.begin(&key, retention(9_000, 9_000)).await;
    assert_eq!(begun, RecordState::Begun);
}

pub(super) async fn one_of_many_concurrent_begins_is_fresh(store: Subject) {
    let key = LogKey::round(flow(), 1);
    // At first there is no record, then an expired one.
    for period in [retention(1_000, 2_000), retention(3_000, 4_000)] {
        let begin = async |store: Subject, key, period| store.begin(&key, period).await;
        let attempts = store.concurrently(|store, _| begin(store, key.clone(), period));
        let states = attempts.await;
        let fresh = states.iter().filter(|state| **state == RecordState::Fresh);
        assert_eq!(fresh.count(), 1);
        let begun = states.iter().filter(|state| **state == RecordState::Begun);
        assert_eq!(begun.count(), 7);
    }
}

pub(super) async fn spilled_token_is_found(store: Subject) {
    let token = |fill| vec![fill; 300_000];
    assert_eq!(store.spilled("a").await, None);
    store.spill("a", token(1), HOUR).await;
    store.spill("b", token(2), HOUR).await;
    assert_eq!(store.spilled("a").await, Some(token(1)));
    assert_eq!(store.spilled("b").await, Some(token(2)));
    assert_eq!(store.spilled("A").await, None);
    store.spill("a", token(1), HOUR).await;
    assert_eq!(store.spilled("a").await, Some(token(1)));
}

pub(super) async fn spilled_token_expires(store: Subject) {
    store.spill("a", vec![1], Duration::ZERO).await;
    assert_eq!(store.spilled("a").await, None);
    store.spill("a", vec![2], Duration::MAX).await;
    assert_eq!(store.spilled("a").await, Some(vec![2]));
}

pub(super) async fn sweep_deletes_expired_records_and_tokens(store: Subject) {
    let flow = flow();
    for round in 0..3 {
        let key = LogKey::round(flow, round);
        store.begin(&key, retention(1_000, 2_000)).await;
        let id = format!("token {round}");
        store.spill(&id, vec![1], Duration::ZERO).await;
    }
    let kept = LogKey::round(flow, 9);
    store.begin(&kept, KEEP).await;
    store.spill("kept", vec![1], HOUR).await;
    sleep_millis(2).await;
    for count in [2, 1, 0] {
        let expected = SweepCounts {
            records: count,
            tokens: count,
            ..SweepCounts::default()
        };
        assert_eq!(store.sweep(HOUR, 2).await, expected);
    }
    assert_eq!(store.begin(&kept, KEEP).await, RecordState::Begun);
    assert_eq!(store.spilled("kept").await, Some(vec![1]));
}
