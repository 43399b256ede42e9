//! Flows whose home is a store: what is written when, which asks are published under which keys, and when they rest.

#![allow(clippy::unwrap_used)]

#[path = "support/store.rs"]
mod store;
mod support;

use futures_util::future::{Either, join, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use refrain_core::{
    AskError, Cx, Error, ErrorKind, Event, MemoryReplayLog, Outcome, Result, Then, ok,
};
use serde_json::json;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;
use std::time::{Duration, UNIX_EPOCH};
use store::{Instance, Stop, Store, env, run};
use support::{Book, NOON, Num, Switch, World, handler, num};
use tokio::sync::watch;

/// Work that writes a line and gives its length.
async fn noted(book: &Book, line: &str) -> Result<usize> {
    book.write(line);
    ok(line.len())
}

/// A gate that work can wait at.
fn gate() -> (watch::Sender<bool>, watch::Receiver<bool>) {
    watch::channel(false)
}

async fn pass(gate: &watch::Receiver<bool>) {
    gate.clone().wait_for(|open| *open).await.unwrap();
}

fn second(after: u64) -> std::time::SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOON + after)
}

#[tokio::test]
async fn what_was_seen_is_written_before_a_step_starts() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let keep = book.clone();
    let handler = handler(move |cx| {
        let book = keep.clone();
        async move {
            let a = cx.step("a", noted(&book, "a")).await?;
            let drawn = cx.random();
            let b = cx.step("b", noted(&book, "b")).await?;
            cx.elicit::<Num>("n", "?").await?;
            let c = cx.step("c", noted(&book, "c")).await?;
            ok((a + b + c, drawn > 0))
        }
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let first = instance.next_write(&mut store).await.unwrap();
    assert_eq!((first.entries, first.then), (2, Then::GoOn));
    assert_eq!(book.lines(), ["a"]);
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!((second.entries, &second.asks[..]), (3, &["n".into()][..]));
    assert!(second.rests());
    assert_eq!(book.lines(), ["a", "b"]);
    instance.answer(&mut store, "n", &num(1));
    let third = instance.next_write(&mut store).await.unwrap();
    assert_eq!((third.entries, third.then), (4, Then::GoOn));
    assert_eq!(third.taken, ["n"]);
    assert_eq!(book.lines(), ["a", "b"], "its answer was not written yet");
    assert_eq!(instance.run(&mut store).await.out(), json!([3, true]));
    assert_eq!(book.lines(), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_first_step_needs_no_write() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move { ok(cx.step("a", async { ok(1) }).await? + 1) });
    let mut instance = Instance::new(&world, &store, &handler);
    assert_eq!(instance.run(&mut store).await.out(), 2);
    assert_eq!(instance.writes, []);
}

#[tokio::test]
async fn a_step_of_another_task_does_not_start_while_a_write_is_under_way() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let keep = book.clone();
    let handler = handler(move |cx| {
        let (book, wait) = (keep.clone(), wait.clone());
        async move {
            let mut tasks = tokio::task::JoinSet::new();
            let spawned = cx.clone();
            tasks.spawn(async move {
                pass(&wait).await;
                spawned.step("s", noted(&book, "s")).await
            });
            cx.checkpoint("c", &1).await?;
            ok(tasks.join_next().await.unwrap()??)
        }
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let Some(Event::Write(write)) = instance.event().await else {
        panic!("a checkpoint is written");
    };
    go.send(true).unwrap();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(book.lines(), [""; 0]);
    instance.write(&mut store, &write);
    assert_eq!(instance.run(&mut store).await.out(), 1);
}

/// An ask beside a step that waits at the gate.
fn ask_beside_a_step(
    book: &Book,
    wait: &watch::Receiver<bool>,
) -> impl Fn(Cx) -> refrain_core::HandlerFuture + use<> {
    let (book, wait) = (book.clone(), wait.clone());
    handler(move |cx| {
        let (book, wait) = (book.clone(), wait.clone());
        async move {
            let slow = async {
                book.write("slow begins");
                pass(&wait).await;
                ok(10)
            };
            let asked = async {
                let n = cx.elicit::<Num>("n", "?").await?.v;
                ok(n + cx.step("after", noted(&book, "after")).await? as i64)
            };
            let (slow, asked) = join(cx.step("slow", slow), asked).await;
            ok(slow? + asked?)
        }
    })
}

#[tokio::test]
async fn an_ask_is_published_while_other_branches_work_and_rest_waits_for_their_steps() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let handler = ask_beside_a_step(&book, &wait);
    let mut instance = Instance::new(&world, &store, &handler);
    let first = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&first.asks[..], first.then),
        (&["n".into()][..], Then::GoOn)
    );
    assert_eq!(instance.next_write(&mut store).await, None, "a step runs");
    go.send(true).unwrap();
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!((second.asks.len(), second.entries), (0, 1));
    let rest = Then::Rest {
        wake: None,
        perhaps_more: false,
    };
    assert_eq!(second.then, rest);
    assert_eq!(instance.next_write(&mut store).await, None, "it said so");
    drop(instance);
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 16);
    assert_eq!(book.lines(), ["slow begins", "after"]);
    assert_eq!(store.all_keys(), ["n"]);
}

#[tokio::test]
async fn an_answer_is_taken_in_while_a_step_runs() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let handler = ask_beside_a_step(&book, &wait);
    let mut instance = Instance::new(&world, &store, &handler);
    instance.next_write(&mut store).await.unwrap();
    instance.answer(&mut store, "n", &num(1));
    // A second answer, and one to nothing that is asked, change nothing.
    instance.flow.answer("n", &num(500).to_string());
    instance.flow.answer("slow", &num(500).to_string());
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&second.taken[..], second.then),
        (&["n".into()][..], Then::GoOn)
    );
    let third = instance.next_write(&mut store).await.unwrap();
    assert_eq!((third.entries, third.then), (2, Then::GoOn));
    assert_eq!(book.lines(), ["slow begins", "after"], "slow still runs");
    go.send(true).unwrap();
    assert_eq!(instance.run(&mut store).await.out(), 16);
}

#[tokio::test]
async fn an_answer_that_comes_before_its_publishing_is_confirmed_is_not_lost() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move {
        let (n, m) = join(cx.elicit::<Num>("n", "?"), cx.elicit::<Num>("m", "?")).await;
        let last = cx.elicit::<Num>("last", "?").await?.v;
        ok(n?.v * 100 + m?.v * 10 + last)
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let Some(Event::Write(write)) = instance.event().await else {
        panic!("the asks are published");
    };
    store.commit(&write).unwrap();
    instance.answer(&mut store, "n", &num(1));
    instance.flow.written();
    instance.answer(&mut store, "m", &num(2));
    let Some(Event::Write(write)) = instance.event().await else {
        panic!("the answers are written");
    };
    assert_eq!(write.taken, ["n", "m"]);
    assert_eq!(write.withdrawn, [""; 0]);
    store.commit(&write).unwrap();
    store.answer("last", &num(3));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 123);
}

#[tokio::test]
async fn a_computation_whose_checkpoint_is_being_written_does_not_rest() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move {
        let count = async {
            for n in cx.resume("n")?.unwrap_or(0)..5 {
                cx.checkpoint("n", &(n + 1)).await?;
            }
            ok(cx.resume::<i64>("n")?)
        };
        let (count, asked) = join(count, cx.elicit::<Num>("n", "?")).await;
        ok(count?.unwrap_or(0) + asked?.v)
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let first = instance.next_write(&mut store).await.unwrap();
    assert_eq!(first.then, Then::GoOn, "it is in the middle of its work");
    instance.run(&mut store).await.is_at_rest();
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 6);
}

#[tokio::test]
async fn a_foreign_await_may_be_more_and_its_end_is_told() {
    let (world, mut store) = (World::new(), Store::new());
    let (go, wait) = gate();
    let handler = handler(move |cx| {
        let wait = wait.clone();
        async move {
            let (n, ()) = join(cx.elicit::<Num>("n", "?"), pass(&wait)).await;
            ok(n?.v)
        }
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let rest = |perhaps_more| Then::Rest {
        wake: None,
        perhaps_more,
    };
    let first = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&first.asks[..], first.then),
        (&["n".into()][..], rest(true))
    );
    assert_eq!(instance.next_write(&mut store).await, None);
    go.send(true).unwrap();
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!(second.then, rest(false));
    instance.answer(&mut store, "n", &num(4));
    assert_eq!(instance.run(&mut store).await.out(), 4);
}

#[tokio::test]
async fn a_refused_answer_is_asked_again_under_a_new_key_with_the_reason() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move { ok(cx.elicit::<Num>("n", "How many?").await?.v) });
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.is_at_rest();
    // Once while it is in memory, and once while it is not.
    instance.answer(&mut store, "n", &num(-1));
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&second.taken[..], &second.asks[..]),
        (&["n".into()][..], &["n.2".into()][..])
    );
    assert_eq!(second.entries, 0, "what was refused is not in the journal");
    assert!(second.rests());
    drop(instance);
    assert!(
        store.message("n.2").contains("not accepted"),
        "{}",
        store.message("n.2")
    );
    store.answer("n.2", &num(2000));
    run(&world, &mut store, &handler).await.is_at_rest();
    assert_eq!(store.open_keys(), ["n.3"]);
    store.answer("n.3", &num(7));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 7);
    assert_eq!(store.all_keys(), ["n", "n.2", "n.3"]);
}

#[tokio::test]
async fn answers_that_are_refused_are_counted_across_runs() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move { ok(cx.elicit::<Num>("n", "?").await?.v) });
    for key in ["n", "n.2", "n.3", "n.4"] {
        run(&world, &mut store, &handler).await.is_at_rest();
        assert_eq!(store.open_keys(), [key]);
        store.answer(key, &num(-1));
    }
    let stop = run(&world, &mut store, &handler).await;
    let error = stop.error().as_ask();
    assert!(matches!(error, Some(AskError::Invalid { .. })), "{stop:?}");
}

#[tokio::test]
async fn an_answer_that_is_none_is_asked_again_under_a_new_key() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move { ok(cx.elicit::<Num>("n", "?").await?.v) });
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.is_at_rest();
    instance.answer(&mut store, "n", &json!([1]));
    instance.run(&mut store).await.is_at_rest();
    assert_eq!(store.open_keys(), ["n.2"]);
    store.answer("n.2", &json!("no"));
    run(&world, &mut store, &handler).await.is_at_rest();
    assert_eq!(store.open_keys(), ["n.3"]);
    assert!(store.answers.is_empty());
}

#[tokio::test]
async fn an_ask_that_a_replay_makes_again_keeps_its_key() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move {
        let scope = cx.scope("s");
        let loops = async {
            let mut sum = 0;
            for _ in 0..3 {
                sum += cx.elicit::<Num>("item", "?").await?.v;
            }
            ok(sum)
        };
        let (sum, other) = join(loops, scope.elicit::<Num>("item", "?")).await;
        ok(sum? + other?.v)
    });
    run(&world, &mut store, &handler).await.is_at_rest();
    assert_eq!(store.open_keys(), ["item", "s/item"]);
    for key in ["item", "item#2"] {
        assert!(store.answer(key, &num(1)));
        run(&world, &mut store, &handler).await.is_at_rest();
        // Without news nothing is asked or withdrawn.
        let mut again = Instance::new(&world, &store, &handler);
        again.run(&mut store).await.is_at_rest();
        let last = &again.writes[0];
        assert!(
            last.asks.is_empty() && last.withdrawn.is_empty(),
            "{last:?}"
        );
    }
    assert!(store.answer("item#3", &num(1)) && store.answer("s/item", &num(10)));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 13);
    assert_eq!(store.all_keys(), ["s/item", "item", "item#2", "item#3"]);
    assert_eq!(store.withdrawn, [""; 0]);
}

#[tokio::test]
async fn an_ask_that_is_dropped_is_withdrawn() {
    let (world, mut store) = (World::new(), Store::new());
    let (go, wait) = gate();
    let handler = handler(move |cx| {
        let wait = wait.clone();
        async move {
            let work = async {
                pass(&wait).await;
                ok(5)
            };
            let step = pin!(cx.step("s", work));
            let won = match select(cx.elicit::<Num>("stop", "?"), step).await {
                Either::Left((stop, _)) => stop?.v,
                Either::Right((done, _)) => done?,
            };
            ok(won + cx.elicit::<Num>("n", "?").await?.v)
        }
    });
    let mut instance = Instance::new(&world, &store, &handler);
    instance.next_write(&mut store).await.unwrap();
    assert_eq!(store.open_keys(), ["stop"]);
    go.send(true).unwrap();
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&second.withdrawn[..], &second.asks[..]),
        (&["stop".into()][..], &["n".into()][..])
    );
    // What nobody asks any more is not taken in.
    instance.flow.answer("stop", &num(9).to_string());
    instance.answer(&mut store, "n", &num(1));
    assert_eq!(instance.run(&mut store).await.out(), 6);
}

#[tokio::test]
async fn an_ask_is_withdrawn_while_other_work_goes_on() {
    for replayed in [false, true] {
        let (world, mut store) = (World::new(), Store::new());
        let (first, wait) = gate();
        let (_second, wait_more) = gate();
        let handler = handler(move |cx| {
            let (wait, wait_more) = (wait.clone(), wait_more.clone());
            async move {
                let ask = cx.elicit::<Num>("n", "?");
                // Nothing else changes when it is dropped.
                select(ask, pin!(pass(&wait))).await;
                pass(&wait_more).await;
                ok(1)
            }
        });
        let mut instance = Instance::new(&world, &store, &handler);
        instance.next_write(&mut store).await.unwrap();
        if replayed {
            instance = Instance::new(&world, &store, &handler);
            instance.next_write(&mut store).await.unwrap();
        }
        first.send(true).unwrap();
        let write = instance.next_write(&mut store).await.unwrap();
        assert_eq!(
            (&write.withdrawn[..], write.then),
            (&["n".into()][..], Then::GoOn)
        );
        assert_eq!(store.all_keys(), ["n"]);
    }
}

#[tokio::test]
async fn asks_that_lose_again_in_every_replay_use_up_no_keys() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move {
        let step = pin!(cx.step("s", async { ok(5) }));
        let ask = cx.elicit::<Num>("n", "?");
        let Either::Right((first, ask)) = select(ask, step).await else {
            panic!("nobody answers");
        };
        drop(ask);
        // The same name, and a key that was seen before.
        ok(first? + cx.elicit::<Num>("n", "?").await?.v)
    });
    run(&world, &mut store, &handler).await.is_at_rest();
    let keys: Vec<String> = store.open.keys().cloned().collect();
    let size = store::encode(&store.snapshot()).len();
    for _ in 0..5 {
        run(&world, &mut store, &handler).await.is_at_rest();
        assert_eq!(store::encode(&store.snapshot()).len(), size);
    }
    assert_eq!(store.open_keys(), keys);
    store.answer(&keys[0], &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 6);
}

#[tokio::test]
async fn what_only_an_earlier_run_asked_is_withdrawn_at_rest_and_not_before() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let asks = |names: &'static [&'static str], book: &Book| {
        let book = book.clone();
        handler(move |cx| {
            let book = book.clone();
            async move {
                cx.step("a", noted(&book, "a")).await?;
                cx.step("b", noted(&book, "b")).await?;
                join_all(names.iter().map(|name| cx.elicit::<Num>(*name, "?"))).await;
                ok(1)
            }
        })
    };
    let mut earlier = Instance::new(&world, &store, &asks(&["m", "n"], &book));
    earlier.run(&mut store).await.is_at_rest();
    // The later version does one thing more.
    let later = handler(|cx| async move {
        cx.step("c", async { ok(1) }).await?;
        cx.step("d", async { ok(1) }).await?;
        ok(cx.elicit::<Num>("n", "?").await?.v)
    });
    let mut instance = Instance::new(&world, &store, &later);
    let first = instance.next_write(&mut store).await.unwrap();
    assert_eq!((&first.withdrawn[..], first.then), (&[][..], Then::GoOn));
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&second.withdrawn[..], second.asks.len()),
        (&["m".into()][..], 0)
    );
    assert!(second.rests());
    assert_eq!(store.open_keys(), ["n"]);
}

/// Asks `n`, and `m` behind a gate.
fn behind_a_gate(
    wait: &watch::Receiver<bool>,
) -> impl Fn(Cx) -> refrain_core::HandlerFuture + use<> {
    let wait = wait.clone();
    handler(move |cx| {
        let wait = wait.clone();
        async move {
            let behind = async {
                pass(&wait).await;
                ok(cx.elicit::<Num>("m", "?").await?.v)
            };
            let first = async {
                let n = cx.elicit::<Num>("n", "?").await?.v;
                ok(n + cx.elicit::<Num>("o", "?").await?.v)
            };
            let (first, behind) = join(first, behind).await;
            ok(first? * 10 + behind?)
        }
    })
}

#[tokio::test]
async fn an_ask_behind_a_foreign_await_keeps_its_key() {
    let (world, mut store) = (World::new(), Store::new());
    let (go, wait) = gate();
    let handler = behind_a_gate(&wait);
    go.send(true).unwrap();
    run(&world, &mut store, &handler).await.is_at_rest();
    assert_eq!(store.open_keys(), ["m", "n"]);
    go.send(false).unwrap();
    store.answer("n", &num(1));
    let mut instance = Instance::new(&world, &store, &handler);
    let stop = instance.run(&mut store).await;
    assert!(
        matches!(
            stop,
            Stop::Rests {
                perhaps_more: true,
                ..
            }
        ),
        "{stop:?}"
    );
    assert_eq!(store.open_keys(), ["m", "o"], "m may be asked again");
    go.send(true).unwrap();
    instance.run(&mut store).await.is_at_rest();
    instance.answer(&mut store, "m", &num(2));
    instance.answer(&mut store, "o", &num(3));
    assert_eq!(instance.run(&mut store).await.out(), 42);
    assert_eq!(store.all_keys(), ["n", "m", "o"]);
}

#[tokio::test]
async fn a_task_set_down_while_it_waits_for_something_of_its_own_rests() {
    let (world, mut store) = (World::new(), Store::new());
    let (_go, wait) = gate();
    let handler = behind_a_gate(&wait);
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await;
    let write = instance.flow.set_down();
    let rest = Then::Rest {
        wake: None,
        perhaps_more: false,
    };
    assert_eq!(write.then, rest);
    store.commit(&write).unwrap();
    assert_eq!(store.open_keys(), ["n"]);
}

#[tokio::test]
async fn a_task_set_down_in_the_middle_of_its_work_is_handed_on_with_its_asks() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let handler = ask_beside_a_step(&book, &wait);
    let mut instance = Instance::new(&world, &store, &handler);
    instance.next_write(&mut store).await.unwrap();
    assert_eq!(instance.next_write(&mut store).await, None);
    let write = instance.flow.set_down();
    assert_eq!(write.then, Then::HandOn, "its step is to be done elsewhere");
    store.commit(&write).unwrap();
    // Not even polled: what it asked stays.
    let mut instance = Instance::new(&world, &store, &handler);
    let write = instance.flow.set_down();
    assert_eq!((&write.withdrawn[..], write.then), (&[][..], Then::HandOn));
    store.commit(&write).unwrap();
    go.send(true).unwrap();
    run(&world, &mut store, &handler).await.is_at_rest();
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 16);
    assert_eq!(store.all_keys(), ["n"]);
}

#[tokio::test]
async fn a_task_that_took_up_work_after_it_rested_is_handed_on_when_it_is_set_down() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let (_never, still) = gate();
    let keep = book.clone();
    let handler = handler(move |cx| {
        let (book, wait, still) = (keep.clone(), wait.clone(), still.clone());
        async move {
            let work = async {
                pass(&wait).await;
                let step = async {
                    book.write("begun");
                    pass(&still).await;
                    ok(1)
                };
                cx.step("s", step).await
            };
            let (n, work) = join(cx.elicit::<Num>("n", "?"), work).await;
            ok(n?.v + work?)
        }
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let stop = instance.run(&mut store).await;
    assert!(matches!(stop, Stop::Rests { .. }), "{stop:?}");
    go.send(true).unwrap();
    assert!(matches!(instance.run(&mut store).await, Stop::Waits));
    assert_eq!(book.lines(), ["begun"]);
    assert_eq!(instance.flow.set_down().then, Then::HandOn);
}

#[tokio::test]
async fn answers_enter_in_the_order_they_were_asked_and_strange_ones_not_at_all() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move {
        let (n, m) = (cx.elicit::<Num>("n", "?"), cx.elicit::<Num>("m", "?"));
        Ok(match select(m, n).await {
            Either::Left((m, _)) => format!("m {}", m?.v),
            Either::Right((n, _)) => format!("n {}", n?.v),
        })
    });
    run(&world, &mut store, &handler).await.is_at_rest();
    assert_eq!(store.all_keys(), ["n", "m"]);
    store.answer("m", &num(1));
    store.answer("n", &num(2));
    store.answers.push(("n".into(), num(3).to_string()));
    store
        .answers
        .insert(0, ("strange".into(), num(4).to_string()));
    assert_eq!(run(&world, &mut store, &handler).await.out(), "n 2");
}

#[tokio::test]
async fn a_sleep_ends_when_it_was_to_end_wherever_the_task_is() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let keep = book.clone();
    let handler = handler(move |cx| {
        let book = keep.clone();
        async move {
            cx.sleep(Duration::from_secs(60)).await;
            cx.step("a", noted(&book, "a")).await?;
            cx.sleep(Duration::from_secs(60)).await;
            cx.step("b", noted(&book, "b")).await?;
            ok(1)
        }
    });
    let wake = |stop: &Stop| match stop {
        Stop::Rests {
            wake,
            perhaps_more: false,
        } => *wake,
        other => panic!("expected rest, got {other:?}"),
    };
    assert_eq!(
        wake(&run(&world, &mut store, &handler).await),
        Some(second(60))
    );
    world.clock.advance(59);
    assert_eq!(
        wake(&run(&world, &mut store, &handler).await),
        Some(second(60))
    );
    world.clock.advance(11);
    let mut instance = Instance::new(&world, &store, &handler);
    let stop = instance.run(&mut store).await;
    assert_eq!(
        wake(&stop),
        Some(second(130)),
        "the second sleep began at 70"
    );
    assert_eq!(instance.flow.wake_at(), Some(second(130)));
    assert_eq!(book.lines(), ["a"]);
    // An instance whose clock is behind does not sleep again what was slept.
    drop(instance);
    world.clock.set(NOON);
    assert_eq!(
        wake(&run(&world, &mut store, &handler).await),
        Some(second(130))
    );
    // One that kept it in memory goes on when the time has come.
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.is_at_rest();
    assert!(matches!(instance.run(&mut store).await, Stop::Waits));
    world.clock.advance(130);
    assert_eq!(instance.run(&mut store).await.out(), 1);
    assert_eq!(book.lines(), ["a", "b"]);
}

#[tokio::test]
async fn a_task_that_sleeps_twice_at_once_wakes_for_the_first() {
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
        assert_eq!(time, second(wake));
    }
    world.clock.set(NOON + 61);
    assert_eq!(run(&world, &mut store, &handler).await.out(), 51);
}

#[tokio::test]
async fn a_sleep_that_is_polled_again_is_not_written_again() {
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
    assert!(first.rests(), "{first:?}");
    for tick in 1..4 {
        go.send(tick).unwrap();
        assert_eq!(instance.next_write(&mut store).await, None);
    }
    world.clock.advance(9);
    assert_eq!(instance.run(&mut store).await.out(), 1);
}

#[tokio::test]
async fn a_sleep_and_an_ask_race_by_what_is_written_first() {
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
        run(&world, &mut store, &handler).await.is_at_rest();
        if answer_first {
            store.answer("n", &num(1));
        }
        world.clock.advance(61);
        let mut instance = Instance::new(&world, &store, &handler);
        instance.run(&mut store).await.is_at_rest();
        assert_eq!(store.open_keys(), ["next"]);
        store.answer("next", &num(0));
        let expected = if answer_first { 1 } else { -1 };
        assert_eq!(run(&world, &mut store, &handler).await.out(), expected);
    }
}

#[tokio::test]
async fn a_step_to_be_retried_ends_the_attempt_and_is_not_journaled() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let keep = book.clone();
    let handler = handler(move |cx| {
        let book = keep.clone();
        async move {
            cx.step("a", noted(&book, "a")).await?;
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
        }
    });
    for _ in 0..2 {
        let stop = run(&world, &mut store, &handler).await;
        assert!(matches!(stop.error().kind(), ErrorKind::Retry), "{stop:?}");
        assert_eq!(stop.error().to_string(), "busy");
        assert_eq!(store.snapshot().len(), 1);
    }
    assert_eq!(run(&world, &mut store, &handler).await.out(), 2);
    assert_eq!(book.lines(), ["a", "b", "b", "b", "after b"]);
}

#[tokio::test]
async fn what_was_done_before_a_retry_is_written_first() {
    for by_a_step in [true, false] {
        let (world, mut store, book) = (World::new(), Store::new(), Book::default());
        let keep = book.clone();
        let handler = handler(move |cx| {
            let book = keep.clone();
            async move {
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
                    noted(&book, "done").await
                };
                let work = cx.step("done", work);
                if by_a_step {
                    // Both are done in the same poll.
                    let other = async {
                        tokio::task::yield_now().await;
                        other.await
                    };
                    let (done, other) = join(work, cx.step("other", other)).await;
                    return ok(done? + other?);
                }
                // The ask that is dropped will be made again.
                let asked = pin!(cx.elicit::<Num>("n", "?"));
                let Either::Right((done, _)) = select(asked, pin!(work)).await else {
                    panic!("nobody answers");
                };
                ok(done? + other.await?)
            }
        });
        let stop = run(&world, &mut store, &handler).await;
        assert!(matches!(stop.error().kind(), ErrorKind::Retry), "{stop:?}");
        assert_eq!(run(&world, &mut store, &handler).await.out(), 5);
        assert_eq!(book.count("done"), 1, "{by_a_step}: {:?}", book.lines());
        assert_eq!(book.count("tried"), 2);
    }
}

#[tokio::test]
async fn what_was_done_before_a_panic_is_written_first() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let keep = book.clone();
    let handler = handler(move |cx| {
        let book = keep.clone();
        async move {
            let done = cx.step("done", noted(&book, "done")).await?;
            book.write("tried");
            assert!(book.count("tried") > 1, "not yet");
            ok(done)
        }
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
async fn an_attempt_that_fails_leaves_its_asks_as_they_are() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let keep = book.clone();
    let handler = handler(move |cx| {
        let (book, wait) = (keep.clone(), wait.clone());
        async move {
            let work = async {
                let done = cx.step("done", noted(&book, "done")).await?;
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
        }
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
    run(&world, &mut store, &handler).await.is_at_rest();
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
    let keep = book.clone();
    let handler = handler(move |cx| {
        let book = keep.clone();
        async move {
            let work = async {
                book.write("tried");
                Err::<i64, _>(Error::retry("busy"))
            };
            let done = cx.once("o", work).await;
            ok(done.unwrap_or_else(|error| error.to_string().len() as i64))
        }
    });
    assert_eq!(run(&world, &mut store, &handler).await.out(), 4);
    assert_eq!(book.lines(), ["tried"]);
}

#[tokio::test]
async fn a_checkpoint_is_written_when_a_second_has_gone_by() {
    let (world, mut store) = (World::new(), Store::new());
    let clock = world.clock.clone();
    let handler = handler(move |cx| {
        let clock = clock.clone();
        async move {
            for n in cx.resume::<u32>("n")?.unwrap_or(0)..100 {
                if n % 25 == 24 {
                    clock.advance(1);
                }
                cx.checkpoint("n", &(n + 1)).await?;
            }
            ok(cx.resume::<u32>("n")?)
        }
    });
    let mut instance = Instance::new(&world, &store, &handler);
    for _ in 0..3 {
        let write = instance.next_write(&mut store).await.unwrap();
        assert_eq!(write.then, Then::GoOn);
    }
    // It goes on from what was written last: the 50th.
    drop(instance);
    let mut instance = Instance::new(&world, &store, &handler);
    assert_eq!(instance.run(&mut store).await.out(), 100);
    assert_eq!(instance.writes.len(), 3, "at 51, at 75 and at 100");
}

#[tokio::test]
async fn a_checkpoint_takes_no_name_from_a_step() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let keep = book.clone();
    let handler = handler(move |cx| {
        let book = keep.clone();
        async move {
            if cx.resume::<u32>("c")?.is_none() {
                cx.checkpoint("c", &1).await?;
            }
            cx.step("", noted(&book, "nameless")).await?;
            ok(cx.elicit::<Num>("n", "?").await?.v)
        }
    });
    run(&world, &mut store, &handler).await.is_at_rest();
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 1);
    assert_eq!(book.lines(), ["nameless"]);
}

/// Lets others of the handler have a turn.
async fn come_round() {
    let mut come = false;
    let round = poll_fn(|task| {
        if come {
            return Poll::Ready(());
        }
        come = true;
        task.waker().wake_by_ref();
        Poll::Pending
    });
    round.await;
}

/// Runs `branch` beside a computation that goes on, never at rest, until it is done.
async fn beside_a_computation<T>(
    cx: &Cx,
    (first, checkpoints): (bool, bool),
    branch: impl Future<Output = Result<T>>,
) -> Result<T> {
    let done = AtomicBool::new(false);
    let compute = async {
        let mut n = 0;
        while !done.load(SeqCst) {
            n += 1;
            assert!(n < 100_000, "the other branch never had its turn");
            if checkpoints {
                cx.checkpoint("n", &n).await?;
            } else {
                come_round().await;
            }
        }
        ok(n)
    };
    let branch = async {
        let value = branch.await;
        done.store(true, SeqCst);
        value
    };
    if first {
        join(branch, compute).await.0
    } else {
        join(compute, branch).await.1
    }
}

#[tokio::test]
async fn a_step_starts_beside_a_computation_that_never_rests() {
    for order in [(true, true), (true, false), (false, true), (false, false)] {
        let (world, mut store, book) = (World::new(), Store::new(), Book::default());
        let keep = book.clone();
        let handler = handler(move |cx| {
            let book = keep.clone();
            async move {
                cx.random();
                let step = cx.step("a", noted(&book, "a"));
                beside_a_computation(&cx, order, step).await
            }
        });
        assert_eq!(run(&world, &mut store, &handler).await.out(), 1);
        assert_eq!(book.lines(), ["a"]);
    }
}

#[tokio::test]
async fn an_ask_is_published_beside_a_computation_that_never_rests() {
    for order in [(true, true), (true, false), (false, true), (false, false)] {
        let (world, mut store) = (World::new(), Store::new());
        let handler = handler(move |cx| async move {
            let ask = async { ok(cx.elicit::<Num>("n", "?").await?.v) };
            beside_a_computation(&cx, order, ask).await
        });
        let mut instance = Instance::new(&world, &store, &handler);
        while store.open.is_empty() {
            let write = instance.next_write(&mut store).await.unwrap();
            assert_eq!(write.then, Then::GoOn);
        }
        instance.answer(&mut store, "n", &num(4));
        assert_eq!(instance.run(&mut store).await.out(), 4);
    }
}

#[tokio::test]
async fn a_sleep_ends_beside_a_computation_that_never_rests() {
    let (world, mut store) = (World::new(), Store::new());
    let clock = world.clock.clone();
    let handler = handler(move |cx| {
        let clock = clock.clone();
        async move {
            // Polled only when it is woken.
            let sleep = async {
                let sleeps = FuturesUnordered::from_iter([cx.sleep(Duration::from_secs(5))]);
                let tick = async {
                    come_round().await;
                    clock.advance(5);
                };
                join(sleeps.collect::<Vec<()>>(), tick).await;
                ok(1)
            };
            beside_a_computation(&cx, (true, false), sleep).await
        }
    });
    assert_eq!(run(&world, &mut store, &handler).await.out(), 1);
}

#[tokio::test]
async fn a_busy_instance_hands_a_task_on_with_its_asks() {
    let (mut world, mut store, book) = (World::new(), Store::new(), Book::default());
    let busy = Arc::new(Switch::default());
    world.pressure = Some(busy.clone());
    let (keep, at_work) = (book.clone(), busy.clone());
    let handler = handler(move |cx| {
        let (book, busy) = (keep.clone(), at_work.clone());
        async move {
            let work = async {
                let one = async {
                    busy.0.store(true, SeqCst);
                    noted(&book, "one").await
                };
                let one = cx.step("one", one).await?;
                ok(one + cx.step("two", noted(&book, "two")).await?)
            };
            let (work, n) = join(work, cx.elicit::<Num>("n", "?")).await;
            let from = cx.resume::<i64>("c")?.unwrap_or(0);
            book.write(format!("from {from}"));
            for c in from..3 {
                cx.checkpoint("c", &(c + 1)).await?;
            }
            ok(work? as i64 + n?.v)
        }
    });
    // After a step, before a step, and as often as there is need.
    for _ in 0..4 {
        let mut instance = Instance::new(&world, &store, &handler);
        assert!(matches!(instance.run(&mut store).await, Stop::HandedOn));
        assert_eq!(store.open_keys(), ["n"]);
        assert_eq!(book.lines(), ["one"]);
    }
    busy.0.store(false, SeqCst);
    run(&world, &mut store, &handler).await.is_at_rest();
    assert_eq!(store.all_keys(), ["n"]);
    // At a checkpoint.
    busy.0.store(true, SeqCst);
    store.answer("n", &num(1));
    for from in ["from 0", "from 1", "from 2"] {
        assert!(matches!(
            run(&world, &mut store, &handler).await,
            Stop::HandedOn
        ));
        assert_eq!(book.lines().last().unwrap(), from);
    }
    assert_eq!(run(&world, &mut store, &handler).await.out(), 7);
}

#[tokio::test]
async fn a_task_may_be_written_in_the_explicit_style() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = |cx: Cx| -> refrain_core::HandlerFuture {
        Box::pin(async move {
            let form = <Num as refrain_core::Elicit>::form();
            let seen: u32 = cx.state()?.unwrap_or(0);
            let reply = refrain_core::Incomplete::new();
            let reply = match (cx.answer("n"), cx.answer("m"), seen) {
                (_, _, 0) => reply.form("n", "?", form).form("m", "?", form).state(&1)?,
                (None, _, _) => reply.form("n", "?", form).state(&seen)?,
                (_, None, 1) => reply
                    .form("m", "?", form)
                    .form("n", "again?", form)
                    .state(&2)?,
                (_, None, _) => reply.form("m", "?", form).state(&seen)?,
                (_, _, 2) => reply.state(&3)?,
                (Some(n), Some(m), _) => {
                    let out = json!({"out": [n, m]});
                    let body = refrain_wire::ResultBody::from_members(out);
                    return Ok(Outcome::Complete(body.unwrap()));
                }
            };
            Ok(Outcome::Incomplete(reply))
        })
    };
    run(&world, &mut store, &handler).await.is_at_rest();
    assert_eq!(store.all_keys(), ["n", "m"]);
    store.answer("n", &num(1));
    run(&world, &mut store, &handler).await.is_at_rest();
    // What is asked still keeps its key; what is asked anew gets another.
    assert_eq!(store.all_keys(), ["n", "m", "n.2"]);
    assert_eq!(store.open_keys(), ["m", "n.2"]);
    store.answer("m", &num(2));
    assert!(matches!(
        run(&world, &mut store, &handler).await,
        Stop::HandedOn
    ));
    assert_eq!(store.withdrawn, ["n.2"]);
    assert_eq!(
        run(&world, &mut store, &handler).await.out(),
        json!([num(1), num(2)])
    );
    assert!(store.answers.is_empty());
}

#[tokio::test]
async fn detaching_keeps_the_running_handler_and_repeats_nothing() {
    let (world, book) = (World::new(), Book::default());
    let (go, wait) = gate();
    let keep = book.clone();
    let handler = handler(move |cx| {
        let (book, wait) = (keep.clone(), wait.clone());
        async move {
            book.write(format!("begins as a task: {}", cx.is_task()));
            let n = cx.elicit::<Num>("n", "?").await?.v;
            let a = cx.step("a", noted(&book, "a")).await?;
            let slow = async {
                book.write("slow begins");
                pass(&wait).await;
                ok(10)
            };
            let (slow, detached) = join(cx.step("slow", slow), cx.detach()).await;
            detached?;
            book.write("detached");
            let b = cx.step("b", noted(&book, "b")).await?;
            let m = cx.elicit::<Num>("m", "?").await?.v;
            ok(n + m + slow? + (a + b) as i64)
        }
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
    let mut store = Store::of(&instance.flow.snapshot());
    // One that finds the task now repeats only what was at work.
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

    instance.flow.become_task(NOON + 1000);
    assert!(matches!(instance.run(&mut store).await, Stop::Waits));
    go.send(true).unwrap();
    instance.run(&mut store).await.is_at_rest();
    assert_eq!(store.all_keys(), ["m"]);
    drop(instance);
    store.answer("m", &num(1000));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 1112);
    let end = ["detached", "b", "begins as a task: true", "detached"];
    assert_eq!(book.lines(), [&begins[..], &other[..], &end[..]].concat());
}

#[tokio::test]
async fn an_ask_that_was_open_at_detaching_has_a_key_of_the_task() {
    let (world, book) = (World::new(), Book::default());
    let keep = book.clone();
    let handler = handler(move |cx| {
        let book = keep.clone();
        async move {
            let (n, detached) = join(cx.elicit::<Num>("n", "?"), cx.detach()).await;
            detached?;
            ok(n?.v + cx.step("a", noted(&book, "a")).await? as i64)
        }
    });
    let sealer = world.sealer();
    let first = sealer.first(&world.binding(&sealer), None);
    let start = refrain_core::Start::first(first, None);
    let mut instance = Instance::with(env(&world), start, &handler);
    assert!(matches!(instance.event().await, Some(Event::Detach)));
    let mut store = Store::of(&instance.flow.snapshot());
    instance.flow.become_task(NOON + 1000);
    instance.run(&mut store).await.is_at_rest();
    instance.answer(&mut store, "n", &num(-1));
    instance.run(&mut store).await.is_at_rest();
    assert_eq!(store.all_keys(), ["n", "n.2"]);
    store.answer("n.2", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 2);
}

#[tokio::test]
async fn detaching_changes_nothing_where_there_are_no_tasks() {
    let world = World::new();
    let handler = handler(|cx| async move {
        cx.detach().await?;
        let n = cx.elicit::<Num>("n", "?").await?.v;
        ok((n, cx.is_task()))
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["n"]);
    let last = world
        .next(&handler, &first.token(), &json!({"n": num(1)}))
        .await;
    assert_eq!(last.out(), json!([1, false]));
}

#[tokio::test]
async fn detaching_fails_with_the_reason_where_no_task_could_be_made() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let error = cx.detach().await.unwrap_err();
        ok((error.to_string(), cx.is_task()))
    });
    let sealer = world.sealer();
    let first = sealer.first(&world.binding(&sealer), None);
    let mut instance = Instance::with(
        env(&world),
        refrain_core::Start::first(first, None),
        &handler,
    );
    assert!(matches!(instance.event().await, Some(Event::Detach)));
    instance.flow.stay("the store is full".into());
    let stop = instance.run(&mut Store::new()).await;
    assert_eq!(stop.out(), json!(["the store is full", false]));
}

#[tokio::test]
async fn a_task_sends_no_notes_and_says_how_it_stands_instead() {
    let (mut world, mut store) = (World::new(), Store::new());
    world.log_level = Some(refrain_wire::LogLevel::Debug);
    world.wants_progress = true;
    let handler = handler(|cx| async move {
        cx.progress(1.0, None, "begun");
        cx.log(refrain_wire::LogLevel::Error, "begun");
        cx.status("begun");
        cx.step("a", async { ok(1) }).await?;
        cx.elicit::<Num>("n", "?").await?;
        cx.status("answered");
        cx.progress(2.0, None, "answered");
        cx.elicit::<Num>("m", "?").await?;
        ok(1)
    });
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.is_at_rest();
    assert_eq!(instance.flow.take_status().as_deref(), Some("begun"));
    assert_eq!(instance.flow.take_status(), None);
    assert_eq!(instance.notes, []);
    drop(instance);
    // A replay is silent.
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.is_at_rest();
    assert_eq!(instance.flow.take_status(), None);
    drop(instance);
    store.answer("n", &num(1));
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.is_at_rest();
    assert_eq!(instance.flow.take_status().as_deref(), Some("answered"));
    assert_eq!(instance.notes, []);
}

#[tokio::test]
async fn too_many_asks_at_once_are_a_fault() {
    let (mut world, mut store) = (World::new(), Store::new());
    world.limits.asks = 2;
    world.limits.rounds = 2;
    let many = handler(|cx| async move {
        join_all((0..3).map(|i| cx.elicit::<Num>(format!("n{i}"), "?"))).await;
        ok(0)
    });
    let stop = run(&world, &mut store, &many).await;
    assert!(stop.fault().message.contains("3 asks"), "{stop:?}");
    // Nor may their answers be more than the journal holds.
    world.limits.entries = 3;
    let long = handler(|cx| async move {
        loop {
            cx.elicit::<Num>("n", "?").await?;
        }
        #[allow(unreachable_code)] // it gives the block its type
        ok(0)
    });
    let mut store = Store::new();
    for _ in 0..3 {
        run(&world, &mut store, &long).await.is_at_rest();
        let key = store.open_keys()[0].to_owned();
        store.answer(&key, &num(1));
    }
    let stop = run(&world, &mut store, &long).await;
    assert!(
        stop.fault().message.contains("journal is full: 3"),
        "{stop:?}"
    );
    world.limits.entries = 100;
    // A task has no rounds that could be too many.
    let long = handler(|cx| async move {
        let mut sum = 0;
        for _ in 0..5 {
            sum += cx.elicit::<Num>("n", "?").await?.v;
        }
        ok(sum)
    });
    let mut store = Store::new();
    for _ in 0..5 {
        run(&world, &mut store, &long).await.is_at_rest();
        let key = store.open_keys()[0].to_owned();
        store.answer(&key, &num(1));
    }
    assert_eq!(run(&world, &mut store, &long).await.out(), 5);
}
