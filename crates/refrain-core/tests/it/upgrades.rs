//! Two versions of a handler behind one load balancer.

use crate::support::{Book, Name, Num, Small, World, accept, handler, handler_with, num};
use futures_util::future::join;
use refrain_core::{AskError, Cx, Elicit, Field, Form, HandlerFuture, ok};
use serde_json::json;
use std::sync::OnceLock;

fn name(name: &str) -> serde_json::Value {
    accept(&json!({ "name": name }))
}

/// Asks for two accounts concurrently.
fn accounts(one: &'static str, two: &'static str) -> impl Fn(Cx) -> HandlerFuture {
    handler(move |cx| async move {
        let (one, two) = join(cx.elicit::<Name>(one, "?"), cx.elicit::<Name>(two, "?")).await;
        ok(format!("{} {}", one?.name, two?.name))
    })
}

#[tokio::test]
async fn ask_of_both_versions_is_asked_once() {
    let world = World::new();
    let v1 = accounts("github", "google");
    let v2 = accounts("github", "microsoft");
    let first = world.first(&v1).await;
    assert_eq!(first.keys(), ["github", "google"]);
    let answers = json!({"github": name("octo"), "google": name("goo")});
    let second = world.next(&v2, &first, &answers).await;
    assert_eq!(second.keys(), ["microsoft"]);
    let last = world
        .next(&v2, &second, &json!({"microsoft": name("micro")}))
        .await;
    assert_eq!(last.out(), "octo micro");
    // Back on the old version, its answers are still in the journal.
    let back = world
        .next(&v1, &second, &json!({"microsoft": name("micro")}))
        .await;
    assert_eq!(back.out(), "octo goo");
    assert_eq!(back.stats.replayed, 2);
}

fn version<T: Elicit + Send + 'static>(read: fn(T) -> i64) -> impl Fn(Cx) -> HandlerFuture {
    handler(move |cx| async move {
        let n = read(cx.elicit::<T>("n", "How many?").await?);
        let mut sum = n;
        for _ in 0..3 {
            sum += cx.elicit::<Num>("more", "?").await?.v;
        }
        ok((n, sum))
    })
}

#[tokio::test]
async fn answer_that_matches_the_new_schema_is_used() {
    let world = World::new();
    let (v1, v2) = (version::<Num>(|n| n.v), version::<Small>(|n| n.v));
    let first = world.first(&v1).await;
    let second = world.next(&v2, &first, &json!({"n": num(7)})).await;
    assert_eq!(second.keys(), ["more"]);
    let third = world.next(&v1, &second, &json!({"more": num(1)})).await;
    let fourth = world.next(&v2, &third, &json!({"more#2": num(1)})).await;
    let last = world.next(&v1, &fourth, &json!({"more#3": num(1)})).await;
    assert_eq!(last.out(), json!([7, 10]));
}

#[tokio::test]
async fn mismatched_answer_is_asked_again_per_version() {
    let world = World::new();
    let (v1, v2) = (version::<Num>(|n| n.v), version::<Small>(|n| n.v));
    let first = world.first(&v1).await;
    let second = world.next(&v2, &first, &json!({"n": num(70)})).await;
    assert_eq!(second.keys(), ["n"]);
    assert_eq!(
        second.message("n"),
        "How many?",
        "the answer matched the old schema"
    );
    let third = world.next(&v2, &second, &json!({"n": num(7)})).await;
    assert_eq!(third.keys(), ["more"]);
    // From now on the versions alternate, and neither asks again.
    let fourth = world.next(&v1, &third, &json!({"more": num(1)})).await;
    assert_eq!(fourth.keys(), ["more#2"]);
    let fifth = world.next(&v2, &fourth, &json!({"more#2": num(1)})).await;
    assert_eq!(fifth.keys(), ["more#3"]);
    let by_old = world.next(&v1, &fifth, &json!({"more#3": num(1)})).await;
    assert_eq!(by_old.out(), json!([70, 73]));
    let by_new = world.next(&v2, &fifth, &json!({"more#3": num(1)})).await;
    assert_eq!(by_new.out(), json!([7, 10]));
}

#[tokio::test]
async fn decline_stays_a_decline_in_the_new_version() {
    let world = World::new();
    let (v1, v2) = (version::<Num>(|n| n.v), version::<Small>(|n| n.v));
    let first = world.first(&v1).await;
    let second = world
        .next(&v2, &first, &json!({"n": {"action": "decline"}}))
        .await;
    assert!(matches!(
        second.error().as_ask(),
        Some(AskError::Declined { .. })
    ));
}

#[tokio::test]
async fn answer_that_does_not_decode_is_asked_again() {
    /// The schema says number, the type says byte.
    #[derive(Debug, serde::Deserialize)]
    struct Byte {
        v: u8,
    }
    impl Elicit for Byte {
        fn form() -> &'static Form {
            static FORM: OnceLock<Form> = OnceLock::new();
            FORM.get_or_init(|| Form::new([Field::number("v")]))
        }
    }
    let world = World::new();
    let (v1, v2) = (version::<Num>(|n| n.v), version::<Byte>(|n| i64::from(n.v)));
    let first = world.first(&v1).await;
    let second = world.next(&v2, &first, &json!({"n": num(300)})).await;
    assert_eq!(second.keys(), ["n"]);
    let third = world.next(&v2, &second, &json!({"n": num(30)})).await;
    assert_eq!(third.keys(), ["more"]);
    let back = world.next(&v1, &third, &json!({"more": num(1)})).await;
    assert_eq!(back.keys(), ["more#2"]);
}

#[tokio::test]
async fn entries_of_removed_steps_are_kept() {
    let (world, book) = (World::new(), Book::default());
    let make = |steps: &'static [&'static str]| {
        handler_with(book.clone(), move |cx, book| async move {
            for name in steps {
                let book = book.clone();
                let work = async move {
                    book.write(*name);
                    ok(1)
                };
                cx.step(*name, work).await?;
            }
            ok(cx.elicit::<Num>("n", "?").await?.v + cx.elicit::<Num>("m", "?").await?.v)
        })
    };
    let (v1, v2) = (make(&["a", "b"]), make(&["c", "b"]));
    let first = world.first(&v1).await;
    let second = world.next(&v2, &first, &json!({"n": num(1)})).await;
    assert_eq!(book.lines(), ["a", "b", "c"]);
    let third = world.next(&v1, &second, &json!({"m": num(2)})).await;
    assert_eq!(third.out(), 3);
    assert_eq!(book.lines(), ["a", "b", "c"], "no step ran again");
}
