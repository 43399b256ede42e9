//! Detaching, sleeping and retrying.

use crate::support::store::{Instance, Stop, Store, at_second, env, gate, pass, run, write_line};
use crate::support::{Book, NOON, Num, World, handler, handler_with, num};
use futures_util::future::{Either, join, select};
use refrain_core::{
    Error, ErrorKind, Event, FlowId, LogKey, MemoryReplayLog, ReplayLog, Retention, ok,
};
use serde_json::json;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

#[tokio::test]
async fn sleep_ends_on_time_on_any_instance() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        cx.sleep(Duration::from_secs(60)).await;
        cx.step("a", write_line(&book, "a")).await?;
        cx.sleep(Duration::from_secs(60)).await;
        cx.step("b", write_line(&book, "b")).await?;
        ok(1)
    });
    let wake = |stop: &Stop| match stop {
        Stop::Rests {
            wake,
            may_progress: false,
        } => *wake,
        other => panic!("expected rest, got {other:?}"),
    };
    assert_eq!(
        wake(&run(&world, &mut store, &handler).await),
        Some(at_second(60))
    );
    world.clock.advance(59);
    assert_eq!(
        wake(&run(&world, &mut store, &handler).await),
        Some(at_second(60))
    );
    world.clock.advance(11);
    let mut instance = Instance::new(&world, &store, &handler);
    let stop = instance.run(&mut store).await;
    assert_eq!(
        wake(&stop),
        Some(at_second(130)),
        "the second sleep began at 70"
    );
    assert_eq!(instance.flow.wake_at(), Some(at_second(130)));
    assert_eq!(book.lines(), ["a"]);
    // An instance whose clock is behind does not repeat a sleep.
    drop(instance);
    world.clock.set(NOON);
    assert_eq!(
        wake(&run(&world, &mut store, &handler).await),
        Some(at_second(130))
    );
    // An instance that kept it in memory continues at that time.
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.assert_at_rest();
    assert!(matches!(instance.run(&mut store).await, Stop::Waits));
    world.clock.advance(130);
    assert_eq!(instance.run(&mut store).await.out(), 1);
    assert_eq!(book.lines(), ["a", "b"]);
}

#[tokio::test]
async fn concurrent_sleeps_wake_at_the_first_end() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move {
        let sleep = async |seconds| {
            cx.sleep(Duration::from_secs(seconds)).await;
            cx.now()
        };
        let (long, short) = join(sleep(60), sleep(10)).await;
        ok(long.duration_since(short)?.as_secs())
    });
    for (at, wake) in [(0, 10), (10, 60)] {
        world.clock.set(NOON + at);
        let stop = run(&world, &mut store, &handler).await;
        let Stop::Rests {
            wake: Some(time), ..
        } = stop
        else {
            panic!("expected rest, got {stop:?}");
        };
        assert_eq!(time, at_second(wake));
    }
    world.clock.set(NOON + 61);
    assert_eq!(run(&world, &mut store, &handler).await.out(), 51);
}

#[tokio::test]
async fn repolled_sleep_is_not_written_again() {
    let (world, mut store) = (World::new(), Store::new());
    let (go, wait) = watch::channel(0);
    let handler = handler(move |cx| {
        let mut wait = wait.clone();
        async move {
            let ticks = async {
                for tick in 1..5 {
                    wait.wait_for(|now| *now >= tick).await.unwrap();
                }
                std::future::pending::<()>().await;
            };
            select(pin!(cx.sleep(Duration::from_secs(9))), pin!(ticks)).await;
            ok(1)
        }
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let first = instance.next_write(&mut store).await.unwrap();
    assert!(first.is_at_rest(), "{first:?}");
    for tick in 1..4 {
        go.send(tick).unwrap();
        assert_eq!(instance.next_write(&mut store).await, None);
    }
    world.clock.advance(9);
    assert_eq!(instance.run(&mut store).await.out(), 1);
}

#[tokio::test]
async fn race_of_sleep_and_ask_is_decided_by_the_first_write() {
    for answer_first in [true, false] {
        let (world, mut store) = (World::new(), Store::new());
        let handler = handler(|cx| async move {
            let slept = pin!(cx.sleep(Duration::from_secs(60)));
            let won = match select(slept, cx.elicit::<Num>("n", "?")).await {
                Either::Left(_) => -1,
                Either::Right((n, _)) => n?.v,
            };
            cx.elicit::<Num>("next", "?").await?;
            ok(won)
        });
        run(&world, &mut store, &handler).await.assert_at_rest();
        if answer_first {
            store.answer("n", &num(1));
        }
        world.clock.advance(61);
        let mut instance = Instance::new(&world, &store, &handler);
        instance.run(&mut store).await.assert_at_rest();
        assert_eq!(store.open_keys(), ["next"]);
        store.answer("next", &num(0));
        let expected = if answer_first { 1 } else { -1 };
        assert_eq!(run(&world, &mut store, &handler).await.out(), expected);
    }
}

#[tokio::test]
async fn retryable_step_ends_the_attempt_without_an_entry() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        cx.step("a", write_line(&book, "a")).await?;
        let tries = book.count("b");
        let work = async {
            book.write("b");
            if tries < 2 {
                Err(Error::retry("busy"))
            } else {
                ok(tries)
            }
        };
        let done = cx.step("b", work).await;
        book.write("after b");
        ok(done.map_or(99, |tries| tries))
    });
    for _ in 0..2 {
        let stop = run(&world, &mut store, &handler).await;
        assert!(matches!(stop.error().kind(), ErrorKind::Retry), "{stop:?}");
        assert_eq!(stop.error().to_string(), "busy");
        assert_eq!(store.snapshot().entry_count(), 1);
    }
    assert_eq!(run(&world, &mut store, &handler).await.out(), 2);
    assert_eq!(book.lines(), ["a", "b", "b", "b", "after b"]);
}

#[tokio::test]
async fn progress_before_a_retry_is_written_first() {
    for by_a_step in [true, false] {
        let (world, mut store, book) = (World::new(), Store::new(), Book::default());
        let handler = handler_with(book.clone(), |cx, book| async move {
            let first = book.count("tried") == 0;
            let other = async {
                book.write("tried");
                match first {
                    true => Err(Error::retry("busy")),
                    false => ok(1),
                }
            };
            let work = async {
                tokio::task::yield_now().await;
                write_line(&book, "done").await
            };
            let work = cx.step("done", work);
            if by_a_step {
                // Both complete in the same poll.
                let other = async {
                    tokio::task::yield_now().await;
                    other.await
                };
                let (done, other) = join(work, cx.step("other", other)).await;
                return ok(done? + other?);
            }
            // The dropped ask will be made again.
            let asked = pin!(cx.elicit::<Num>("n", "?"));
            let Either::Right((done, _)) = select(asked, pin!(work)).await else {
                panic!("the ask has no answer");
            };
            ok(done? + other.await?)
        });
        let stop = run(&world, &mut store, &handler).await;
        assert!(matches!(stop.error().kind(), ErrorKind::Retry), "{stop:?}");
        assert_eq!(run(&world, &mut store, &handler).await.out(), 5);
        assert_eq!(book.count("done"), 1, "{by_a_step}: {:?}", book.lines());
        assert_eq!(book.count("tried"), 2);
    }
}

#[tokio::test]
async fn progress_before_a_panic_is_written_first() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        let done = cx.step("done", write_line(&book, "done")).await?;
        book.write("tried");
        assert!(book.count("tried") > 1, "not yet");
        ok(done)
    });
    let stop = run(&world, &mut store, &handler).await;
    assert!(
        matches!(&stop, Stop::Panicked(why) if why == "not yet"),
        "{stop:?}"
    );
    assert_eq!(run(&world, &mut store, &handler).await.out(), 4);
    assert_eq!(book.lines(), ["done", "tried", "tried"]);
}

#[tokio::test]
async fn failed_attempt_keeps_its_asks_published() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let handler = handler_with((book.clone(), wait), |cx, (book, wait)| async move {
        let work = async {
            let done = cx.step("done", write_line(&book, "done")).await?;
            pass(&wait).await;
            cx.random();
            book.write("tried");
            match book.count("tried") {
                1 => Err(Error::retry("busy")),
                _ => ok(done),
            }
        };
        let ask = async { ok(cx.elicit::<Num>("n", "?").await?.v) };
        let (work, n) = futures_util::future::try_join(work, ask).await?;
        ok(work as i64 + n)
    });
    let mut instance = Instance::new(&world, &store, &handler);
    while store.open.is_empty() {
        instance.next_write(&mut store).await.unwrap();
    }
    go.send(true).unwrap();
    loop {
        match instance.run(&mut store).await {
            Stop::Rests { .. } => {}
            stop => {
                assert!(matches!(stop.error().kind(), ErrorKind::Retry), "{stop:?}");
                break;
            }
        }
    }
    assert_eq!(store.open_keys(), ["n"]);
    run(&world, &mut store, &handler).await.assert_at_rest();
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 5);
    assert_eq!(
        (store.all_keys(), &store.withdrawn[..]),
        (vec!["n"], &[][..])
    );
    assert_eq!(book.count("done"), 1);
}

#[tokio::test]
async fn once_is_not_retried() {
    let (mut world, mut store, book) = (World::new(), Store::new(), Book::default());
    world.replay_log = Some(Arc::new(MemoryReplayLog::default()));
    let handler = handler_with(book.clone(), |cx, book| async move {
        let work = async {
            book.write("tried");
            Err::<i64, _>(Error::retry("busy"))
        };
        let done = cx.once("o", work).await;
        ok(done.unwrap_or_else(|error| error.to_string().len() as i64))
    });
    assert_eq!(run(&world, &mut store, &handler).await.out(), 4);
    assert_eq!(book.lines(), ["tried"]);
}

/// A quota that is reached delays a task, and fails any other call.
#[tokio::test]
async fn once_over_a_quota_is_retried_by_a_task() {
    let (mut world, mut store, book) = (World::new(), Store::new(), Book::default());
    let log = MemoryReplayLog::with_capacity(2);
    world.replay_log = Some(Arc::new(log.clone()));
    let other = LogKey::round(FlowId::from_bytes([7; 16]), 0);
    let keep = Retention {
        now: 0,
        until: u64::MAX,
    };
    log.begin(&other, &world.principal, keep).await.unwrap();
    let handler = handler_with(book.clone(), |cx, book| async move {
        cx.once("o", write_line(&book, "done")).await
    });
    let reached = "this work was not started: the replay log has 1 records of this caller";
    let first = world.first(&handler).await;
    let error = first.error();
    assert!(matches!(error.kind(), ErrorKind::Failed), "{error:?}");
    assert!(error.to_string().starts_with(reached), "{error}");
    for _ in 0..2 {
        let stop = run(&world, &mut store, &handler).await;
        assert!(matches!(stop.error().kind(), ErrorKind::Retry), "{stop:?}");
        assert!(stop.error().to_string().starts_with(reached), "{stop:?}");
    }
    log.forget(&other).await.unwrap();
    assert_eq!(run(&world, &mut store, &handler).await.out(), 4);
    assert_eq!(book.lines(), ["done"]);
}

#[tokio::test]
async fn detach_keeps_the_running_handler() {
    let (world, book) = (World::new(), Book::default());
    let (go, wait) = gate();
    let handler = handler_with((book.clone(), wait), |cx, (book, wait)| async move {
        book.write(format!("begins as a task: {}", cx.is_task()));
        let n = cx.elicit::<Num>("n", "?").await?.v;
        let a = cx.step("a", write_line(&book, "a")).await?;
        let slow = async {
            book.write("slow begins");
            pass(&wait).await;
            ok(10)
        };
        let (slow, detached) = join(cx.step("slow", slow), cx.detach()).await;
        detached?;
        book.write("detached");
        let b = cx.step("b", write_line(&book, "b")).await?;
        let m = cx.elicit::<Num>("m", "?").await?.v;
        ok(n + m + slow? + (a + b) as i64)
    });
    let first = world.first(&handler).await;
    let sealer = world.sealer();
    let snapshot = sealer
        .open(&world.binding(&sealer), &first.token())
        .unwrap();
    let answers = json!({"n": num(100)}).to_string();
    let answers = serde_json::from_str(&answers).unwrap();
    let start = refrain_core::Start::resumed(snapshot, Some(&answers)).unwrap();
    let mut instance = Instance::with(env(&world), start, &handler);
    let event = instance.event().await;
    assert!(matches!(event, Some(Event::Detach)), "{event:?}");
    let detachment = instance.flow.detachment();
    let mut store = Store::of(detachment.snapshot());
    // An instance that resumes the task now repeats only the running work.
    let mut other = Instance::new(&world, &store, &handler);
    assert!(matches!(other.run(&mut store).await, Stop::Waits));
    drop(other);
    let begins = [
        "begins as a task: false",
        "begins as a task: false",
        "a",
        "slow begins",
    ];
    let other = ["begins as a task: true", "slow begins"];
    assert_eq!(book.lines(), [&begins[..], &other[..]].concat());

    instance.flow.become_task(&detachment, NOON + 1000);
    assert!(matches!(instance.run(&mut store).await, Stop::Waits));
    go.send(true).unwrap();
    instance.run(&mut store).await.assert_at_rest();
    assert_eq!(store.all_keys(), ["m"]);
    drop(instance);
    store.answer("m", &num(1000));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 1112);
    let end = ["detached", "b", "begins as a task: true", "detached"];
    assert_eq!(book.lines(), [&begins[..], &other[..], &end[..]].concat());
}

#[tokio::test]
async fn detach_without_task_support_does_nothing() {
    let world = World::new();
    let handler = handler(|cx| async move {
        cx.detach().await?;
        let n = cx.elicit::<Num>("n", "?").await?.v;
        ok((n, cx.is_task()))
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["n"]);
    let last = world.next(&handler, &first, &json!({"n": num(1)})).await;
    assert_eq!(last.out(), json!([1, false]));
}

#[tokio::test]
async fn rejected_detach_fails_with_the_reason() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let error = cx.detach().await.unwrap_err();
        ok((error.to_string(), cx.is_task()))
    });
    let mut instance = Instance::with(env(&world), world.start(), &handler);
    assert!(matches!(instance.event().await, Some(Event::Detach)));
    instance.flow.reject_detach("the store is full".into());
    let stop = instance.run(&mut Store::new()).await;
    assert_eq!(stop.out(), json!(["the store is full", false]));
}
