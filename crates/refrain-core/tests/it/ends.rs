//! Time limits, panics, notes, time and random numbers, cancellation, and the explicit style.

use crate::support::{
    self, Book, Num, Round, RoundEnd, World, assert_contains, handler, handler_with, num,
};
use futures_util::future::join;
use refrain_core::{
    Cx, Elicit, End, Error, Event, Flow, HandlerFuture, Incomplete, Limits, Note, Outcome, ok,
};
use refrain_wire::{Capabilities, LogLevel, ResultBody};
use serde_json::{Value, json};
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;

fn flow(world: &World, handler: &impl Fn(Cx) -> HandlerFuture) -> Flow {
    Flow::new(world.env(), world.start(), handler)
}

/// Polls a flow until it waits.
async fn poll_until_pending(flow: &mut Flow) {
    for _ in 0..100 {
        let polled = poll_fn(|cx| Poll::Ready(flow.poll(cx))).await;
        match polled {
            Poll::Pending => tokio::task::yield_now().await,
            Poll::Ready(Event::Settle) => tokio::task::yield_now().await,
            Poll::Ready(event) => panic!("{event:?}"),
        }
    }
}

#[tokio::test]
async fn expired_round_is_suspended_with_its_open_asks() {
    let world = World::new();
    let with_ask = handler(|cx| async move {
        cx.step("done", async { ok(1) }).await?;
        let (hung, n) = join(
            cx.step("hangs", pending::<Result<i64, Error>>()),
            cx.elicit::<Num>("n", "?"),
        )
        .await;
        ok(hung? + n?.v)
    });
    let mut hanging = flow(&world, &with_ask);
    poll_until_pending(&mut hanging).await;
    let Event::Suspended(cut) = hanging.expire() else {
        panic!("it has an open ask")
    };
    assert_eq!(cut.asks[0].0, "n");
    assert!(!cut.handed_on);
    assert_eq!(
        cut.snapshot.entry_count(),
        1,
        "the finished step is in the journal"
    );
    let without =
        handler(|cx| async move { cx.step("hangs", pending::<Result<i64, Error>>()).await });
    let mut hanging = flow(&world, &without);
    poll_until_pending(&mut hanging).await;
    let Event::Ended(End::Fault(fault)) = hanging.expire() else {
        panic!("there is nothing to ask")
    };
    assert_contains(&fault.message, &["time limit"]);
}

#[tokio::test]
async fn expired_round_respects_the_limits() {
    let with_asks = handler(|cx| async move {
        let asks = join(cx.elicit::<Num>("n", "?"), cx.elicit::<Num>("m", "?"));
        let (hung, (n, m)) = join(cx.step("hangs", pending::<Result<i64, Error>>()), asks).await;
        ok(hung? + n?.v + m?.v)
    });
    let mut world = World::new();
    let limits = world.limits.clone();
    for (rounds, asks, expected) in [(1, 2, "limit is 1 rounds"), (2, 1, "limit of a round is 1")] {
        world.limits = Limits {
            rounds,
            asks,
            ..limits.clone()
        };
        let mut hanging = flow(&world, &with_asks);
        poll_until_pending(&mut hanging).await;
        let Event::Ended(End::Fault(fault)) = hanging.expire() else {
            panic!("another round passes a limit")
        };
        assert_contains(&fault.message, &[expected]);
    }
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a destructor");
        }
    }
}

#[tokio::test]
async fn panic_ends_only_the_round() {
    let world = World::new();
    let panics = handler(|cx| async move {
        let n = cx.elicit::<Num>("n", "?").await?.v;
        assert!(n > 5, "{n} is too small");
        ok(n)
    });
    let token = world.first(&panics).await.token();
    let round = world.present(&panics, &token, &json!({"n": num(3)})).await;
    let RoundEnd::Panicked(message) = &round.end else {
        panic!("{:?}", round.end)
    };
    assert_eq!(message, "3 is too small");
    let good = world.present(&panics, &token, &json!({"n": num(6)})).await;
    assert_eq!(good.out(), 6, "the token is still valid");
    let step = handler(|cx| async move {
        let step = cx.step("s", async {
            if cx.can_elicit() {
                panic!("in a step")
            } else {
                ok(1)
            }
        });
        step.await
    });
    assert!(matches!(&world.first(&step).await.end, RoundEnd::Panicked(m) if m == "in a step"));
}

#[tokio::test]
async fn panic_in_a_destructor_is_ignored() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let bomb = Bomb;
        let n = cx.elicit::<Num>("n", "?").await?.v;
        std::mem::forget(bomb);
        ok(n)
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["n"]);
    assert_eq!(
        world
            .next(&handler, &first, &json!({"n": num(1)}))
            .await
            .out(),
        1
    );
}

#[tokio::test]
async fn notes_are_sent_once() {
    let mut world = World::new();
    world.wants_progress = true;
    world.log_level = Some(LogLevel::Info);
    let handler = handler(|cx| async move {
        cx.progress(1.0, Some(4.0), "begun");
        cx.log(LogLevel::Info, "first");
        cx.elicit::<Num>("a", "?").await?;
        cx.progress(2.0, Some(4.0), "");
        cx.progress(2.0, None, "not more than before");
        cx.progress(1.5, None, "less");
        cx.log(LogLevel::Debug, "below the level");
        cx.log(LogLevel::Error, json!({"second": true}));
        cx.step("s", async { ok(1) }).await?;
        cx.elicit::<Num>("b", "?").await?;
        cx.progress(3.0, None, "nearly");
        ok(0)
    });
    let notes = |round: &Round| -> Vec<String> {
        let note = |note: &Note| match note {
            Note::Progress { done, message, .. } => format!("{done} {message:?}"),
            Note::Log { level, data } => format!("{level:?} {data}"),
        };
        round.notes.iter().map(note).collect()
    };
    let first = world.first(&handler).await;
    assert_eq!(notes(&first), ["1 Some(\"begun\")", "Info \"first\""]);
    let second = world.next(&handler, &first, &json!({"a": num(1)})).await;
    assert_eq!(notes(&second), ["2 None", "Error {\"second\":true}"]);
    let last = world.next(&handler, &second, &json!({"b": num(1)})).await;
    assert_eq!(notes(&last), ["3 Some(\"nearly\")"]);
    // A client that did not ask for notes gets none. Beyond the limit, the latest are kept.
    world.wants_progress = false;
    world.log_level = None;
    assert_eq!(notes(&world.first(&handler).await), [""; 0]);
    world.log_level = Some(LogLevel::Debug);
    world.limits.notes = 2;
    let chatter = support::handler(|cx| async move {
        (0..5).for_each(|i| cx.log(LogLevel::Info, i));
        ok(0)
    });
    assert_eq!(notes(&world.first(&chatter).await), ["Info 3", "Info 4"]);
}

#[tokio::test]
async fn unawaited_entries_do_not_suppress_notes() {
    let mut world = World::new();
    world.wants_progress = true;
    let old = handler(|cx| async move { ok(cx.elicit::<Num>("gone", "?").await?.v) });
    let new = handler(|cx| async move {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        cx.progress(1.0, None, "");
        ok(1)
    });
    let token = world.first(&old).await.token();
    let round = world.present(&new, &token, &json!({"gone": num(1)})).await;
    assert_eq!(round.notes.len(), 1);
}

#[tokio::test]
async fn time_and_random_numbers_are_the_same_in_every_round() {
    let (world, book) = (World::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        let inner = cx.clone();
        let drawn = cx.step("draw", async move { ok(inner.random()) });
        let early = (cx.now(), drawn.await?, cx.random());
        book.write(format!("{early:?}"));
        cx.elicit::<Num>("a", "?").await?;
        let late = (cx.now(), cx.scope("x").random());
        book.write(format!("{early:?} {late:?}"));
        cx.elicit::<Num>("b", "?").await?;
        ok((
            early.1 != early.2,
            late.0.duration_since(early.0).unwrap().as_secs(),
        ))
    });
    let first = world.first(&handler).await;
    world.clock.advance(100);
    let second = world.next(&handler, &first, &json!({"a": num(1)})).await;
    world.clock.advance(100);
    let last = world.next(&handler, &second, &json!({"b": num(1)})).await;
    assert_eq!(last.out(), json!([true, 100]));
    let lines = book.lines();
    assert_eq!(
        (&lines[0], &lines[1], &lines[2]),
        (&lines[1], &lines[3], &lines[4])
    );
}

#[tokio::test]
async fn cancelled_future_completes_at_the_end_of_the_round() {
    let world = World::new();
    let kept = Arc::new(Mutex::new(None));
    let keep = kept.clone();
    let handler = handler(move |cx| {
        let watcher = cx.clone();
        let task = tokio::spawn(async move {
            watcher.cancelled().await;
            "told"
        });
        *keep.lock().unwrap() = Some(task);
        async move {
            cx.step("hangs", pending::<Result<i64, Error>>()).await?;
            ok(0)
        }
    });
    let mut hanging = flow(&world, &handler);
    poll_until_pending(&mut hanging).await;
    let task = kept.lock().unwrap().take().unwrap();
    assert!(!task.is_finished());
    drop(hanging);
    assert_eq!(task.await.unwrap(), "told");
}

/// A handler in the explicit style, which reads answers and keeps a state.
fn explicit() -> impl Fn(Cx) -> HandlerFuture {
    |cx: Cx| -> HandlerFuture {
        Box::pin(async move {
            let mut tries: Vec<i64> = cx.state()?.unwrap_or_default();
            if let Some(answer) = cx.answer("n") {
                let answer: Value = serde_json::from_str(answer.get())?;
                tries.push(answer["content"]["v"].as_i64().unwrap());
            }
            if tries.iter().sum::<i64>() < 10 {
                let reply = Incomplete::new().form("n", format!("{tries:?}"), Num::form());
                return Ok(Outcome::Incomplete(reply.state(&tries)?));
            }
            let body = ResultBody::from_members(json!({ "out": tries }));
            Ok(Outcome::Complete(body.unwrap()))
        })
    }
}

#[tokio::test]
async fn explicit_style_asks_and_keeps_state() {
    let world = World::new();
    let handler = explicit();
    let mut given = [3, 4, 5].into_iter();
    let rounds = world.play(&handler, |_, _| given.next().map(num)).await;
    assert_eq!(rounds.len(), 4);
    for (round, message) in rounds.iter().zip(["[]", "[3]", "[3, 4]"]) {
        assert_eq!(round.keys(), ["n"], "the same key each time");
        assert_eq!(round.message("n"), message);
    }
    assert_eq!(rounds[3].out(), json!([3, 4, 5]));
    // The first request may contain an answer.
    let at_once = world.first_with(&handler, &json!({"n": num(12)})).await;
    assert_eq!(at_once.out(), json!([12]));
}

#[tokio::test]
async fn invalid_explicit_replies_are_errors() {
    let reply = |make: fn() -> Incomplete| {
        move |_: Cx| -> HandlerFuture { Box::pin(async move { Ok(Outcome::Incomplete(make())) }) }
    };
    let mut world = World::new();
    let empty = world.first(&reply(Incomplete::new)).await;
    assert_contains(&empty.error().to_string(), &["at least one ask"]);
    let twice = reply(|| {
        Incomplete::new()
            .roots("a")
            .url("a", "?", "https://example.com")
    });
    let error = world.first(&twice).await.error().to_string();
    assert_contains(&error, &["two asks with the key \"a\""]);
    world.limits.asks = 1;
    let many = world
        .first(&reply(|| Incomplete::new().roots("a").roots("b")))
        .await;
    assert_contains(&many.fault().message, &["2 asks"]);
    world.limits.rounds = 1;
    let long = world.first(&reply(|| Incomplete::new().roots("a"))).await;
    assert_contains(&long.fault().message, &["1 rounds"]);
    world.limits.rounds = 2;
    let fine = world.first(&reply(|| Incomplete::new().roots("a"))).await;
    assert_eq!(fine.keys(), ["a"]);
    world.capabilities = Capabilities::default();
    let cannot = world.first(&reply(|| Incomplete::new().roots("a"))).await;
    assert!(cannot.error().as_ask().is_some(), "{:?}", cannot.error());
}

#[tokio::test]
async fn both_styles_share_their_answers() {
    let world = World::new();
    let handler = |cx: Cx| -> HandlerFuture {
        Box::pin(async move {
            let Some(first) = cx.answer("a") else {
                let reply = Incomplete::new().form("a", "?", Num::form());
                return Ok(Outcome::Incomplete(reply));
            };
            let (a, b) = join(cx.elicit::<Num>("a", "?"), cx.elicit::<Num>("b", "?")).await;
            let out = json!([first.get().len(), a?.v, b?.v]);
            Ok(Outcome::Complete(
                ResultBody::from_members(json!({ "out": out })).unwrap(),
            ))
        })
    };
    let first = world.first(&handler).await;
    let second = world.next(&handler, &first, &json!({"a": num(1)})).await;
    assert_eq!(second.keys(), ["b"]);
    let last = world.next(&handler, &second, &json!({"b": num(2)})).await;
    assert_eq!(last.out(), json!([num(1).to_string().len(), 1, 2]));
}
