//! Spawned tasks: the order of their journal entries, on one thread and on many.

use crate::support::{Book, Num, World, handler, handler_with, many_threads, num};
use futures_util::future::join;
use refrain_core::ok;
use serde_json::json;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;
use std::time::Duration;

#[tokio::test]
async fn spawned_task_receives_its_entries_in_order() {
    let (world, book) = (World::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        let task = async {
            let inner = cx.clone();
            let task = tokio::spawn(async move { inner.step("s", async { ok(1) }).await });
            task.await??;
            book.write("step");
            ok(())
        };
        let ask = async {
            cx.elicit::<Num>("a", "?").await?;
            book.write("answer");
            ok(())
        };
        let (ask, task) = join(ask, task).await;
        ask?;
        task
    });
    let first = world.first(&handler).await;
    world
        .next(&handler, &first, &json!({"a": num(1)}))
        .await
        .out();
    assert_eq!(book.lines(), ["step", "step", "answer"]);
}

#[test]
fn race_in_a_spawned_task_is_won_by_the_first_entry() {
    let world = World::new();
    let answered = Arc::new(AtomicBool::new(false));
    let slowly = answered.clone();
    let handler = handler(move |cx| {
        let slowly = slowly.clone();
        let task = tokio::spawn(async move {
            let inner = cx;
            let a = inner.elicit::<Num>("a", "?");
            let b = inner.elicit::<Num>("b", "?");
            // The driver, on another thread, can see that `b` is awaited and `a` is not yet.
            let pause = poll_fn(|_| {
                if slowly.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Poll::<()>::Pending
            });
            tokio::select! {
                biased;
                b = b => ok(("b", b?.v)),
                () = pause => unreachable!(),
                a = a => ok(("a", a?.v)),
            }
        });
        async move { task.await? }
    });
    let runtime = many_threads();
    for _ in 0..5 {
        answered.store(false, SeqCst);
        let token = runtime.block_on(async {
            // Both asks in one round; on many threads this may need another attempt.
            loop {
                let first = world.first(&handler).await;
                if first.keys().len() == 2 {
                    break first.token();
                }
            }
        });
        answered.store(true, SeqCst);
        let answers = json!({"a": num(1), "b": num(2)});
        let last = runtime.block_on(world.present(&handler, &token, &answers));
        assert_eq!(last.out(), json!(["a", 1]));
    }
}
