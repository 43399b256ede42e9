//! Asks of tasks: keys, publication, withdrawal, answers.

use crate::support::store::{self, Instance, Stop, Store, env, gate, pass, run, write_line};
use crate::support::{Book, NOON, Num, World, assert_contains, handler, handler_with, num};
use futures_util::future::{Either, join, join_all, select};
use refrain_core::{AfterWrite, AskError, Cx, Event, Outcome, ok};
use serde_json::json;
use std::pin::pin;
use tokio::sync::watch;

#[tokio::test]
async fn answer_before_the_confirmed_write_is_not_lost() {
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
    instance.flow.confirm_write();
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
async fn rejected_answer_is_asked_again_under_a_new_key() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move { ok(cx.elicit::<Num>("n", "How many?").await?.v) });
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.assert_at_rest();
    // Once in memory, and once out of memory.
    instance.answer(&mut store, "n", &num(-1));
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&second.taken[..], &second.asks[..]),
        (&["n".into()][..], &["n.2".into()][..])
    );
    assert_eq!(
        second.entries, 0,
        "the rejected answer is not in the journal"
    );
    assert!(second.is_at_rest());
    drop(instance);
    assert_contains(&store.message("n.2"), &["not accepted"]);
    store.answer("n.2", &num(2000));
    run(&world, &mut store, &handler).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n.3"]);
    store.answer("n.3", &num(7));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 7);
    assert_eq!(store.all_keys(), ["n", "n.2", "n.3"]);
}

#[tokio::test]
async fn rejected_answers_are_counted_across_runs() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move { ok(cx.elicit::<Num>("n", "?").await?.v) });
    for key in ["n", "n.2", "n.3", "n.4"] {
        run(&world, &mut store, &handler).await.assert_at_rest();
        assert_eq!(store.open_keys(), [key]);
        store.answer(key, &num(-1));
    }
    let stop = run(&world, &mut store, &handler).await;
    let error = stop.error().as_ask();
    assert!(matches!(error, Some(AskError::Invalid { .. })), "{stop:?}");
}

#[tokio::test]
async fn malformed_answer_is_asked_again_under_a_new_key() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move { ok(cx.elicit::<Num>("n", "?").await?.v) });
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await.assert_at_rest();
    instance.answer(&mut store, "n", &json!([1]));
    instance.run(&mut store).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n.2"]);
    store.answer("n.2", &json!("no"));
    run(&world, &mut store, &handler).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n.3"]);
    assert!(store.answers.is_empty());
}

#[tokio::test]
async fn replayed_ask_keeps_its_key() {
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
    run(&world, &mut store, &handler).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["item", "s/item"]);
    for key in ["item", "item#2"] {
        assert!(store.answer(key, &num(1)));
        run(&world, &mut store, &handler).await.assert_at_rest();
        // Without changes nothing is published or withdrawn.
        let mut again = Instance::new(&world, &store, &handler);
        again.run(&mut store).await.assert_at_rest();
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
async fn dropped_ask_is_withdrawn() {
    let (world, mut store) = (World::new(), Store::new());
    let (go, wait) = gate();
    let handler = handler_with(wait, |cx, wait| async move {
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
    // An answer to a withdrawn ask is ignored.
    instance.flow.answer("stop", &num(9).to_string());
    instance.answer(&mut store, "n", &num(1));
    assert_eq!(instance.run(&mut store).await.out(), 6);
}

#[tokio::test]
async fn ask_is_withdrawn_while_other_work_continues() {
    for replayed in [false, true] {
        let (world, mut store) = (World::new(), Store::new());
        let (first, wait) = gate();
        let (_second, wait_more) = gate();
        let handler = handler_with((wait, wait_more), |cx, (wait, wait_more)| async move {
            let ask = cx.elicit::<Num>("n", "?");
            // Nothing else changes on the drop.
            select(ask, pin!(pass(&wait))).await;
            pass(&wait_more).await;
            ok(1)
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
            (&["n".into()][..], AfterWrite::Continue)
        );
        assert_eq!(store.all_keys(), ["n"]);
    }
}

#[tokio::test]
async fn asks_that_lose_in_every_replay_use_no_new_keys() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move {
        let step = pin!(cx.step("s", async { ok(5) }));
        let ask = cx.elicit::<Num>("n", "?");
        let Either::Right((first, ask)) = select(ask, step).await else {
            panic!("the ask has no answer");
        };
        drop(ask);
        // Another ask with the name of the dropped one.
        ok(first? + cx.elicit::<Num>("n", "?").await?.v)
    });
    run(&world, &mut store, &handler).await.assert_at_rest();
    let keys: Vec<String> = store.open.keys().cloned().collect();
    let size = store::encode(&store.snapshot()).len();
    for _ in 0..5 {
        run(&world, &mut store, &handler).await.assert_at_rest();
        assert_eq!(store::encode(&store.snapshot()).len(), size);
    }
    assert_eq!(store.open_keys(), keys);
    store.answer(&keys[0], &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 6);
}

#[tokio::test]
async fn asks_of_an_earlier_run_are_withdrawn_at_rest() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let asks = |names: &'static [&'static str], book: &Book| {
        handler_with(book.clone(), move |cx, book| async move {
            cx.step("a", write_line(&book, "a")).await?;
            cx.step("b", write_line(&book, "b")).await?;
            join_all(names.iter().map(|name| cx.elicit::<Num>(*name, "?"))).await;
            ok(1)
        })
    };
    let mut earlier = Instance::new(&world, &store, &asks(&["m", "n"], &book));
    earlier.run(&mut store).await.assert_at_rest();
    // The later version has one more step.
    let later = handler(|cx| async move {
        cx.step("c", async { ok(1) }).await?;
        cx.step("d", async { ok(1) }).await?;
        ok(cx.elicit::<Num>("n", "?").await?.v)
    });
    let mut instance = Instance::new(&world, &store, &later);
    let first = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&first.withdrawn[..], first.then),
        (&[][..], AfterWrite::Continue)
    );
    let second = instance.next_write(&mut store).await.unwrap();
    assert_eq!(
        (&second.withdrawn[..], second.asks.len()),
        (&["m".into()][..], 0)
    );
    assert!(second.is_at_rest());
    assert_eq!(store.open_keys(), ["n"]);
}

/// Asks `n`, and `m` after a gate.
fn asks_around_a_gate(
    wait: &watch::Receiver<bool>,
) -> impl Fn(Cx) -> refrain_core::HandlerFuture + use<> {
    handler_with(wait.clone(), |cx, wait| async move {
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
    })
}

#[tokio::test]
async fn ask_after_a_foreign_future_keeps_its_key() {
    let (world, mut store) = (World::new(), Store::new());
    let (go, wait) = gate();
    let handler = asks_around_a_gate(&wait);
    go.send(true).unwrap();
    run(&world, &mut store, &handler).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["m", "n"]);
    go.send(false).unwrap();
    store.answer("n", &num(1));
    let mut instance = Instance::new(&world, &store, &handler);
    let stop = instance.run(&mut store).await;
    assert!(
        matches!(
            stop,
            Stop::Rests {
                may_progress: true,
                ..
            }
        ),
        "{stop:?}"
    );
    assert_eq!(store.open_keys(), ["m", "o"], "m may be asked again");
    go.send(true).unwrap();
    instance.run(&mut store).await.assert_at_rest();
    instance.answer(&mut store, "m", &num(2));
    instance.answer(&mut store, "o", &num(3));
    assert_eq!(instance.run(&mut store).await.out(), 42);
    assert_eq!(store.all_keys(), ["n", "m", "o"]);
}

#[tokio::test]
async fn task_suspended_during_a_foreign_future_rests() {
    let (world, mut store) = (World::new(), Store::new());
    let (_go, wait) = gate();
    let handler = asks_around_a_gate(&wait);
    let mut instance = Instance::new(&world, &store, &handler);
    instance.run(&mut store).await;
    let write = instance.flow.suspend();
    let rest = AfterWrite::Rest {
        wake: None,
        may_progress: false,
    };
    assert_eq!(write.then, rest);
    store.commit(&write).unwrap();
    assert_eq!(store.open_keys(), ["n"]);
}

#[tokio::test]
async fn answers_are_ordered_by_asks_and_unknown_ones_ignored() {
    let (world, mut store) = (World::new(), Store::new());
    let handler = handler(|cx| async move {
        let (n, m) = (cx.elicit::<Num>("n", "?"), cx.elicit::<Num>("m", "?"));
        Ok(match select(m, n).await {
            Either::Left((m, _)) => format!("m {}", m?.v),
            Either::Right((n, _)) => format!("n {}", n?.v),
        })
    });
    run(&world, &mut store, &handler).await.assert_at_rest();
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
async fn explicit_style_works_in_a_task() {
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
    run(&world, &mut store, &handler).await.assert_at_rest();
    assert_eq!(store.all_keys(), ["n", "m"]);
    store.answer("n", &num(1));
    run(&world, &mut store, &handler).await.assert_at_rest();
    // An ask that stays open keeps its key; a new one gets another.
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
async fn too_many_concurrent_asks_are_a_fault() {
    let (mut world, mut store) = (World::new(), Store::new());
    world.limits.asks = 2;
    world.limits.rounds = 2;
    let many = handler(|cx| async move {
        join_all((0..3).map(|i| cx.elicit::<Num>(format!("n{i}"), "?"))).await;
        ok(0)
    });
    let stop = run(&world, &mut store, &many).await;
    assert!(stop.fault().message.contains("3 asks"), "{stop:?}");
    // Their answers must fit into the journal as well.
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
        run(&world, &mut store, &long).await.assert_at_rest();
        let key = store.open_keys()[0].to_owned();
        store.answer(&key, &num(1));
    }
    let stop = run(&world, &mut store, &long).await;
    assert_contains(&stop.fault().message, &["journal full: the limit of 3"]);
    world.limits.entries = 100;
    // A task has no limit of rounds.
    let long = handler(|cx| async move {
        let mut sum = 0;
        for _ in 0..5 {
            sum += cx.elicit::<Num>("n", "?").await?.v;
        }
        ok(sum)
    });
    let mut store = Store::new();
    for _ in 0..5 {
        run(&world, &mut store, &long).await.assert_at_rest();
        let key = store.open_keys()[0].to_owned();
        store.answer(&key, &num(1));
    }
    assert_eq!(run(&world, &mut store, &long).await.out(), 5);
}

#[tokio::test]
async fn ask_open_at_detach_gets_a_key_of_the_task() {
    let (world, book) = (World::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        let (n, detached) = join(cx.elicit::<Num>("n", "?"), cx.detach()).await;
        detached?;
        ok(n?.v + cx.step("a", write_line(&book, "a")).await? as i64)
    });
    let mut instance = Instance::with(env(&world), world.start(), &handler);
    assert!(matches!(instance.event().await, Some(Event::Detach)));
    let detachment = instance.flow.detachment();
    let mut store = Store::of(detachment.snapshot());
    instance.flow.become_task(&detachment, NOON + 1000);
    instance.run(&mut store).await.assert_at_rest();
    instance.answer(&mut store, "n", &num(-1));
    instance.run(&mut store).await.assert_at_rest();
    assert_eq!(store.all_keys(), ["n", "n.2"]);
    store.answer("n.2", &num(1));
    assert_eq!(run(&world, &mut store, &handler).await.out(), 2);
}
