//! Flows that a busy instance hands on to another.

use crate::support::{Book, Num, Switch, World, handler_with, num};
use futures_util::future::join;
use refrain_core::{Limits, ok};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

#[tokio::test]
async fn computation_is_handed_on_at_its_checkpoints() {
    let (mut world, book) = (World::new(), Book::default());
    let busy = Arc::new(Switch::default());
    world.pressure = Some(busy.clone());
    assert_eq!(world.limits.sheds, Limits::default().sheds);
    let handler = handler_with(book.clone(), |cx, book| async move {
        let from: u32 = cx.resume("n")?.unwrap_or(0);
        book.write(format!("from {from}"));
        for n in from..6 {
            cx.checkpoint("n", &(n + 1)).await?;
        }
        ok(cx.resume::<u32>("n")?)
    });
    busy.0.store(true, SeqCst);
    let first = world.first(&handler).await;
    assert!(first.is_handed_on() && first.keys().is_empty());
    let second = world.next(&handler, &first, &json!({})).await;
    assert!(second.is_handed_on());
    // A flow is handed on at most twice, however busy the fleet is.
    let last = world.next(&handler, &second, &json!({})).await;
    assert_eq!(last.out(), 6);
    assert_eq!(book.lines(), ["from 0", "from 1", "from 2"]);
}

#[tokio::test]
async fn flow_is_handed_on_between_its_steps() {
    let (mut world, book) = (World::new(), Book::default());
    let busy = Arc::new(Switch::default());
    world.pressure = Some(busy.clone());
    let state = (book.clone(), busy.clone());
    let handler = handler_with(state, |cx, (book, busy)| async move {
        let mut sum = 0;
        for n in 1..4 {
            let (book, busy) = (book.clone(), busy.clone());
            let work = async move {
                book.write(format!("step {n}"));
                busy.0.store(n == 2, SeqCst);
                ok(n)
            };
            sum += cx.step(format!("s{n}"), work).await?;
        }
        ok(sum)
    });
    let first = world.first(&handler).await;
    assert!(first.is_handed_on());
    assert_eq!(
        book.lines(),
        ["step 1", "step 2"],
        "no new step was started"
    );
    let second = world.next(&handler, &first, &json!({})).await;
    assert!(
        second.is_handed_on(),
        "still busy: the third step is not started here"
    );
    busy.0.store(false, SeqCst);
    let last = world.next(&handler, &second, &json!({})).await;
    assert_eq!(last.out(), 6);
    assert_eq!(book.lines(), ["step 1", "step 2", "step 3"]);
}

#[tokio::test]
async fn busy_instance_finishes_running_steps_and_asks() {
    let (mut world, book) = (World::new(), Book::default());
    let busy = Arc::new(Switch::default());
    world.pressure = Some(busy.clone());
    let handler = handler_with((book.clone(), busy), |cx, (book, busy)| async move {
        let quick = async move {
            busy.0.store(true, SeqCst);
            ok(1)
        };
        let slow = async move {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            book.write("slow is done");
            ok(2)
        };
        let steps = join(cx.step("slow", slow), cx.step("quick", quick));
        let ((slow, quick), n) = join(steps, cx.elicit::<Num>("n", "?")).await;
        ok(slow? + quick? + n?.v)
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["n"], "the round sends its ask");
    assert!(!first.is_handed_on());
    let last = world.next(&handler, &first, &json!({"n": num(3)})).await;
    assert_eq!(last.out(), 6);
    assert_eq!(book.lines(), ["slow is done"]);
}

#[tokio::test]
async fn value_is_not_delivered_in_the_round_that_hands_on() {
    let (mut world, book) = (World::new(), Book::default());
    let busy = Arc::new(Switch::default());
    world.pressure = Some(busy.clone());
    let state = (book.clone(), busy.clone());
    let handler = handler_with(state, |cx, (book, busy)| async move {
        let quick = async {
            let work = async {
                busy.0.store(true, SeqCst);
                ok(1)
            };
            cx.step("quick", work).await?;
            book.write("saw quick");
            ok(())
        };
        // Its wakes cause polls of `quick` as well.
        let slow = async {
            let work = async {
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                ok(2)
            };
            cx.step("slow", work).await?;
            book.write("saw slow");
            ok(())
        };
        let (slow, quick) = join(slow, quick).await;
        slow?;
        quick
    });
    let first = world.first(&handler).await;
    assert!(first.is_handed_on());
    assert_eq!(book.lines(), [""; 0]);
    let last = world.next(&handler, &first, &json!({})).await;
    assert_eq!((last.stats.replayed, last.stats.steps), (2, 0));
    assert_eq!(book.lines(), ["saw quick", "saw slow"]);
}
