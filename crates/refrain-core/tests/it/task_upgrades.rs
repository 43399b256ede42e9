//! Tasks that one version of a handler starts and another finishes.

use crate::support::store::{Instance, Store, run};
use crate::support::{Book, Name, Num, Small, World, accept, handler, handler_with, num};
use futures_util::future::join;
use refrain_core::{Cx, Elicit, HandlerFuture, ok};
use serde_json::json;
use std::time::Duration;

/// Asks `n`, then two more numbers.
fn version<T: Elicit + Send + 'static>(read: fn(T) -> i64) -> impl Fn(Cx) -> HandlerFuture {
    handler(move |cx| async move {
        let mut sum = read(cx.elicit::<T>("n", "How many?").await?);
        for _ in 0..2 {
            sum += cx.elicit::<Num>("more", "?").await?.v;
        }
        ok(sum)
    })
}

#[tokio::test]
async fn ask_with_a_new_schema_replaces_the_open_ask() {
    let (world, mut store) = (World::new(), Store::new());
    let (v1, v2) = (version::<Num>(|n| n.v), version::<Small>(|n| n.v));
    run(&world, &mut store, &v1).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n"]);
    let mut instance = Instance::new(&world, &store, &v2);
    instance.run(&mut store).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n.2"]);
    assert_eq!(store.withdrawn, ["n"]);
    // The old version again: `n` was withdrawn, and `n.2` has the new schema.
    run(&world, &mut store, &v1).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n.3"]);
    store.answer("n.3", &num(7));
    // The answer to the old ask matches the new schema and is used.
    run(&world, &mut store, &v2).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["more"]);
    store.answer("more", &num(1));
    run(&world, &mut store, &v1).await.assert_at_rest();
    store.answer("more#2", &num(1));
    assert_eq!(run(&world, &mut store, &v2).await.out(), 9);
    assert_eq!(store.all_keys(), ["n", "n.2", "n.3", "more", "more#2"]);
}

#[tokio::test]
async fn mismatched_answer_to_the_old_schema_is_asked_again() {
    let (world, mut store) = (World::new(), Store::new());
    let (v1, v2) = (version::<Num>(|n| n.v), version::<Small>(|n| n.v));
    run(&world, &mut store, &v1).await.assert_at_rest();
    store.answer("n", &num(70));
    run(&world, &mut store, &v2).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n.2"]);
    assert_eq!(
        store.message("n.2"),
        "How many?",
        "the answer matched the old schema"
    );
    // The old version does not need the ask of the new one.
    run(&world, &mut store, &v1).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["more"]);
    run(&world, &mut store, &v2).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n.3"]);
    store.answer("n.3", &num(7));
    // From now on neither asks again.
    for (version, key) in [(0, "more.2"), (1, "more#2")] {
        if version == 0 {
            run(&world, &mut store, &v2).await.assert_at_rest();
        } else {
            run(&world, &mut store, &v1).await.assert_at_rest();
        }
        assert_eq!(store.open_keys(), [key]);
        store.answer(key, &num(1));
    }
    let by_old = Instance::new(&world, &store, &v1).run(&mut store).await;
    assert_eq!(by_old.out(), 72);
    let by_new = Instance::new(&world, &store, &v2).run(&mut store).await;
    assert_eq!(by_new.out(), 9);
}

#[tokio::test]
async fn late_answer_to_the_old_key_is_used_if_it_matches() {
    let (world, mut store) = (World::new(), Store::new());
    let (v1, v2) = (version::<Num>(|n| n.v), version::<Small>(|n| n.v));
    run(&world, &mut store, &v1).await.assert_at_rest();
    let mut instance = Instance::new(&world, &store, &v2);
    // The answer arrived before the new version made its ask.
    instance.answer(&mut store, "n", &num(5));
    instance.run(&mut store).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["more"]);
    assert_eq!(store.all_keys(), ["n", "more"]);
}

#[tokio::test]
async fn numbered_key_does_not_collide_with_a_named_one() {
    let (world, mut store) = (World::new(), Store::new());
    run(&world, &mut store, &version::<Num>(|n| n.v))
        .await
        .assert_at_rest();
    let later = handler(|cx| async move {
        let (other, n) = join(cx.elicit::<Num>("n.2", "?"), cx.elicit::<Small>("n", "?")).await;
        ok(other?.v * 10 + n?.v)
    });
    run(&world, &mut store, &later).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["n.2", "n.3"]);
    store.answer("n.2", &num(2));
    store.answer("n.3", &num(3));
    assert_eq!(run(&world, &mut store, &later).await.out(), 23);
}

#[tokio::test]
async fn added_steps_run_and_completed_ones_do_not_repeat() {
    let (world, mut store, book) = (World::new(), Store::new(), Book::default());
    let make = |steps: &'static [&'static str], sleeps: bool| {
        handler_with(book.clone(), move |cx, book| async move {
            if sleeps {
                cx.sleep(Duration::from_secs(10)).await;
            }
            for name in steps {
                let work = async {
                    book.write(*name);
                    ok(1)
                };
                cx.step(*name, work).await?;
            }
            ok(cx.elicit::<Num>("n", "?").await?.v)
        })
    };
    let (v1, v2) = (make(&["a", "b"], false), make(&["c", "b", "d"], true));
    run(&world, &mut store, &v1).await.assert_at_rest();
    run(&world, &mut store, &v2).await.assert_at_rest();
    assert_eq!(book.lines(), ["a", "b"], "the new version sleeps first");
    assert_eq!(store.open_keys(), [""; 0], "and does not ask yet");
    world.clock.advance(10);
    run(&world, &mut store, &v2).await.assert_at_rest();
    assert_eq!(book.lines(), ["a", "b", "c", "d"]);
    let key = store.open_keys()[0].to_owned();
    store.answer(&key, &num(3));
    assert_eq!(run(&world, &mut store, &v1).await.out(), 3);
    assert_eq!(book.lines(), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn removed_asks_are_withdrawn_and_their_answers_kept() {
    let (world, mut store) = (World::new(), Store::new());
    let name = |name: &str| accept(&json!({ "name": name }));
    let accounts = |one: &'static str, two: &'static str| {
        handler(move |cx| async move {
            let (one, two) = join(cx.elicit::<Name>(one, "?"), cx.elicit::<Name>(two, "?")).await;
            cx.elicit::<Num>("sure", "?").await?;
            ok(format!("{} {}", one?.name, two?.name))
        })
    };
    let (v1, v2) = (
        accounts("github", "google"),
        accounts("github", "microsoft"),
    );
    run(&world, &mut store, &v1).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["github", "google"]);
    run(&world, &mut store, &v2).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["github", "microsoft"]);
    assert_eq!(store.withdrawn, ["google"]);
    for key in ["github", "microsoft"] {
        store.answer(key, &name(key));
    }
    run(&world, &mut store, &v1).await.assert_at_rest();
    assert_eq!(store.open_keys(), ["google.2"], "other answers are kept");
    store.answer("google.2", &name("goo"));
    run(&world, &mut store, &v1).await.assert_at_rest();
    store.answer("sure", &num(1));
    let by_new = Instance::new(&world, &store, &v2).run(&mut store).await;
    assert_eq!(by_new.out(), "github microsoft");
}
