//! Crashes at any point of a round: the request is repeated on another instance, and the result is the same.

use crate::support::{self, Book, Num, RoundEnd, World, answers_to, handler_with, num, one_thread};
use futures_util::future::join_all;
use refrain_core::{Cx, HandlerFuture, Pressure, ok};
use refrain_wire::Ask;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The failure to inject into a call.
#[derive(Clone, Copy, Debug)]
enum Failure {
    None,
    /// The instance crashes after this many polls of operations.
    Crash {
        request: usize,
        polls: u32,
    },
    /// The response is lost.
    Lost {
        request: usize,
    },
}

/// Plays a call with a failure in one of its requests. Returns the result, the number of successful requests,
/// and whether the failure occurred.
async fn play(
    world: &World,
    handler: &impl Fn(Cx) -> HandlerFuture,
    failure: Failure,
) -> (Value, usize, bool) {
    let (mut token, mut answers) = (None, json!({}));
    let mut has_failed = false;
    for request in 0..50 {
        match failure {
            Failure::Crash { request: at, polls } if at == request => {
                let round = world
                    .request(handler, token.as_deref(), &answers, Some(polls))
                    .await;
                has_failed = matches!(round.end, RoundEnd::Crashed);
            }
            Failure::Lost { request: at } if at == request => {
                has_failed = true;
                world
                    .request(handler, token.as_deref(), &answers, None)
                    .await;
            }
            _ => {}
        }
        let round = world
            .request(handler, token.as_deref(), &answers, None)
            .await;
        match round.end {
            RoundEnd::Asked {
                asks, token: next, ..
            } => {
                answers = answers_to(&asks, answer);
                token = Some(next);
            }
            _ => return (round.out(), request + 1, has_failed),
        }
    }
    panic!("the call does not end");
}

/// Answers every ask with the length of its message.
fn answer(_: &str, ask: &Ask) -> Option<Value> {
    Some(num(support::message(ask).len() as i64))
}

/// Records every charge with its idempotency key.
async fn charge(
    cx: &Cx,
    book: &Book,
    name: &'static str,
    amount: i64,
) -> refrain_core::Result<i64> {
    let step = cx.step_with_key(name, |key| {
        let book = book.clone();
        async move {
            book.write(format!("{name} {key}"));
            tokio::task::yield_now().await;
            ok(amount * 2)
        }
    });
    step.await
}

fn crash_everywhere<H>(make: impl Fn(Book) -> H, pressure: Option<Arc<dyn Pressure>>)
where
    H: Fn(Cx) -> HandlerFuture,
{
    let mut world = World::new();
    world.pressure = pressure;
    let runtime = one_thread();
    let book = Book::default();
    let handler = make(book.clone());
    let (expected, requests, _) = runtime.block_on(play(&world, &handler, Failure::None));
    let calm: BTreeSet<String> = book.lines().into_iter().collect();
    assert_eq!(calm.len(), book.lines().len(), "nothing ran twice");

    let mut crashes = 0;
    for request in 0..requests {
        for polls in 0.. {
            let failure = Failure::Crash { request, polls };
            let (out, _, crashed) = runtime.block_on(play(&world, &handler, failure));
            assert_eq!(out, expected, "{failure:?}");
            if !crashed {
                break;
            }
            crashes += 1;
        }
        let failure = Failure::Lost { request };
        let (out, _, lost) = runtime.block_on(play(&world, &handler, failure));
        assert!(lost);
        assert_eq!(out, expected, "{failure:?}");
    }
    assert!(crashes > requests, "only {crashes} crashes");

    // However often a step ran, its idempotency key is the same.
    let ran: BTreeSet<String> = book.lines().into_iter().collect();
    assert_eq!(ran, calm);
    let mut keys: BTreeMap<String, String> = BTreeMap::new();
    for line in ran {
        let (name, key) = line.split_once(' ').unwrap();
        assert_eq!(
            keys.insert(key.to_owned(), name.to_owned()),
            None,
            "a key for two steps"
        );
    }
}

#[test]
fn sequential_operations_survive_crashes() {
    crash_everywhere(
        |book| {
            handler_with(book, |cx, book| async move {
                let first = cx.elicit::<Num>("first", "a").await?.v;
                let paid = charge(&cx, &book, "pay", first).await?;
                let second = cx.elicit::<Num>("second", "bb").await?.v;
                let mut sum = charge(&cx, &book, "fee", paid + second).await?;
                for _ in 0..2 {
                    sum += cx.elicit::<Num>("item", "ccc").await?.v;
                    sum += charge(&cx, &book, "item", sum).await?;
                }
                Ok(sum)
            })
        },
        None,
    );
}

#[test]
fn concurrent_operations_survive_crashes() {
    crash_everywhere(
        |book| {
            handler_with(book, |cx, book| async move {
                let names = ["one", "two", "three"];
                let each = names.map(async |name| {
                    let before = charge(&cx.scope("before"), &book, name, 1).await?;
                    let answer = cx.elicit::<Num>(name, name).await?.v;
                    charge(&cx, &book, name, before + answer).await
                });
                let all: Result<Vec<i64>, _> = join_all(each).await.into_iter().collect();
                let last = cx.elicit::<Num>("last", "last one").await?.v;
                charge(&cx, &book, "last", last + all?.iter().sum::<i64>()).await
            })
        },
        None,
    );
}

#[test]
fn spawned_tasks_survive_crashes() {
    crash_everywhere(
        |book| {
            handler_with(book, |cx, book| async move {
                let mut tasks = tokio::task::JoinSet::new();
                for name in ["one", "two"] {
                    let (cx, book) = (cx.clone(), book.clone());
                    tasks.spawn(async move {
                        let answer = cx.elicit::<Num>(name, name).await?.v;
                        charge(&cx, &book, name, answer).await
                    });
                }
                let mut sum = 0;
                while let Some(one) = tasks.join_next().await {
                    sum += one??;
                }
                Ok(sum + cx.elicit::<Num>("last", "last one").await?.v)
            })
        },
        None,
    );
}

#[test]
fn handed_on_flow_survives_crashes() {
    /// Hands work on at every third check.
    struct Busy(AtomicU32);
    impl Pressure for Busy {
        fn should_hand_on(&self) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst) % 3 == 2
        }
    }
    crash_everywhere(
        |book| {
            handler_with(book, |cx, book| async move {
                let first = charge(&cx, &book, "first", 1).await?;
                let asked = cx.elicit::<Num>("n", "four").await?.v;
                let mut sum: i64 = cx.resume("sum")?.unwrap_or(0);
                while sum < 8 {
                    sum += 1;
                    cx.checkpoint("sum", &sum).await?;
                }
                charge(&cx, &book, "last", first + asked + sum).await
            })
        },
        Some(Arc::new(Busy(AtomicU32::new(0)))),
    );
}

#[tokio::test]
async fn idempotency_keys_differ_between_calls() {
    let (mut world, book) = (World::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        charge(&cx, &book, "pay", 1).await
    });
    for call_id in ["one", "one", "two"] {
        world.call_id = call_id;
        assert_eq!(world.first(&handler).await.out(), 2);
    }
    let keys = book.lines();
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
}

#[tokio::test]
async fn crash_before_the_first_poll_has_no_effect() {
    let (world, book) = (World::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        charge(&cx, &book, "pay", 1).await
    });
    let round = world.request(&handler, None, &json!({}), Some(0)).await;
    assert!(matches!(round.end, RoundEnd::Crashed), "{:?}", round.end);
    assert_eq!(book.lines(), [""; 0]);
}
