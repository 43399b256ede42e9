//! `once`, and the replay log.

use crate::support::{self, Book, Num, World, assert_fault, handler_with, num};
use futures_util::future::{Either, join_all, select};
use refrain_core::{
    LogError, LogFuture, LogKey, MemoryReplayLog, Principal, RecordState, ReplayLog, Retention, ok,
};
use serde_json::json;
use std::pin::pin;
use std::sync::Arc;

/// A handler with one `once` between two asks.
fn pay_once(book: &Book) -> impl Fn(refrain_core::Cx) -> refrain_core::HandlerFuture {
    handler_with(book.clone(), |cx, book| async move {
        cx.elicit::<Num>("a", "?").await?;
        let paid = cx.once("pay", async move {
            book.write("pay");
            tokio::task::yield_now().await;
            ok(book.count("pay"))
        });
        let paid = paid.await.map_err(|error| error.to_string());
        cx.elicit::<Num>("b", "?").await?;
        ok(format!("{paid:?}"))
    })
}

#[tokio::test]
async fn once_never_runs_twice() {
    let (mut world, book) = (World::new(), Book::default());
    let log = MemoryReplayLog::new();
    world.replay_log = Some(Arc::new(log.clone()));
    let handler = pay_once(&book);
    let token = world.first(&handler).await.token();
    let a = json!({"a": num(1)});
    let round = world.present(&handler, &token, &a).await;
    // A repeated token does not repeat the work.
    for _ in 0..3 {
        let again = world.present(&handler, &token, &a).await;
        let last = world.next(&handler, &again, &json!({"b": num(1)})).await;
        assert_eq!(last.out(), "Ok(1)");
    }
    assert_eq!(
        world
            .next(&handler, &round, &json!({"b": num(1)}))
            .await
            .out(),
        "Ok(1)"
    );
    assert_eq!(book.lines(), ["pay"]);
    assert_eq!(log.len(), 1);
}

#[tokio::test]
async fn interrupted_once_is_an_error_permanently() {
    let (mut world, book) = (World::new(), Book::default());
    world.replay_log = Some(Arc::new(MemoryReplayLog::new()));
    let handler = pay_once(&book);
    let token = world.first(&handler).await.token();
    let a = json!({"a": num(1)});
    // Crash at every point between the start and the end of the work.
    let mut polls = 0;
    while book.lines().is_empty() {
        let round = world.request(&handler, Some(&token), &a, Some(polls)).await;
        assert!(
            matches!(round.end, support::RoundEnd::Crashed),
            "{:?}",
            round.end
        );
        polls += 1;
    }
    for _ in 0..2 {
        let round = world.present(&handler, &token, &a).await;
        let last = world.next(&handler, &round, &json!({"b": num(1)})).await;
        let out = last.out();
        assert!(out.as_str().unwrap().contains("interrupted"), "{out}");
    }
    assert_eq!(book.lines(), ["pay"]);
}

/// A log that deletes a record at once, and reports it later.
struct SlowForget(MemoryReplayLog);

impl ReplayLog for SlowForget {
    fn begin<'a>(
        &'a self,
        key: &'a LogKey,
        account: &'a Principal,
        retention: Retention,
    ) -> LogFuture<'a, RecordState> {
        self.0.begin(key, account, retention)
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        self.0.finish(key, value)
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        let forgotten = self.0.forget(key);
        Box::pin(async move {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            forgotten.await
        })
    }
}

#[tokio::test]
async fn once_without_call_id_does_not_run_again_after_it_is_dropped() {
    let (mut world, book) = (World::new(), Book::default());
    world.has_call_id = false;
    world.replay_log = Some(Arc::new(SlowForget(MemoryReplayLog::new())));
    let handler = handler_with(book.clone(), |cx, book| async move {
        let paid = pin!(cx.once("pay", async move {
            book.write("pay");
            ok(book.count("pay"))
        }));
        let paid = match select(paid, pin!(tokio::task::yield_now())).await {
            Either::Left((paid, _)) => format!("{:?}", paid.map_err(|error| error.to_string())),
            Either::Right(_) => "dropped".to_owned(),
        };
        cx.elicit::<Num>("a", "?").await?;
        ok(paid)
    });
    let token = world.first(&handler).await.token();
    for _ in 0..2 {
        let last = world.present(&handler, &token, &json!({"a": num(1)})).await;
        assert_eq!(last.out(), "Ok(1)");
    }
    assert_eq!(book.lines(), ["pay"]);
}

#[tokio::test]
async fn concurrent_once_runs_on_one_instance() {
    let (mut world, book) = (World::new(), Book::default());
    world.replay_log = Some(Arc::new(MemoryReplayLog::new()));
    let handler = pay_once(&book);
    let token = world.first(&handler).await.token();
    let a = json!({"a": num(1)});
    join_all((0..4).map(|_| world.present(&handler, &token, &a))).await;
    assert_eq!(book.lines(), ["pay"]);
}

#[tokio::test]
async fn once_without_log_capacity_does_not_run() {
    let (mut world, book) = (World::new(), Book::default());
    let handler = pay_once(&book);
    let token = world.first(&handler).await.token();
    let a = json!({"a": num(1)});
    let round = world.present(&handler, &token, &a).await;
    assert_fault(&round, &["replay log"]);
    world.replay_log = Some(Arc::new(MemoryReplayLog::with_capacity(0)));
    let round = world.present(&handler, &token, &a).await;
    let last = world.next(&handler, &round, &json!({"b": num(1)})).await;
    assert!(
        last.out()
            .as_str()
            .unwrap()
            .contains("replay log unavailable"),
        "{}",
        last.out()
    );
    assert_eq!(book.lines(), [""; 0]);
}

#[tokio::test]
async fn large_outcomes_leave_memory_for_small_ones() {
    let log = MemoryReplayLog::new();
    let flow = refrain_core::FlowId::from_bytes([7; 16]);
    let keep = Retention { now: 1, until: 2 };
    let large = "x".repeat(8 << 20);
    let mut kept = 0;
    for round in 0..64 {
        let key = LogKey::round(flow, round);
        // One account may use half of the memory only.
        let account = Principal::new(format!("account {round}"));
        log.begin(&key, &account, keep).await.unwrap();
        match log.finish(&key, &large).await {
            Ok(()) => kept += 1,
            Err(error) => assert!(matches!(error, LogError::NoMemory { .. }), "{error}"),
        }
    }
    assert_eq!(
        kept, 49,
        "the 49 leave less than 16 times the size of another"
    );
    let small = LogKey::round(flow, 64);
    let account = Principal::anonymous();
    log.begin(&small, &account, keep).await.unwrap();
    log.finish(&small, "done").await.unwrap();
    let last = LogKey::round(flow, 63);
    let begun = log.begin(&last, &account, keep).await.unwrap();
    assert_eq!(begun, RecordState::Begun, "it is not repeated");
    // Deleted records free their memory.
    assert_eq!(log.sweep(3, 1000), 65);
    log.begin(&last, &account, keep).await.unwrap();
    log.finish(&last, &large).await.unwrap();
}

#[tokio::test]
async fn account_uses_at_most_half_of_the_memory() {
    let log = MemoryReplayLog::new();
    let flow = refrain_core::FlowId::from_bytes([7; 16]);
    let (alice, bob) = (Principal::new("alice"), Principal::new("bob"));
    let large = "x".repeat(8 << 20);
    let begin = async |round, account: &Principal| {
        let keep = Retention { now: 1, until: 2 };
        let key = LogKey::round(flow, round);
        log.begin(&key, account, keep).await
    };
    for round in 0..32 {
        assert_eq!(begin(round, &alice).await.unwrap(), RecordState::Fresh);
        log.finish(&LogKey::round(flow, round), &large)
            .await
            .unwrap();
    }
    let rejected = begin(32, &alice).await.unwrap_err();
    assert!(matches!(rejected, LogError::Quota(_)), "{rejected}");
    assert_eq!(begin(32, &bob).await.unwrap(), RecordState::Fresh);
    let recorded = begin(0, &alice).await.unwrap();
    assert_eq!(recorded, RecordState::Done(large));
    log.forget(&LogKey::round(flow, 0)).await.unwrap();
    assert_eq!(begin(0, &alice).await.unwrap(), RecordState::Fresh);
    assert_eq!(log.sweep(3, 1000), 33);
    assert_eq!(log.usage(&alice), (0, 0));
}

#[tokio::test]
async fn account_uses_at_most_half_of_the_records() {
    let log = MemoryReplayLog::with_capacity(4);
    let flow = refrain_core::FlowId::from_bytes([7; 16]);
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(Principal::new);
    let begin = async |round, account: &Principal| {
        let keep = Retention { now: 1, until: 2 };
        let key = LogKey::round(flow, round);
        log.begin(&key, account, keep).await
    };
    for round in 0..2 {
        assert_eq!(begin(round, &alice).await.unwrap(), RecordState::Fresh);
    }
    let rejected = begin(2, &alice).await.unwrap_err();
    assert!(matches!(rejected, LogError::Quota(_)), "{rejected}");
    assert_eq!(begin(2, &bob).await.unwrap(), RecordState::Fresh);
    // Records that exist need no room, and a deleted one leaves room for another.
    assert_eq!(begin(0, &alice).await.unwrap(), RecordState::Begun);
    log.forget(&LogKey::round(flow, 0)).await.unwrap();
    assert_eq!(begin(3, &alice).await.unwrap(), RecordState::Fresh);
    assert_eq!(begin(4, &carol).await.unwrap(), RecordState::Fresh);
    let dave = begin(5, &Principal::new("dave")).await.unwrap_err();
    assert!(matches!(dave, LogError::Full { capacity: 4 }), "{dave}");
}

#[tokio::test]
async fn scopes_and_names_with_slashes_are_distinct() {
    let (mut world, book) = (World::new(), Book::default());
    world.replay_log = Some(Arc::new(MemoryReplayLog::new()));
    let handler = handler_with(book.clone(), |cx, book| async move {
        let (outer, inner) = (cx.scope("a"), cx.scope("a").scope("b"));
        let empty = cx.scope("");
        let names = [(&outer, "b/c"), (&inner, "c"), (&cx, "a/b/c")];
        for (cx, name) in names.into_iter().chain([(&empty, "a/b/c")]) {
            let book = book.clone();
            cx.step_with_key(name, |key| async move {
                book.write(key);
                ok(())
            })
            .await?;
        }
        let one = outer.once("b/c", async { ok(1) }).await?;
        let two = inner.once("c", async { ok(2) }).await?;
        let three = cx.once("c", async { ok(3) }).await?;
        let four = empty.once("c", async { ok(4) }).await?;
        ok((one, two, three, four))
    });
    assert_eq!(world.first(&handler).await.out(), json!([1, 2, 3, 4]));
    let mut keys = book.lines();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 4);
}

#[tokio::test]
async fn replay_log_deletes_only_expired_records() {
    let log = MemoryReplayLog::new();
    let flow = refrain_core::FlowId::from_bytes([7; 16]);
    let key = |round| LogKey::round(flow, round);
    let begin = async |round, now, until| {
        let keep = Retention { now, until };
        let account = Principal::anonymous();
        log.begin(&key(round), &account, keep).await.unwrap()
    };
    let fresh = RecordState::Fresh;
    let begun = RecordState::Begun;
    assert_eq!(begin(1, 100, 1000).await, fresh);
    assert_eq!(begin(2, 100, 2000).await, fresh);
    assert_eq!(begin(1, 1000, 9000).await, begun, "kept to the last second");
    assert_eq!(begin(1, 1001, 9000).await, fresh, "its time is over");
    assert_eq!(begin(2, 1001, 9000).await, begun);
    log.finish(&key(2), "done").await.unwrap();
    let done = RecordState::Done("done".into());
    assert_eq!(begin(2, 1001, 9000).await, done);
    assert_eq!(log.len(), 2);
    // Finishing a deleted record creates none.
    assert_eq!(begin(3, 20_000, 30_000).await, fresh);
    log.finish(&key(2), "late").await.unwrap();
    assert_eq!(log.len(), 1);
}
