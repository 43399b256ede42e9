//! Flows in memory: asks are published while the handler stays, and answers let it continue.

use crate::support::{self, Book, Num, Switch, World, handler, handler_with, num, value_of};
use futures_util::future::{join, join3};
use refrain_core::{
    AfterWrite, AskError, Cx, Elicit, End, Error, Event, Flow, HandlerFuture, Incomplete, Note,
    Outcome, PendingWrite, Start, ok,
};
use refrain_wire::{LogLevel, ResultBody};
use serde_json::{Value, json};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Starts a flow in memory.
fn begin(world: &World, handler: &impl Fn(Cx) -> HandlerFuture) -> Flow {
    Flow::new(world.env(), world.start().in_memory(), handler)
}

/// Polls until the flow reports an event or waits.
async fn next_event(flow: &mut Flow) -> Option<Event> {
    for _ in 0..1000 {
        let polled = poll_fn(|cx| Poll::Ready(flow.poll(cx))).await;
        match polled {
            Poll::Ready(Event::Settle) => tokio::task::yield_now().await,
            Poll::Ready(event) => return Some(event),
            Poll::Pending if flow.is_at_rest() => return None,
            Poll::Pending => tokio::task::yield_now().await,
        }
    }
    None
}

/// Polls until the next asks are published.
async fn published(flow: &mut Flow) -> PendingWrite {
    match next_event(flow).await {
        Some(Event::Write(write)) => {
            flow.confirm_write();
            *write
        }
        other => panic!("expected asks, got {other:?}"),
    }
}

fn keys(write: &PendingWrite) -> Vec<&str> {
    write.asks.iter().map(|(key, _)| key.as_str()).collect()
}

async fn out(flow: &mut Flow) -> Value {
    match next_event(flow).await {
        Some(Event::Ended(End::Complete(body))) => value_of(&body),
        other => panic!("expected the end, got {other:?}"),
    }
}

#[tokio::test]
async fn code_around_an_ask_runs_once() {
    let (world, book) = (World::new(), Book::default());
    let inline = handler_with(book.clone(), |cx, book| async move {
        book.write("first");
        let n = cx.elicit::<Num>("n", "?").await?.v;
        book.write("second");
        let m = cx.elicit::<Num>("n", "?").await?.v;
        book.write("third");
        assert!(!cx.is_task());
        ok(n + m)
    });
    let mut flow = begin(&world, &inline);
    let asked = published(&mut flow).await;
    assert_eq!(keys(&asked), ["n"]);
    assert!(matches!(asked.then, AfterWrite::Rest { .. }) && flow.is_at_rest());
    assert!(next_event(&mut flow).await.is_none(), "it waits");
    assert_eq!(book.lines(), ["first"]);
    flow.answer("n", &num(1).to_string());
    assert!(!flow.is_at_rest());
    // A key is used once, so that answers cannot be confused.
    assert_eq!(keys(&published(&mut flow).await), ["n#2"]);
    flow.answer("n", &num(5).to_string());
    assert!(
        next_event(&mut flow).await.is_none(),
        "this ask was answered before"
    );
    flow.answer("n#2", &num(2).to_string());
    assert_eq!(out(&mut flow).await, 3);
    assert_eq!(book.lines(), ["first", "second", "third"]);
}

#[tokio::test]
async fn concurrent_asks_may_be_answered_in_any_order() {
    let world = World::new();
    let three = handler(|cx| async move {
        let (a, b, c) = (
            cx.elicit::<Num>("a", "?"),
            cx.elicit::<Num>("b", "?"),
            cx.roots("c"),
        );
        let (a, b, c) = join3(a, b, c).await;
        ok(json!([a?.v, b?.v, c?.len()]))
    });
    let mut flow = begin(&world, &three);
    assert_eq!(keys(&published(&mut flow).await), ["a", "b", "c"]);
    flow.answer("c", r#"{"roots":[]}"#);
    flow.answer("b", &num(2).to_string());
    while let Some(event) = next_event(&mut flow).await {
        let Event::Write(write) = event else {
            panic!("{event:?}")
        };
        assert!(write.asks.is_empty());
        flow.confirm_write();
    }
    flow.answer("a", &num(1).to_string());
    assert_eq!(out(&mut flow).await, json!([1, 2, 0]));
}

#[tokio::test]
async fn dropped_ask_is_withdrawn() {
    let world = World::new();
    let impatient = handler(|cx| async move {
        let slept = tokio::select! {
            n = cx.elicit::<Num>("n", "?") => n.map(|_| false)?,
            () = cx.sleep(Duration::from_secs(5)) => true,
        };
        cx.elicit::<Num>("then", "?").await?;
        ok(slept)
    });
    let mut flow = begin(&world, &impatient);
    assert_eq!(keys(&published(&mut flow).await), ["n"]);
    world.clock.advance(6);
    let write = published(&mut flow).await;
    assert_eq!(
        (keys(&write), write.withdrawn.clone()),
        (vec!["then"], vec!["n".to_owned()])
    );
    flow.answer("then", &num(1).to_string());
    assert_eq!(out(&mut flow).await, true);
}

#[tokio::test]
async fn other_branches_continue_while_an_ask_is_open() {
    let (world, book) = (World::new(), Book::default());
    let both = handler_with(book.clone(), |cx, book| async move {
        let ask = cx.elicit::<Num>("n", "?");
        let work = async {
            for i in 0..3 {
                cx.step(format!("s{i}"), async { ok(1) }).await?;
                book.write("step");
                tokio::task::yield_now().await;
            }
            ok(())
        };
        let (n, done) = join(ask, work).await;
        done?;
        ok(n?.v)
    });
    let mut flow = begin(&world, &both);
    let first = published(&mut flow).await;
    assert_eq!(keys(&first), ["n"]);
    while !flow.is_at_rest() {
        if let Some(Event::Write(write)) = next_event(&mut flow).await {
            assert!(write.asks.is_empty());
            flow.confirm_write();
        }
    }
    assert_eq!(book.lines(), ["step", "step", "step"]);
    flow.answer("n", &num(4).to_string());
    assert_eq!(out(&mut flow).await, 4);
}

#[tokio::test]
async fn invalid_answers_are_asked_again_up_to_the_limit() {
    let mut world = World::new();
    world.limits.retries = 2;
    let one = handler(|cx| async move { ok(cx.elicit::<Num>("n", "?").await?.v) });
    let mut flow = begin(&world, &one);
    let mut key = "n".to_owned();
    for _ in 0..2 {
        let asked = published(&mut flow).await;
        key.clone_from(&asked.asks[0].0);
        flow.answer(&key, &num(5000).to_string());
    }
    let asked = published(&mut flow).await;
    assert!(support::message(&asked.asks[0].1).contains("was not accepted"));
    flow.answer(&asked.asks[0].0, &num(5000).to_string());
    let Some(Event::Ended(End::Failed(error))) = next_event(&mut flow).await else {
        panic!("the retry limit is reached")
    };
    assert!(matches!(error.as_ask(), Some(AskError::Invalid { .. })));
    // A malformed answer counts as a round.
    world.limits.rounds = 3;
    let mut flow = begin(&world, &one);
    let fault = loop {
        match next_event(&mut flow).await {
            Some(Event::Write(write)) => {
                flow.confirm_write();
                flow.answer(&write.asks[0].0, "[]");
            }
            Some(Event::Ended(End::Fault(fault))) => break fault,
            other => panic!("{other:?}"),
        }
    };
    assert!(fault.message.contains("3 rounds"), "{}", fault.message);
}

#[tokio::test]
async fn failed_answer_is_an_error_of_the_ask() {
    let world = World::new();
    let tries = handler(|cx| async move {
        match cx.elicit::<Num>("n", "?").await {
            Err(AskError::Failed { name, reason }) => ok(format!("{name}: {reason}")),
            other => Err(Error::msg(format!("{other:?}"))),
        }
    });
    let mut flow = begin(&world, &tries);
    drop(published(&mut flow).await);
    flow.fail_ask("n", "no window");
    assert_eq!(out(&mut flow).await, "n: no window");
}

#[tokio::test]
async fn live_flow_is_not_a_task_and_is_not_handed_on() {
    let mut world = World::new();
    world.wants_progress = true;
    world.log_level = Some(LogLevel::Info);
    let pressure = Arc::new(Switch(AtomicBool::new(true)));
    world.pressure = Some(pressure.clone());
    let talks = handler(|cx| async move {
        cx.checkpoint("c", &1).await?;
        cx.step("s", async { ok(1) }).await?;
        cx.progress(1.0, None, "half");
        cx.detach().await?;
        let tried = cx
            .step("t", async { Err::<(), _>(Error::retry("not now")) })
            .await;
        ok(tried.unwrap_err().to_string())
    });
    let mut flow = begin(&world, &talks);
    let Some(Event::Notes(notes)) = next_event(&mut flow).await else {
        panic!("the notes are sent")
    };
    assert!(matches!(&notes[..], [Note::Progress { .. }]));
    assert_eq!(out(&mut flow).await, "not now");
    assert!(pressure.0.load(Ordering::SeqCst));
}

#[tokio::test]
async fn explicit_handler_runs_again() {
    let world = World::new();
    let explicit = |cx: Cx| -> HandlerFuture {
        Box::pin(async move {
            let mut seen: Vec<i64> = cx.state()?.unwrap_or_default();
            if let Some(answer) = cx.answer("n") {
                let answer: Value = serde_json::from_str(answer.get())?;
                seen.push(answer["content"]["v"].as_i64().unwrap());
            }
            if seen.len() < 2 {
                let reply = Incomplete::new().form("n", "?", Num::form());
                return Ok(Outcome::Incomplete(reply.state(&seen)?));
            }
            let body = ResultBody::from_members(json!({ "out": seen }));
            Ok(Outcome::Complete(body.unwrap()))
        })
    };
    let mut flow = begin(&world, &explicit);
    let mut asked = Vec::new();
    for v in [3, 4] {
        let write = published(&mut flow).await;
        assert!(flow.has_ended());
        let [(key, _)] = &write.asks[..] else {
            panic!("{write:?}")
        };
        asked.push(key.clone());
        let answer = [(key.clone(), num(v).to_string())];
        let start = Start::task(write.snapshot, &answer).in_memory();
        flow = Flow::new(world.env(), start, explicit);
    }
    assert_eq!(out(&mut flow).await, json!([3, 4]));
    assert_eq!(asked, ["n", "n.2"]);
}

/// A handler that sends its `Cx` to the test and then ends as instructed.
fn exposes_cx(kept: &Arc<Mutex<Option<Cx>>>, asks: bool) -> impl Fn(Cx) -> HandlerFuture + use<> {
    handler_with(kept.clone(), move |cx, kept| async move {
        *kept.lock().unwrap() = Some(cx.clone());
        if asks {
            cx.elicit::<Num>("n", "?").await?;
        }
        ok(0)
    })
}

/// Checks that every operation of a `Cx` fails after its call.
async fn assert_all_rejected(cx: &Cx) {
    let asked = cx.elicit::<Num>("late", "?").await;
    assert_eq!(
        asked.unwrap_err(),
        AskError::Ended {
            name: "late".into()
        }
    );
    let url = cx.elicit_url("u", "?", "https://example.com", || async { ok(true) });
    assert!(url.await.is_err());
    let roots = cx.roots("r").await;
    assert!(roots.unwrap_err().to_string().contains("call has ended"));
    let step = cx.step("s", async { ok(1) }).await;
    assert!(step.unwrap_err().to_string().contains("ended"));
    assert!(cx.checkpoint("c", &1).await.is_err());
    assert!(cx.detach().await.is_err());
    cx.cancelled().await;
    // A sleep has no error type, so the sleeping task is unwound.
    let cx = cx.clone();
    let slept = tokio::spawn(async move { cx.sleep(Duration::from_secs(3600)).await });
    assert!(slept.await.unwrap_err().is_panic());
}

#[tokio::test]
async fn sleeping_task_does_not_outlive_its_call() {
    let world = World::new();
    for in_memory in [false, true] {
        let (book, kept) = (
            Book::default(),
            Arc::<Mutex<Vec<JoinHandle<()>>>>::default(),
        );
        let state = (book.clone(), kept.clone());
        let reminds = handler_with(state, |cx, (book, kept)| async move {
            let reminder = tokio::spawn(async move {
                book.write("asleep");
                cx.sleep(Duration::from_secs(3600)).await;
                book.write("reminded");
            });
            kept.lock().unwrap().push(reminder);
            tokio::task::yield_now().await;
            ok(0)
        });
        let mut flow = match in_memory {
            true => begin(&world, &reminds),
            false => Flow::new(world.env(), world.start(), &reminds),
        };
        out(&mut flow).await;
        let reminder = kept.lock().unwrap().pop().unwrap();
        assert!(reminder.await.unwrap_err().is_panic());
        assert_eq!(book.lines(), ["asleep"]);
    }
}

#[tokio::test]
async fn cx_used_after_its_call_returns_an_error() {
    let (world, kept) = (World::new(), Arc::default());
    for in_memory in [false, true] {
        let done = exposes_cx(&kept, false);
        let mut flow = match in_memory {
            true => begin(&world, &done),
            false => Flow::new(world.env(), world.start(), &done),
        };
        out(&mut flow).await;
        let cx = kept.lock().unwrap().take().unwrap();
        assert_all_rejected(&cx).await;
        // As in a spawned task that outlives the call.
        tokio::spawn(async move { assert_all_rejected(&cx).await })
            .await
            .unwrap();
    }
    // The same after a fault or a panic.
    for panics in [false, true] {
        let fails = handler_with(kept.clone(), |cx, kept| async move {
            *kept.lock().unwrap() = Some(cx.clone());
            assert!(!panics, "a panic");
            let _same = (cx.elicit::<Num>("n", "?"), cx.elicit::<Num>("n", "?"));
            tokio::task::yield_now().await;
            ok(0)
        });
        let mut flow = Flow::new(world.env(), world.start(), &fails);
        match next_event(&mut flow).await {
            Some(Event::Ended(End::Fault(_))) if !panics => {}
            Some(Event::Ended(End::Panicked(_))) if panics => {}
            other => panic!("expected a failure, got {other:?}"),
        }
        let cx = kept.lock().unwrap().take().unwrap();
        tokio::spawn(async move { assert_all_rejected(&cx).await })
            .await
            .unwrap();
    }
    // A live call that is abandoned while it asks has ended as well.
    let asks = exposes_cx(&kept, true);
    let mut flow = begin(&world, &asks);
    drop(published(&mut flow).await);
    flow.cancel();
    let cx = kept.lock().unwrap().take().unwrap();
    tokio::spawn(async move { assert_all_rejected(&cx).await })
        .await
        .unwrap();
}

#[tokio::test]
async fn cx_of_a_suspended_round_does_not_end_another_call() {
    let (world, kept) = (World::new(), Arc::default());
    let first = world.first(&exposes_cx(&kept, true)).await;
    assert_eq!(first.keys(), ["n"]);
    let cx: Cx = kept.lock().unwrap().take().unwrap();
    let other = handler_with(cx.clone(), |_, cx| async move {
        cx.sleep(Duration::from_secs(3600)).await;
        ok(cx
            .elicit::<Num>("stolen", "?")
            .await
            .unwrap_err()
            .to_string())
    });
    let said = world.first(&other).await.out();
    assert!(said.as_str().unwrap().contains("call has ended"), "{said}");
    // A task of the same call is unwound, since the next round repeats its work.
    let task = tokio::spawn(async move { drop(cx.elicit::<Num>("late", "?").await) });
    assert!(task.await.unwrap_err().is_panic());
}
