//! Asks: rounds, wire keys, scopes, limits, orphaned tasks.

use crate::support::{
    self, Book, Name, Num, World, assert_contains, assert_fault, handler, handler_with,
    many_threads, num, one_thread,
};
use futures_util::future::{join, join_all, join3};
use refrain_core::{AskError, Cx, ErrorKind, ok};
use refrain_wire::{Capabilities, Capability, SamplingParams, ToolChoice};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn joined_asks_are_sent_in_one_round() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let asks = join3(
            cx.elicit::<Num>("one", "?"),
            cx.roots("two"),
            cx.sample("three", SamplingParams::new(10).user("hi")),
        );
        let (one, two, three) = asks.await;
        Ok(json!([one?.v, two?.len(), three?.text()]))
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["one", "two", "three"]);
    assert_eq!(first.settles, 0, "no other task holds a Cx");
    let sampled =
        json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "hello"}});
    let answers =
        json!({"three": sampled, "two": {"roots": [{"uri": "file:///a"}]}, "one": num(1)});
    let second = world.next(&handler, &first, &answers).await;
    assert_eq!(second.out(), json!([1, 1, "hello"]));
    assert_eq!((second.stats.replayed, second.stats.steps), (3, 0));
}

fn check_spawned_asks_are_sent_in_one_round(runtime: &tokio::runtime::Runtime) {
    let world = World::new();
    let handler = handler(|cx| async move {
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..5 {
            let cx = cx.clone();
            tasks.spawn(async move {
                for _ in 0..i % 3 {
                    tokio::task::yield_now().await;
                }
                let answer = cx.elicit::<Num>(format!("ask {i}"), "?").await;
                answer.map(|answer| (i, answer.v))
            });
        }
        let mut all = Vec::new();
        while let Some(one) = tasks.join_next().await {
            all.push(one??);
        }
        all.sort_unstable();
        Ok(json!(all))
    });
    runtime.block_on(async {
        // With other threads the asks may need several rounds: one of 50 attempts must need only
        // one.
        for attempt in 0.. {
            let first = world.first(&handler).await;
            let mut keys = first.keys();
            keys.sort_unstable();
            if keys.len() < 5 && attempt < 50 {
                continue;
            }
            assert_eq!(keys, ["ask 0", "ask 1", "ask 2", "ask 3", "ask 4"]);
            let answers = keys.iter().enumerate();
            let answers = answers.map(|(i, key)| ((*key).to_owned(), num(i as i64 * 10)));
            let answers = serde_json::Value::Object(answers.collect());
            let second = world.next(&handler, &first, &answers).await;
            let expected = json!([[0, 0], [1, 10], [2, 20], [3, 30], [4, 40]]);
            assert_eq!(second.out(), expected);
            break;
        }
    });
}

#[test]
fn spawned_asks_are_sent_in_one_round_on_one_thread() {
    check_spawned_asks_are_sent_in_one_round(&one_thread());
}

#[test]
fn spawned_asks_are_sent_in_one_round_on_many_threads() {
    check_spawned_asks_are_sent_in_one_round(&many_threads());
}

#[tokio::test]
async fn handler_cannot_swallow_a_suspension() {
    let (world, book) = (World::new(), Book::default());
    let handler = handler_with(book.clone(), |cx, book| async move {
        let _ = cx.elicit::<Num>("sure", "?").await;
        book.write("after let _");
        let n = cx.elicit::<Num>("n", "?").await.map_or(0, |n| n.v);
        book.write("after map_or");
        cx.elicit::<Num>("m", "?").await.unwrap_or(Num { v: 1 });
        book.write("after unwrap_or");
        cx.elicit::<Num>("o", "?").await.ok();
        Ok(n)
    });
    let first = world.first(&handler).await;
    assert_eq!(book.lines(), [""; 0]);
    let second = world.next(&handler, &first, &json!({"sure": num(1)})).await;
    assert_eq!(book.lines(), ["after let _"]);
    world.next(&handler, &second, &json!({"n": num(7)})).await;
    assert_eq!(book.lines()[1..], ["after let _", "after map_or"]);
}

fn check_orphaned_task_ends_quietly(runtime: &tokio::runtime::Runtime) {
    let (world, book) = (World::new(), Book::default());
    let ended = Arc::new(std::sync::Mutex::new(None));
    let (written, kept) = (book.clone(), ended.clone());
    let (go, wait) = tokio::sync::watch::channel(false);
    let handler = handler(move |cx| {
        let (book, mut wait) = (written.clone(), wait.clone());
        let orphan = cx.clone();
        let task = tokio::spawn(async move {
            wait.wait_for(|go| *go).await.unwrap();
            let _ = orphan.elicit::<Num>("late", "?").await;
            book.write("effect");
        });
        *kept.lock().unwrap() = Some(task);
        async move { Ok(cx.elicit::<Num>("now", "?").await?.v) }
    });
    runtime.block_on(async {
        let first = world.first(&handler).await;
        assert_eq!(first.keys(), ["now"]);
        let task = ended.lock().unwrap().take().unwrap();
        go.send(true).unwrap();
        let end = tokio::time::timeout(Duration::from_secs(20), task).await;
        let end = end.expect("the task ends").unwrap_err();
        assert!(
            end.is_panic(),
            "the task ends by unwinding, without its effect"
        );
    });
    assert_eq!(book.lines(), [""; 0]);
}

#[test]
fn orphaned_task_ends_quietly_on_one_thread() {
    check_orphaned_task_ends_quietly(&one_thread());
}

#[test]
fn orphaned_task_ends_quietly_on_many_threads() {
    check_orphaned_task_ends_quietly(&many_threads());
}

#[tokio::test]
async fn orphaned_ask_ends_with_the_suspension() {
    let (world, book) = (World::new(), Book::default());
    let kept = Arc::new(std::sync::Mutex::new(None));
    let (written, keeps) = (book.clone(), kept.clone());
    let handler = handler(move |cx| {
        let (book, orphan) = (written.clone(), cx.clone());
        let task = tokio::spawn(async move {
            let _ = orphan.elicit::<Num>("b", "?").await;
            book.write("effect");
        });
        *keeps.lock().unwrap() = Some(task);
        async move { Ok(cx.elicit::<Num>("a", "?").await?.v) }
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["a", "b"]);
    let task = kept.lock().unwrap().take().unwrap();
    let end = tokio::time::timeout(Duration::from_secs(20), task).await;
    assert!(end.expect("the task ends").unwrap_err().is_panic());
    assert_eq!(book.lines(), [""; 0]);
}

#[tokio::test]
async fn concurrent_use_of_a_name_is_a_fault_with_its_location() {
    let world = World::new();
    let line = line!() + 3;
    let asks = handler(|cx| async move {
        let one = cx.elicit::<Num>("x", "?");
        let two = cx.elicit::<Num>("x", "?");
        let (one, _) = join(one, two).await;
        Ok(one.map_or(0, |one| one.v))
    });
    let fault = world.first(&asks).await.fault().clone();
    assert_contains(&fault.message, &["\"x\""]);
    let location = fault.location.expect("a location");
    assert_eq!((location.file(), location.line()), (file!(), line));
    assert!(!fault.bad_answer);
    let steps = handler(|cx| async move {
        let each = (0..2).map(|i| cx.step("s", async move { ok(i) }));
        join_all(each).await;
        ok(0)
    });
    let round = world.first(&steps).await;
    assert_fault(&round, &["\"s\""]);
    // The same name in two scopes, of two kinds, or one after the other, is allowed.
    let fine = handler(|cx| async move {
        let scope = cx.scope("inner");
        let (a, b) = join(
            cx.step("x", async { ok(1) }),
            scope.step("x", async { ok(2) }),
        )
        .await;
        let dropped = cx.step("x", async { ok(10) });
        drop(dropped);
        ok(a? + b? + cx.step("x", async { ok(3) }).await?)
    });
    assert_eq!(world.first(&fine).await.out(), 6);
}

#[tokio::test]
async fn ask_inside_a_step_is_a_fault() {
    let world = World::new();
    let inside = handler(|cx| async move {
        let inner = cx.clone();
        let step = cx.step("s", async move {
            let answer = inner.elicit::<Num>("x", "?").await;
            ok(answer.map_or(0, |answer| answer.v))
        });
        step.await
    });
    let round = world.first(&inside).await;
    assert_fault(&round, &["\"x\"", "inside a step"]);
    let nested = handler(|cx| async move {
        let inner = cx.clone();
        let step = cx.step("s", async move { inner.step("t", async { ok(1) }).await });
        ok(step.await.unwrap_or(0))
    });
    let round = world.first(&nested).await;
    assert_contains(&round.fault().message, &["\"t\"", "inside a step"]);
    let checkpoint = handler(|cx| async move {
        let inner = cx.clone();
        let step = cx.step("s", async move { inner.checkpoint("c", &1).await });
        ok(step.await.is_ok())
    });
    let round = world.first(&checkpoint).await;
    assert_fault(&round, &["\"c\""]);
}

#[tokio::test]
async fn loop_can_reuse_a_name() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(cx.elicit::<Num>("item", "?").await?.v);
        }
        ok(all)
    });
    let mut asked = Vec::new();
    let rounds = world
        .play(&handler, |key, _| {
            asked.push(key.to_owned());
            Some(num(asked.len() as i64))
        })
        .await;
    assert_eq!(asked, ["item", "item#2", "item#3"]);
    assert_eq!(rounds.last().unwrap().out(), json!([1, 2, 3]));
}

#[tokio::test]
async fn scopes_are_separate_namespaces() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let (left, right) = (cx.scope("left"), cx.scope("right"));
        let deep = left.scope("deep");
        let plain = cx.elicit::<Num>("x", "?");
        let asks = join_all([
            plain,
            left.elicit("x", "?"),
            right.elicit("x", "?"),
            deep.elicit("y", "?"),
        ]);
        let first: Result<Vec<Num>, AskError> = asks.await.into_iter().collect();
        let again = left.elicit::<Num>("x", "?").await?.v;
        let first: Vec<i64> = first?.into_iter().map(|n| n.v).collect();
        ok((first, again))
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["x", "left/x", "right/x", "y"]);
    // The asks `x` and `right/x` stay unanswered. The plain key `x` is not used again: the answer
    // of `left/x`, an ask of the same name, must not be confused with it.
    let answers = json!({"left/x": num(2), "y": num(4)});
    let second = world.next(&handler, &first, &answers).await;
    assert_eq!(second.keys(), ["x#1", "right/x"]);
    let answers = json!({"x#1": num(1), "right/x": num(3)});
    let third = world.next(&handler, &second, &answers).await;
    assert_eq!(third.keys(), ["left/x#2"]);
    let last = world
        .next(&handler, &third, &json!({"left/x#2": num(5)}))
        .await;
    assert_eq!(last.out(), json!([[1, 2, 3, 4], 5]));
}

#[tokio::test]
async fn wire_keys_never_collide() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let scope = cx.scope("a");
        cx.elicit::<Num>("x", "?").await?;
        cx.elicit::<Num>("y", "?").await?;
        // `x#2` and `a/y` are names here, and also the keys that other asks would get.
        let asks = join_all([
            cx.elicit::<Num>("x", "1"),
            cx.elicit::<Num>("x#2", "2"),
            cx.elicit::<Num>("a/y", "3"),
            scope.elicit::<Num>("y", "4"),
        ]);
        let roots = cx.roots("x#2");
        let (nums, roots) = join(asks, roots).await;
        let nums: Result<Vec<Num>, AskError> = nums.into_iter().collect();
        ok((
            nums?.into_iter().map(|n| n.v).collect::<Vec<_>>(),
            roots?.len(),
        ))
    });
    let rounds = world
        .play(&handler, |_, ask| match ask {
            refrain_wire::Ask::Roots => Some(json!({"roots": []})),
            ask => Some(num(support::message(ask).parse().unwrap_or(0))),
        })
        .await;
    let mut keys = rounds[2].keys();
    assert_eq!(keys.len(), 5);
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 5, "{keys:?}");
    assert_eq!(rounds[3].out(), json!([[1, 2, 3, 4], 0]));
}

#[tokio::test]
async fn empty_scope_name_is_a_scope() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let scope = cx.scope("");
        let (a, b) = join(cx.elicit::<Num>("x", "?"), scope.elicit::<Num>("x", "?")).await;
        scope.checkpoint("c", &1).await?;
        ok((a?.v, b?.v, cx.resume::<u8>("c")?, scope.resume::<u8>("c")?))
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["x", "/x"]);
    let answers = json!({"x": num(1), "/x": num(2)});
    let last = world.next(&handler, &first, &answers).await;
    assert_eq!(last.out(), json!([1, 2, null, 1]));
}

#[tokio::test]
async fn unsupported_ask_is_not_sent() {
    let mut world = World::new();
    world.capabilities = Capabilities::default();
    let look = handler(|cx| async move {
        let can = [
            cx.can_elicit(),
            cx.can_elicit_url(),
            cx.can_sample(),
            cx.can_list_roots(),
        ];
        let errors = [
            cx.elicit::<Num>("f", "?").await.unwrap_err(),
            cx.sample("s", SamplingParams::new(1)).await.unwrap_err(),
            cx.roots("r").await.unwrap_err(),
        ];
        let url = cx.elicit_url("u", "?", "https://example.com", || async { ok(true) });
        let url = url.await.unwrap_err();
        let mut lacks: Vec<String> = errors.map(|error| format!("{error:?}")).into();
        lacks.push(format!("{:?}", url.as_ask().unwrap()));
        ok((can, lacks))
    });
    let out = world.first(&look).await.out();
    assert_eq!(out[0], json!([false, false, false, false]));
    for (i, capability) in ["Form", "Sampling", "Roots", "Url"].iter().enumerate() {
        let expected = format!("capability: {capability}");
        assert!(out[1][i].as_str().unwrap().contains(&expected), "{out}");
    }
    let unhandled = handler(|cx| async move { Ok(cx.elicit::<Num>("f", "?").await?.v) });
    let round = world.first(&unhandled).await;
    let expected = ErrorKind::Ask(AskError::Unsupported {
        name: "f".into(),
        capability: Capability::Form,
    });
    assert_eq!(*round.error().kind(), expected);
    // Sampling with tools needs another capability.
    world.capabilities.sampling = true;
    let tools = handler(|cx: Cx| async move {
        let params = SamplingParams::new(1).tool_choice(ToolChoice::Auto);
        ok(cx.can_sample() && !cx.can_sample_with_tools() && cx.sample("s", params).await.is_err())
    });
    assert_eq!(world.first(&tools).await.out(), true);
    world.capabilities.form = true;
    assert_eq!(world.first(&unhandled).await.keys(), ["f"]);
}

#[tokio::test]
async fn exceeded_limits_are_faults() {
    let mut world = World::new();
    world.limits.asks = 2;
    world.limits.rounds = 3;
    let many = handler(|cx| async move {
        let asks = (0..3).map(|i| cx.elicit::<Num>(format!("n{i}"), "?"));
        join_all(asks).await;
        ok(0)
    });
    let round = world.first(&many).await;
    assert_contains(&round.fault().message, &["3 asks", "is 2"]);
    let long = handler(|cx| async move {
        loop {
            let _ = cx.elicit::<Name>("again", "?").await;
        }
        // Unreachable; it determines the type of the block.
        #[allow(unreachable_code)]
        ok(0)
    });
    let answer = |_: &str, _: &refrain_wire::Ask| Some(support::accept(&json!({"name": "x"})));
    let rounds = world.play(&long, answer).await;
    assert_eq!(rounds.len(), 3);
    assert_contains(&rounds[2].fault().message, &["3 rounds"]);
    world.limits.entries = 2;
    let full = handler(|cx| async move {
        for _ in 0..3 {
            let _ = cx.step("s", async { ok(1) }).await;
        }
        ok(0)
    });
    let round = world.first(&full).await;
    let parts = ["journal full: the limit of 2", "s#3"];
    assert_contains(&round.fault().message, &parts);
}
