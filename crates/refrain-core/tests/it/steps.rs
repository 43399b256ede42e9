//! Steps: journaled values and errors, delivered in the same order in every round.

use crate::support::{Book, Num, World, assert_contains, handler, handler_with, num};
use futures_util::future::{join, poll_fn};
use futures_util::stream::{FuturesUnordered, StreamExt};
use refrain_core::{Error, ok};
use serde_json::json;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;
use std::time::Duration;

#[tokio::test]
async fn failed_step_is_not_retried() {
    let (world, book) = (World::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        loop {
            let card = cx.elicit::<Num>("card", "Which card?").await?.v;
            let book = book.clone();
            let charge = cx.step("charge", async move {
                book.write(format!("charge {card}"));
                if card == 1 {
                    Err(Error::invalid_params("refused"))
                } else {
                    Ok(card)
                }
            });
            match charge.await {
                Ok(card) => return ok(card),
                Err(error) => assert_eq!(format!("{error:?}"), "InvalidParams: refused"),
            }
        }
    });
    let first = world.first(&handler).await;
    let second = world.next(&handler, &first, &json!({"card": num(1)})).await;
    assert_eq!(second.keys(), ["card#2"]);
    let last = world
        .next(&handler, &second, &json!({"card#2": num(2)}))
        .await;
    assert_eq!(last.out(), 2);
    assert_eq!(book.lines(), ["charge 1", "charge 2"]);
    assert_eq!((last.stats.replayed, last.stats.steps), (3, 1));
}

/// Loses a field when it is serialized to JSON.
#[derive(serde::Serialize, serde::Deserialize)]
struct Lossy {
    kept: f32,
    #[serde(skip)]
    lost: u8,
}

#[tokio::test]
async fn first_run_receives_the_decoded_journal_value() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let lossy = cx
            .step("lossy", async { ok(Lossy { kept: 0.1, lost: 7 }) })
            .await?;
        let map = [((1, 2), 3)]
            .into_iter()
            .collect::<std::collections::HashMap<_, _>>();
        let misfit = cx.step("map", async { ok(map) }).await.unwrap_err();
        let seen = (lossy.kept, lossy.lost, misfit.to_string());
        cx.elicit::<Num>("n", "?").await?;
        ok((seen, lossy.lost))
    });
    let first = world.first(&handler).await;
    let last = world.next(&handler, &first, &json!({"n": num(0)})).await;
    let out = last.out();
    assert_eq!(out[0][1], 0, "the lost field is lost on the first run too");
    assert_contains(out[0][2].as_str().unwrap(), &["cannot be serialized"]);
    let in_one_round = world.first_with(&handler, &json!({"n": num(0)})).await;
    assert_eq!(in_one_round.out(), out);
}

#[tokio::test]
async fn race_has_the_same_winner_in_every_round() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let mut winners = Vec::new();
        for _ in 0..4 {
            // `select!` polls in a random order.
            winners.push(tokio::select! {
                a = cx.elicit::<Num>("a", "?") => ("a", a?.v),
                b = cx.elicit::<Num>("b", "?") => ("b", b?.v),
            });
            let pause = async {
                tokio::task::yield_now().await;
                ok(1)
            };
            winners.push(tokio::select! {
                c = cx.step("c", pause) => ("c", c?),
                d = cx.step("d", async { ok(2) }) => ("d", d?),
                e = cx.step("e", async { ok(3) }) => ("e", e?),
            });
        }
        cx.elicit::<Num>("last", "?").await?;
        ok(winners)
    });
    for _ in 0..20 {
        let mut round = world.first(&handler).await;
        while round.keys() != ["last"] {
            let answers = round.keys().into_iter().map(|key| (key.to_owned(), num(5)));
            let answers = serde_json::Value::Object(answers.collect());
            round = world.next(&handler, &round, &answers).await;
        }
        let token = round.token();
        let last = json!({"last": num(0)});
        let out = world.present(&handler, &token, &last).await.out();
        for _ in 0..10 {
            assert_eq!(world.present(&handler, &token, &last).await.out(), out);
        }
    }
}

#[tokio::test]
async fn unordered_collection_replays_in_order() {
    let (world, book) = (World::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        let cx = &cx;
        let mut all: FuturesUnordered<_> = (0..6u32)
            .map(|i| async move {
                // The later ones complete first; the first two need an answer.
                let work = async move {
                    for _ in 0..10 - i {
                        tokio::task::yield_now().await;
                    }
                    ok(i)
                };
                let done = cx.step(format!("s{i}"), work).await?;
                if i < 2 {
                    cx.elicit::<Num>(format!("a{i}"), "?").await?;
                }
                ok(done)
            })
            .collect();
        let mut order = Vec::new();
        while let Some(one) = all.next().await {
            order.push(one?);
            book.write(format!("{order:?}"));
        }
        cx.elicit::<Num>("last", "?").await?;
        ok(order)
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["a1", "a0"], "in the order of creation");
    let answers = json!({"a0": num(0), "a1": num(0)});
    let second = world.next(&handler, &first, &answers).await;
    let last = world
        .next(&handler, &second, &json!({"last": num(0)}))
        .await;
    assert_eq!(last.out(), json!([5, 4, 3, 2, 1, 0]));
    let lines = book.lines();
    assert_eq!(
        lines[..4],
        lines[4..8],
        "the second round replays the first"
    );
    assert_eq!(
        lines[4..10],
        lines[10..16],
        "the third round replays the second"
    );
}

#[tokio::test]
async fn abandoned_step_does_not_block_the_round() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let work = async {
            tokio::task::yield_now().await;
            ok(1)
        };
        let mut held = Box::pin(cx.step("held", work));
        assert!(futures_util::poll!(&mut held).is_pending());
        // `held` is woken and not polled.
        let n = cx.elicit::<Num>("n", "?").await?.v;
        ok(n + held.await?)
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["n"]);
    let last = world.next(&handler, &first, &json!({"n": num(2)})).await;
    assert_eq!(last.out(), 3, "the step continues where it is awaited");
}

#[tokio::test]
async fn order_of_ready_values_is_the_same_in_every_round() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let mut early = Box::pin(cx.elicit::<Num>("early", "?"));
        let looked = futures_util::poll!(&mut early).is_ready();
        let late = cx.elicit::<Num>("late", "?").await?.v;
        ok((looked, late, early.await?.v))
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["early", "late"]);
    let answers = json!({"early": num(1), "late": num(2)});
    let last = world.next(&handler, &first, &answers).await;
    assert_eq!(last.out(), json!([false, 2, 1]));
}

#[tokio::test]
async fn foreign_timer_does_not_delay_a_suspension() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let hour = tokio::time::sleep(Duration::from_secs(3600));
        tokio::select! {
            n = cx.elicit::<Num>("n", "?") => ok(n?.v),
            () = hour => ok(-1),
        }
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["n"]);
    assert_eq!(
        world
            .next(&handler, &first, &json!({"n": num(3)}))
            .await
            .out(),
        3
    );
}

#[tokio::test]
async fn busy_handler_receives_its_values() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let done = AtomicBool::new(false);
        let spin = poll_fn(|task| {
            task.waker().wake_by_ref();
            if done.load(SeqCst) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let work = async {
            let one = cx.step("one", async { ok(1) }).await?;
            let two = cx.step("two", async { ok(2) }).await?;
            done.store(true, SeqCst);
            ok(one + two)
        };
        let (sum, ()) = join(work, spin).await;
        ok(sum? + cx.elicit::<Num>("n", "?").await?.v)
    });
    let first = world.first(&handler).await;
    let last = world.next(&handler, &first, &json!({"n": num(4)})).await;
    assert_eq!(last.out(), 7);
}

#[tokio::test]
async fn new_step_starts_after_the_replay() {
    let (world, book) = (World::new(), Book::default());
    let make = |with_step: bool| {
        handler_with(book.clone(), move |cx, book| async move {
            let step = async {
                if with_step {
                    let book = book.clone();
                    let work = async move {
                        book.write("step");
                        ok(())
                    };
                    cx.step("new", work).await?;
                }
                ok(())
            };
            let asks = async {
                for name in ["a", "b"] {
                    let n = cx.elicit::<Num>(name, "?").await?.v;
                    book.write(format!("{name} is {n}"));
                }
                ok(())
            };
            let (step, asks) = join(step, asks).await;
            step?;
            asks
        })
    };
    let (old, new) = (make(false), make(true));
    let first = world.first(&old).await;
    let second = world.next(&old, &first, &json!({"a": num(1)})).await;
    world.next(&new, &second, &json!({"b": num(2)})).await.out();
    assert_eq!(book.lines(), ["a is 1", "a is 1", "b is 2", "step"]);
}
