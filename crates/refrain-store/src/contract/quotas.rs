//! Limits of tasks and bytes.

use super::support::{HOUR, Subject, alice, asks, bob, flow, id, keep, new, next, until};
use crate::{
    Creation, Lease, LogError, LogKey, NewTask, Next, Quota, QuotaReached, RecordState, Retention,
    StoreError, StoredStatus,
};
use refrain_core::Principal;
use std::fmt::Debug;
use std::time::Duration;

const KIB: usize = 1024;

#[track_caller]
fn assert_reached<T: Debug>(done: Result<T, StoreError>, limit: QuotaReached) {
    match done {
        Err(StoreError::Quota(reached)) => assert_eq!(reached, limit),
        result => panic!("expected an error that the quota is reached, got {result:?}"),
    }
}

#[track_caller]
fn assert_record_rejected(begun: Result<RecordState, LogError>, limit: QuotaReached) {
    match begun {
        Err(LogError::Quota(reached)) => assert_eq!(reached.downcast_ref(), Some(&limit)),
        result => panic!("expected an error that the quota is reached, got {result:?}"),
    }
}

const fn retention(now: u64, until: u64) -> Retention {
    Retention { now, until }
}

impl Subject {
    /// Begins a record that does not expire.
    async fn begin_for(&self, account: &Principal, key: &LogKey) -> Result<RecordState, LogError> {
        let retention = retention(1_000, u64::MAX);
        self.0.begin(key, account, retention).await
    }

    /// Limits the tasks of each account, and returns the error of a write over the limit.
    fn limit_tasks(&self, tasks: u64) -> QuotaReached {
        self.0.set_quota(Quota {
            tasks,
            ..Quota::default()
        });
        QuotaReached::Tasks(tasks)
    }

    /// Limits the bytes of each account, and returns the error of a write over the limit.
    fn limit_kib(&self, kib: u64) -> QuotaReached {
        let bytes = kib * 1024;
        self.0.set_quota(Quota {
            bytes,
            ..Quota::default()
        });
        QuotaReached::Bytes(bytes)
    }

    /// Creates a task that a worker already runs.
    async fn claimed(&self, new: NewTask) -> Lease {
        self.create_claimed(new, "worker", HOUR).await
    }
}

/// A task whose size rounds up to this many KiB.
fn large(kib: usize) -> NewTask {
    let call = vec![7; kib * KIB - 100];
    NewTask { call, ..new() }
}

fn text(kib: usize) -> String {
    "x".repeat(kib * KIB)
}

pub(super) async fn unfinished_tasks_are_limited(store: Subject) {
    let reached = store.limit_tasks(2);
    let new_task = new();
    store.create(new_task.clone()).await;
    let lease = store.claimed(new()).await;
    assert_reached(store.0.create(new()).await, reached);
    // The limit affects neither other owners nor the task that exists.
    store.create_again(new_task).await;
    store.create(new().owner(&bob())).await;
    store.then(&lease, Next::Complete(b"r".to_vec())).await;
    let created = store.create(new()).await;
    assert_reached(store.0.create(new()).await, reached);
    store.cancel(&created.id).await;
    let failing = store.claimed(new()).await;
    store.then(&failing, Next::Fail(b"e".to_vec())).await;
    store.create(new()).await;
    assert_reached(store.0.create(new()).await, reached);
    // Without a limit again.
    store.0.set_quota(Quota::default());
    store.create(new()).await;
}

/// An account has its own quota, but does not change who may see the task.
pub(super) async fn anonymous_accounts_have_their_own_quota(store: Subject) {
    let anonymous = Principal::anonymous();
    let reached = store.limit_tasks(1);
    let first = store.create(new().account("one")).await;
    assert_reached(store.0.create(new().account("one")).await, reached);
    let lease = store.claimed(new().account("two")).await;
    store.create(new().owner(&anonymous)).await;
    let seen = store.0.get(&first.id, &anonymous).await.expect("no error");
    assert!(seen.is_some(), "any anonymous caller may read it");
    assert!(
        store
            .0
            .cancel(&first.id, &anonymous)
            .await
            .expect("no error")
    );
    store.create(new().account("one")).await;
    // Later writes count for the account of the task.
    let reached = store.limit_kib(64);
    store.commit(&lease, asks(&["a"]).journal(&text(40))).await;
    let answer = vec![("a".to_owned(), text(40).into_bytes())];
    let answered = store.0.answer(&lease.task, &anonymous, answer).await;
    assert_reached(answered, reached);
    let commit = keep().journal(&text(100));
    assert_reached(store.0.commit(&lease, commit).await, reached);
    store
        .create(NewTask {
            call: vec![7; 50 * KIB],
            ..new().account("three")
        })
        .await;
}

pub(super) async fn bytes_of_tasks_are_limited(store: Subject) {
    let reached = store.limit_kib(64);
    for _ in 0..3 {
        store.create(large(20)).await;
    }
    assert_reached(store.0.create(large(20)).await, reached);
    store.create(large(2)).await;
    store.create(large(20).owner(&bob())).await;
    let journal = vec![7; 20 * KIB];
    let task = NewTask { journal, ..new() };
    assert_reached(store.0.create(task).await, reached);
}

pub(super) async fn bytes_of_tokens_are_limited(store: Subject) {
    let reached = store.limit_kib(64);
    let spill = async |id: &str| {
        let token = vec![7; 20 * KIB];
        store.0.spill(id, &alice(), token, HOUR).await
    };
    let check = async |account| store.0.check_quota(&account, 20 * KIB).await;
    for id in ["a", "b", "c"] {
        check(alice()).await.expect("the quota allows it");
        spill(id).await.expect("the quota allows it");
    }
    assert_reached(check(alice()).await, reached);
    check(bob()).await.expect("the quota allows it");
    assert_reached(spill("d").await, reached);
    assert_eq!(store.spilled("d").await, None);
    assert_reached(store.0.create(large(20)).await, reached);
    let bobs = store.0.spill("e", &bob(), vec![7; 20 * KIB], HOUR).await;
    bobs.expect("the quota allows it");
}

pub(super) async fn bytes_of_records_are_limited(store: Subject) {
    let reached = store.limit_kib(64);
    let keys = [1, 2, 3, 4].map(|round| LogKey::round(flow(), round));
    // Bytes count, not characters. An outcome is stored in any case.
    for (key, characters) in keys.iter().zip([15, 15, 100]) {
        let begun = store.begin_for(&alice(), key).await;
        assert_eq!(begun.expect("the quota allows it"), RecordState::Fresh);
        store.finish(key, &"é".repeat(characters * KIB)).await;
    }
    assert_record_rejected(store.begin_for(&alice(), &keys[3]).await, reached);
    assert_reached(store.0.create(large(1)).await, reached);
    let spilled = store.0.spill("a", &alice(), vec![7], HOUR).await;
    assert_reached(spilled, reached);
    // Earlier records are found, and other callers are not affected.
    let found = store.begin_for(&alice(), &keys[0]).await;
    let first = "é".repeat(15 * KIB);
    assert_eq!(found.expect("no quota applies"), RecordState::Done(first));
    let bobs = store.begin_for(&bob(), &keys[3]).await;
    assert_eq!(bobs.expect("the quota allows it"), RecordState::Fresh);
    // A deleted record gives its bytes back.
    store.0.forget(&keys[2]).await.expect("no error");
    let begun = store.begin_for(&alice(), &keys[2]).await;
    assert_eq!(begun.expect("the quota allows it"), RecordState::Fresh);
    assert_reached(store.0.create(large(5)).await, reached);
    store.finish(&keys[0], "short").await;
    store.create(large(30)).await;
}

pub(super) async fn records_without_outcomes_are_limited(store: Subject) {
    let reached = store.limit_kib(1);
    let flow = flow();
    // Each record counts 100 bytes.
    for round in 0..10 {
        let begun = store.begin_for(&alice(), &LogKey::round(flow, round)).await;
        assert_eq!(begun.expect("the quota allows it"), RecordState::Fresh);
    }
    let begun = store.begin_for(&alice(), &LogKey::round(flow, 10)).await;
    assert_record_rejected(begun, reached);
    let begun = store.begin_for(&alice(), &LogKey::round(flow, 9)).await;
    assert_eq!(begun.expect("no quota applies"), RecordState::Begun);
}

pub(super) async fn expired_record_counts_for_its_new_account(store: Subject) {
    let reached = store.limit_kib(64);
    let key = LogKey::round(flow(), 1);
    store.begin(&key, retention(1_000, 2_000)).await;
    store.finish(&key, &text(70)).await;
    assert_reached(store.0.create(large(1)).await, reached);
    let later = retention(3_000, u64::MAX);
    let begun = store.0.begin(&key, &bob(), later).await;
    assert_eq!(begun.expect("the quota allows it"), RecordState::Fresh);
    store.finish(&key, &text(70)).await;
    store.create(large(60)).await;
    assert_reached(store.0.create(large(1).owner(&bob())).await, reached);
}

pub(super) async fn bytes_of_commits_are_limited(store: Subject) {
    let reached = store.limit_kib(64);
    let lease = store.claimed(new()).await;
    store.commit(&lease, keep().journal(&text(40))).await;
    // The new journal replaces the old one.
    store.commit(&lease, keep().journal(&text(50))).await;
    let before = store.get(&lease.task).await;
    for commit in [
        keep().journal(&text(100)),
        keep().journal(&text(100)).suspend(),
        asks(&["a"]).journal(&text(100)),
        next(Next::Complete(text(200).into())),
    ] {
        assert_reached(store.0.commit(&lease, commit).await, reached);
    }
    let task = store.get(&lease.task).await;
    assert_eq!(task.revision, before.revision, "nothing was written");
    assert_eq!(
        (task.status, task.asks),
        (StoredStatus::Working, Vec::new())
    );
    // The task is still held, and may write less.
    store.commit(&lease, keep().journal(&text(10))).await;
    store.commit(&lease, asks(&["b"])).await;
    store.then(&lease, Next::Complete(text(30).into())).await;
}

pub(super) async fn failure_of_task_over_its_quota_is_stored(store: Subject) {
    let lease = store.claimed(large(30)).await;
    store.limit_kib(10);
    store
        .commit(&lease, keep().message("a commit without data"))
        .await;
    store
        .then(&lease, Next::Fail(b"over its quota".to_vec()))
        .await;
    assert_eq!(store.get(&lease.task).await.status, StoredStatus::Failed);
}

pub(super) async fn bytes_of_answers_are_limited(store: Subject) {
    let lease = store.asking(&["a", "b"]).await;
    let reached = store.limit_kib(64);
    let answer = async |key: &str, kib| {
        let answers = vec![(key.to_owned(), text(kib).into_bytes())];
        store.0.answer(&lease.task, &alice(), answers).await
    };
    assert_reached(answer("a", 70).await, reached);
    assert!(store.answers(&lease).await.is_empty());
    assert!(answer("a", 40).await.expect("the quota allows it"));
    assert_reached(answer("b", 40).await, reached);
    assert_reached(store.0.create(large(40)).await, reached);
    assert_eq!(store.answers(&lease).await.len(), 1);
    // An empty list of answers stores nothing.
    store.limit_kib(1);
    let none = store.0.answer(&lease.task, &alice(), Vec::new()).await;
    assert!(none.expect("no quota applies"));
    let none = store.0.answer(&lease.task, &bob(), Vec::new()).await;
    assert!(!none.expect("no quota applies"));
}

pub(super) async fn bytes_of_all_owners_are_limited(store: Subject) {
    store.0.set_quota(Quota {
        total_bytes: 64 * 1024,
        ..Quota::default()
    });
    let reached = QuotaReached::TotalBytes(64 * 1024);
    store.create(large(30)).await;
    store.create(large(30).owner(&bob())).await;
    assert_reached(store.0.create(large(30)).await, reached);
    let spilled = store.0.spill("a", &bob(), vec![7; 30 * KIB], HOUR).await;
    assert_reached(spilled, reached);
    let keys = [1, 2].map(|round| LogKey::round(flow(), round));
    let begun = store.begin_for(&bob(), &keys[0]).await;
    begun.expect("the quota allows it");
    store.finish(&keys[0], &text(10)).await;
    let carol = Principal::new("carol");
    assert_record_rejected(store.begin_for(&carol, &keys[1]).await, reached);
}

/// Many accounts with much data leave room for accounts with little.
pub(super) async fn last_quarter_of_all_bytes_is_for_small_accounts(store: Subject) {
    let kib = |kib: usize| (kib * KIB) as u64;
    store.0.set_quota(Quota {
        bytes: kib(64),
        total_bytes: kib(256),
        ..Quota::default()
    });
    let owner = |number: u32| Principal::new(format!("owner {number}"));
    for number in 0..4 {
        store.create(large(48).owner(&owner(number))).await;
    }
    // A small account has at most a sixteenth of its quota.
    let reached = QuotaReached::Share(kib(4));
    for number in [0, 4] {
        let created = store.0.create(large(8).owner(&owner(number))).await;
        assert_reached(created, reached);
    }
    let spilled = store.0.spill("a", &owner(4), vec![7; 8 * KIB], HOUR).await;
    assert_reached(spilled, reached);
    let lease = store.claimed(large(3).owner(&owner(5))).await;
    let grown = store.0.commit(&lease, keep().journal(&text(2))).await;
    assert_reached(grown, reached);
    for number in 6..26 {
        store.create(large(3).owner(&owner(number))).await;
    }
    let reached = QuotaReached::TotalBytes(kib(256));
    let created = store.0.create(large(3).owner(&owner(26))).await;
    assert_reached(created, reached);
}

/// An account that begins with U+0001 is the address of an anonymous caller, as `Principal::account` makes it.
pub(super) async fn anonymous_callers_leave_bytes_to_others(store: Subject) {
    let bytes = 64 * KIB as u64;
    store.0.set_quota(Quota {
        total_bytes: 2 * bytes,
        anonymous_bytes: bytes,
        ..Quota::default()
    });
    let reached = QuotaReached::AnonymousBytes(bytes);
    store.create(large(30).account("\u{1}192.0.2.1")).await;
    let lease = store.claimed(large(30).account("\u{1}192.0.2.2")).await;
    let created = store.0.create(large(30).account("\u{1}192.0.2.3")).await;
    assert_reached(created, reached);
    store.commit(&lease, asks(&["a"])).await;
    let answer = vec![("a".to_owned(), text(10).into_bytes())];
    let anonymous = Principal::anonymous();
    let answered = store.0.answer(&lease.task, &anonymous, answer).await;
    assert_reached(answered, reached);
    let grown = store.0.commit(&lease, keep().journal(&text(10))).await;
    assert_reached(grown, reached);
    for account in [anonymous, Principal::new("\u{1}192.0.2.4")] {
        let spilled = store.0.spill("a", &account, vec![7; 10 * KIB], HOUR).await;
        assert_reached(spilled, reached);
    }
    let lease = store.claimed(large(30)).await;
    store.commit(&lease, keep().journal(&text(10))).await;
}

pub(super) async fn completed_or_cancelled_task_frees_its_bytes(store: Subject) {
    let reached = store.limit_kib(64);
    for end in [Some(Next::Complete(b"r".to_vec())), None] {
        for _ in 0..3 {
            let lease = store.claimed(large(50)).await;
            assert_reached(store.0.create(large(50)).await, reached);
            match &end {
                Some(end) => store.then(&lease, end.clone()).await,
                None => store.cancel(&lease.task).await,
            }
        }
    }
    // A failed task may run again, and keeps everything.
    let lease = store.claimed(large(50)).await;
    store.then(&lease, Next::Fail(b"e".to_vec())).await;
    assert_reached(store.0.create(large(50)).await, reached);
    store.requeue(&lease.task).await;
    assert_eq!(store.claim().await.call.len(), 50 * KIB - 100);
}

pub(super) async fn deleted_data_does_not_count(store: Subject) {
    let reached = store.limit_kib(64);
    let none = Duration::ZERO;
    for round in 0..3 {
        let lease = store.claimed(large(20).ttl(none)).await;
        store.commit(&lease, asks(&["a"])).await;
        store.answer(&lease, &[("a", &text(10))]).await;
        store.then(&lease, Next::Fail(text(1).into())).await;
        let token = format!("token {round}");
        store.spill(&token, vec![7; 20 * KIB], none).await;
        let key = LogKey::round(flow(), round);
        store.begin(&key, retention(1_000, 2_000)).await;
        store.finish(&key, &text(10)).await;
        assert_reached(store.0.create(large(20)).await, reached);
        let mut swept = (0, 0, 0);
        let sweep = async || {
            let counts = store.sweep(none, 100).await;
            let (tasks, records, tokens) = swept;
            swept = (
                tasks + counts.tasks,
                records + counts.records,
                tokens + counts.tokens,
            );
            (swept == (1, 1, 1)).then_some(())
        };
        until(sweep).await;
    }
    let all = store.claimed(large(60)).await;
    store.cancel(&all.task).await;
}

/// A store may forget accounts without data, but not while their data is written.
pub(super) async fn concurrent_sweeps_lose_no_usage(store: Subject) {
    fn new(kib: usize, number: usize) -> NewTask {
        large(kib).account(&format!("account {}", number % 2))
    }
    let write = async |store: Subject, number: usize| {
        for _ in 0..10 {
            let new = new(2, number).ttl(Duration::ZERO);
            let task = store.create(new).await;
            let cancelled = store.0.cancel(&task.id, &Principal::anonymous()).await;
            assert!(cancelled.expect("no error"));
            store.sweep(Duration::ZERO, 100).await;
        }
        store.create(new(20, number)).await;
    };
    store.concurrently(write).await;
    // The deleted tasks do not count, and the others all do: four of each account.
    let sweep = async || store.sweep(Duration::ZERO, 100).await.tasks;
    until(async || (sweep().await == 0).then_some(())).await;
    for number in 0..2 {
        let reached = store.limit_tasks(4);
        assert_reached(store.0.create(new(20, number)).await, reached);
        let reached = store.limit_kib(95);
        assert_reached(store.0.create(new(20, number)).await, reached);
        store.limit_kib(101);
        store.create(new(20, number)).await;
    }
}

/// A store may check the quota before it counts concurrent writes, so each of the eight workers may exceed it by one task.
pub(super) async fn concurrent_creations_exceed_the_quota_by_at_most_one_each(store: Subject) {
    store.limit_tasks(10);
    let create = async |store: Subject| {
        let mut created = 0;
        for _ in 0..20 {
            let task = NewTask { id: id(), ..new() };
            match store.0.create(task).await {
                Ok(Creation::New(..)) => created += 1,
                other => assert_reached(other, QuotaReached::Tasks(10)),
            }
        }
        created
    };
    let created: usize = store
        .concurrently(|store, _| create(store))
        .await
        .iter()
        .sum();
    assert!((10..=18).contains(&created), "{created}");
}
