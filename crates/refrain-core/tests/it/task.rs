//! Tasks: writes, rest, handing on.

use crate::support::store::{Instance, Stop, Store, gate, pass, run, write_line};
use crate::support::{Book, Num, Switch, World, handler, handler_with, num};
use futures_util::future::join;
use futures_util::stream::{FuturesUnordered, StreamExt};
use refrain_core::{AfterWrite, Cx, Event, Result, StatusMessage, ok};
use serde_json::json;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

#[tokio::test]
async fn progress_is_written_before_a_step_starts() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        let a = cx.step("a", write_line(&book, "a")).await?;
        let drawn = cx.random();
        let b = cx.step("b", write_line(&book, "b")).await?;
        cx.elicit::<Num>("n", "?").await?;
        let c = cx.step("c", write_line(&book, "c")).await?;
        ok((a + b + c, drawn > 0))
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let first = instance.next_write(&mut store).await.unwrap();
    assert_eq!((first.entries, first.then), (2, AfterWrite::Continue));
    assert_eq!(book.lines(), ["a"]);
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!((second.entries, &second.asks[..]), (3, &["n".into()][..]));
    assert!(second.is_at_rest());
    assert_eq!(book.lines(), ["a", "b"]);
    instance.answer(&mut store, "n", &num(1));
    let third = instance.next_write(&mut store).await.unwrap();
    assert_eq!((third.entries, third.then), (4, AfterWrite::Continue));
    assert_eq!(third.taken, ["n"]);
    assert_eq!(
        book.lines(),
        ["a", "b"],
        "`c` waits until the answer is written"
    );
    assert_eq!(instance.run(&mut store).await.out(), json!([3, true]));
    assert_eq!(book.lines(), ["a", "b", "c"]);
}

#[tokio::test]
async fn first_step_needs_no_write() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move { ok(cx.step("a", async { ok(1) }).await? + 1) });
    let mut instance = Instance::new(&world, &store, &handler);
    assert_eq!(instance.run(&mut store).await.out(), 2);
    assert_eq!(instance.writes, []);
}

#[tokio::test]
async fn spawned_step_waits_for_the_write_in_progress() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let handler = handler_with((book.clone(), wait), |cx, (book, wait)| async move {
        let mut tasks = tokio::task::JoinSet::new();
        let spawned = cx.clone();
        tasks.spawn(async move {
            pass(&wait).await;
            spawned.step("s", write_line(&book, "s")).await
        });
        cx.checkpoint("c", &1).await?;
        ok(tasks.join_next().await.unwrap()??)
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

/// An ask, concurrent with a step that waits at the gate.
fn ask_beside_a_step(
    book: &Book,
    wait: &watch::Receiver<bool>,
) -> impl Fn(Cx) -> refrain_core::HandlerFuture + use<> {
    let state = (book.clone(), wait.clone());
    handler_with(state, |cx, (book, wait)| async move {
        let slow = async {
            book.write("slow begins");
            pass(&wait).await;
            ok(10)
        };
        let asked = async {
            let n = cx.elicit::<Num>("n", "?").await?.v;
            ok(n + cx.step("after", write_line(&book, "after")).await? as i64)
        };
        let (slow, asked) = join(cx.step("slow", slow), asked).await;
        ok(slow? + asked?)
    })
}

#[tokio::test]
async fn ask_is_published_while_other_branches_work() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let handler = ask_beside_a_step(&book, &wait);
    let mut instance = Instance::new(&world, &store, &handler);
    let first = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&first.asks[..], first.then),
        (&["n".into()][..], AfterWrite::Continue)
    );
    assert_eq!(instance.next_write(&mut store).await, None, "a step runs");
    go.send(true).unwrap();
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!((second.asks.len(), second.entries), (0, 1));
    let rest = AfterWrite::Rest {
        wake: None,
        may_progress: false,
    };
    assert_eq!(second.then, rest);
    assert_eq!(
        instance.next_write(&mut store).await,
        None,
        "rest is reported once"
    );
    drop(instance);
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 16);
    assert_eq!(book.lines(), ["slow begins", "after"]);
    assert_eq!(store.all_keys(), ["n"]);
}

#[tokio::test]
async fn answer_is_accepted_while_a_step_runs() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let handler = ask_beside_a_step(&book, &wait);
    let mut instance = Instance::new(&world, &store, &handler);
    instance.next_write(&mut store).await.unwrap();
    instance.answer(&mut store, "n", &num(1));
    // A second answer, and an answer to an unknown key, have no effect.
    instance.flow.answer("n", &num(500).to_string());
    instance.flow.answer("slow", &num(500).to_string());
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&second.taken[..], second.then),
        (&["n".into()][..], AfterWrite::Continue)
    );
    let third = instance.next_write(&mut store).await.unwrap();
    assert_eq!((third.entries, third.then), (2, AfterWrite::Continue));
    assert_eq!(book.lines(), ["slow begins", "after"], "slow still runs");
    go.send(true).unwrap();
    assert_eq!(instance.run(&mut store).await.out(), 16);
}

#[tokio::test]
async fn task_does_not_rest_while_a_checkpoint_is_written() {
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
    assert_eq!(
        first.then,
        AfterWrite::Continue,
        "the computation is not finished"
    );
    instance.run(&mut store).await.assert_at_rest();
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 6);
}

#[tokio::test]
async fn end_of_a_foreign_future_is_reported() {
    let (world, mut store) = (World::new(), Store::new());
    let (go, wait) = gate();
    let handler = handler_with(wait, |cx, wait| async move {
        let (n, ()) = join(cx.elicit::<Num>("n", "?"), pass(&wait)).await;
        ok(n?.v)
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let rest = |may_progress| AfterWrite::Rest {
        wake: None,
        may_progress,
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
async fn task_suspended_during_work_is_handed_on_with_its_asks() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let handler = ask_beside_a_step(&book, &wait);
    let mut instance = Instance::new(&world, &store, &handler);
    instance.next_write(&mut store).await.unwrap();
    assert_eq!(instance.next_write(&mut store).await, None);
    let write = instance.flow.suspend();
    assert_eq!(
        write.then,
        AfterWrite::HandOn,
        "another instance runs its step"
    );
    store.commit(&write).unwrap();
    // Not polled yet: its asks stay published.
    let mut instance = Instance::new(&world, &store, &handler);
    let write = instance.flow.suspend();
    assert_eq!(
        (&write.withdrawn[..], write.then),
        (&[][..], AfterWrite::HandOn)
    );
    store.commit(&write).unwrap();
    go.send(true).unwrap();
    run(&world, &mut store, &handler).await.assert_at_rest();
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 16);
    assert_eq!(store.all_keys(), ["n"]);
}

#[tokio::test]
async fn task_that_resumed_work_is_handed_on_when_suspended() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let (go, wait) = gate();
    let (_never, still) = gate();
    let state = (book.clone(), wait, still);
    let handler = handler_with(state, |cx, (book, wait, still)| async move {
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
    });
    let mut instance = Instance::new(&world, &store, &handler);
    let stop = instance.run(&mut store).await;
    assert!(matches!(stop, Stop::Rests { .. }), "{stop:?}");
    go.send(true).unwrap();
    assert!(matches!(instance.run(&mut store).await, Stop::Waits));
    assert_eq!(book.lines(), ["begun"]);
    assert_eq!(instance.flow.suspend().then, AfterWrite::HandOn);
}

#[tokio::test]
async fn checkpoint_is_written_after_one_second() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler_with(world.clock.clone(), |cx, clock| async move {
        for n in cx.resume::<u32>("n")?.unwrap_or(0)..100 {
            if n % 25 == 24 {
                clock.advance(1);
            }
            cx.checkpoint("n", &(n + 1)).await?;
        }
        ok(cx.resume::<u32>("n")?)
    });
    let mut instance = Instance::new(&world, &store, &handler);
    for _ in 0..3 {
        let write = instance.next_write(&mut store).await.unwrap();
        assert_eq!(write.then, AfterWrite::Continue);
    }
    // It continues from the last write, at 50.
    drop(instance);
    let mut instance = Instance::new(&world, &store, &handler);
    assert_eq!(instance.run(&mut store).await.out(), 100);
    assert_eq!(instance.writes.len(), 3, "at 51, at 75 and at 100");
}

#[tokio::test]
async fn checkpoint_does_not_use_a_step_name() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        if cx.resume::<u32>("c")?.is_none() {
            cx.checkpoint("c", &1).await?;
        }
        cx.step("", write_line(&book, "nameless")).await?;
        ok(cx.elicit::<Num>("n", "?").await?.v)
    });
    run(&world, &mut store, &handler).await.assert_at_rest();
    store.answer("n", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 1);
    assert_eq!(book.lines(), ["nameless"]);
}

/// Lets other branches of the handler run.
async fn yield_in_handler() {
    let mut yielded = false;
    let yields = poll_fn(|task| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        task.waker().wake_by_ref();
        Poll::Pending
    });
    yields.await;
}

/// Runs `branch` concurrently with a computation that is never at rest, until `branch` is done.
/// `first`: `branch` is polled first. `checkpoints`: the computation makes checkpoints.
async fn during_a_computation<T>(
    cx: &Cx,
    (first, checkpoints): (bool, bool),
    branch: impl Future<Output = Result<T>>,
) -> Result<T> {
    let done = AtomicBool::new(false);
    let compute = async {
        let mut n = 0;
        while !done.load(SeqCst) {
            n += 1;
            assert!(n < 100_000, "the other branch never ran");
            if checkpoints {
                cx.checkpoint("n", &n).await?;
            } else {
                yield_in_handler().await;
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
async fn step_starts_during_a_busy_computation() {
    for order in [(true, true), (true, false), (false, true), (false, false)] {
        let (world, mut store, book) = (World::new(), Store::new(), Book::default());
        let handler = handler_with(book.clone(), |cx, book| async move {
            cx.random();
            let step = cx.step("a", write_line(&book, "a"));
            during_a_computation(&cx, order, step).await
        });
        assert_eq!(run(&world, &mut store, &handler).await.out(), 1);
        assert_eq!(book.lines(), ["a"]);
    }
}

#[tokio::test]
async fn ask_is_published_during_a_busy_computation() {
    for order in [(true, true), (true, false), (false, true), (false, false)] {
        let (world, mut store) = (World::new(), Store::new());
        let handler = handler(move |cx| async move {
            let ask = async { ok(cx.elicit::<Num>("n", "?").await?.v) };
            during_a_computation(&cx, order, ask).await
        });
        let mut instance = Instance::new(&world, &store, &handler);
        while store.open.is_empty() {
            let write = instance.next_write(&mut store).await.unwrap();
            assert_eq!(write.then, AfterWrite::Continue);
        }
        instance.answer(&mut store, "n", &num(4));
        assert_eq!(instance.run(&mut store).await.out(), 4);
    }
}

#[tokio::test]
async fn sleep_ends_during_a_busy_computation() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler_with(world.clock.clone(), |cx, clock| async move {
        // Polled only when woken.
        let sleep = async {
            let sleeps = FuturesUnordered::from_iter([cx.sleep(Duration::from_secs(5))]);
            let tick = async {
                yield_in_handler().await;
                clock.advance(5);
            };
            join(sleeps.collect::<Vec<()>>(), tick).await;
            ok(1)
        };
        during_a_computation(&cx, (true, false), sleep).await
    });
    assert_eq!(run(&world, &mut store, &handler).await.out(), 1);
}

#[tokio::test]
async fn busy_instance_hands_on_a_task_with_its_asks() {
    let (mut world, mut store, book) = (World::new(), Store::new(), Book::default());
    let busy = Arc::new(Switch::default());
    world.pressure = Some(busy.clone());
    let state = (book.clone(), busy.clone());
    let handler = handler_with(state, |cx, (book, busy)| async move {
        let work = async {
            let one = async {
                busy.0.store(true, SeqCst);
                write_line(&book, "one").await
            };
            let one = cx.step("one", one).await?;
            ok(one + cx.step("two", write_line(&book, "two")).await?)
        };
        let (work, n) = join(work, cx.elicit::<Num>("n", "?")).await;
        let from = cx.resume::<i64>("c")?.unwrap_or(0);
        book.write(format!("from {from}"));
        for c in from..3 {
            cx.checkpoint("c", &(c + 1)).await?;
        }
        ok(work? as i64 + n?.v)
    });
    // After a step, before a step, and as often as necessary.
    for _ in 0..4 {
        let mut instance = Instance::new(&world, &store, &handler);
        assert!(matches!(instance.run(&mut store).await, Stop::HandedOn));
        assert_eq!(store.open_keys(), ["n"]);
        assert_eq!(book.lines(), ["one"]);
    }
    busy.0.store(false, SeqCst);
    run(&world, &mut store, &handler).await.assert_at_rest();
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
async fn task_sets_a_status_and_sends_no_notes() {
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
        cx.progress(2.0, Some(4.0), "half of it");
        cx.progress(1.0, Some(4.0), "less than before");
        cx.elicit::<Num>("m", "?").await?;
        ok(1)
    });
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.assert_at_rest();
    let status = |text: &str, is_progress| {
        let text = text.to_owned();
        Some(StatusMessage { text, is_progress })
    };
    assert_eq!(instance.flow.take_status(), status("begun", false));
    assert_eq!(instance.flow.take_status(), None);
    // A step has ended since.
    assert_eq!(instance.flow.final_status(), None);
    assert_eq!(instance.notes, []);
    drop(instance);
    // A replay is silent.
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.assert_at_rest();
    assert_eq!(instance.flow.take_status(), None);
    drop(instance);
    store.answer("n", &num(1));
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.assert_at_rest();
    assert_eq!(
        instance.flow.take_status(),
        status("half of it (2 of 4)", true)
    );
    let parting = instance.flow.final_status();
    assert_eq!(parting.as_deref(), Some("answered"));
    assert_eq!(instance.notes, []);
}
