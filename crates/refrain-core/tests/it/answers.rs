//! Answers: which are used, in which order, and invalid ones.

use crate::support::{
    Book, Num, RoundEnd, World, accept, assert_contains, handler, handler_with, num,
};
use futures_util::future::{Either, join, join_all, select};
use refrain_core::{
    Answer, AskError, Cx, ErrorKind, Field, Form, HandlerFuture, Incomplete, Outcome, StartError,
    ok,
};
use refrain_wire::{AnswerError, SamplingParams};
use serde_json::{Value, json};

#[tokio::test]
async fn invalid_answer_is_asked_again_with_the_reason() {
    let world = World::new();
    let book = Book::default();
    let handler = handler_with(book.clone(), |cx, book| async move {
        let n = cx.elicit::<Num>("n", "How many?").await;
        book.write(format!("{n:?}"));
        ok(n?.v)
    });
    let bad = [
        (
            json!({"action": "accept", "content": {"v": 1001}}),
            "v must be at most 1000",
        ),
        (json!({"action": "accept", "content": {}}), "v is required"),
        (json!({"action": "accept"}), "has no content"),
    ];
    let first = world.first(&handler).await;
    assert_eq!(first.message("n"), "How many?");
    let mut token = first.token();
    for (answer, reason) in &bad {
        let round = world
            .present(&handler, &token, &json!({ "n": answer }))
            .await;
        assert_eq!(round.keys(), ["n"]);
        let message = round.message("n");
        assert!(
            message.starts_with("How many?\n") && message.contains(reason),
            "{message}"
        );
        token = round.token();
    }
    assert_eq!(book.lines(), [""; 0], "the handler gets no invalid answer");
    let good = world.present(&handler, &token, &json!({"n": num(3)})).await;
    assert_eq!(good.out(), 3);
    assert_eq!(book.lines(), ["Ok(Num { v: 3 })"]);
}

#[tokio::test]
async fn too_many_invalid_answers_fail_the_ask_permanently() {
    let mut world = World::new();
    world.limits.retries = 2;
    let handler = handler(|cx| async move {
        let n = cx.elicit::<Num>("n", "How many?").await;
        let last = cx.elicit::<Num>("last", "?").await?.v;
        ok((format!("{n:?}"), last))
    });
    let mut round = world.first(&handler).await;
    for _ in 0..2 {
        round = world.next(&handler, &round, &json!({"n": num(-1)})).await;
        assert_eq!(round.keys(), ["n"]);
    }
    round = world.next(&handler, &round, &json!({"n": num(-2)})).await;
    assert_eq!(round.keys(), ["last"]);
    // A late valid answer has no effect.
    let answers = json!({"n": num(5), "last": num(6)});
    let out = world.next(&handler, &round, &answers).await.out();
    let expected = AskError::Invalid {
        name: "n".into(),
        reason: "v must be at least 0".into(),
    };
    assert_eq!(out, json!([format!("{:?}", Err::<Num, _>(expected)), 6]));
}

#[tokio::test]
async fn invalid_answer_does_not_block_the_others() {
    let world = World::new();
    let book = Book::default();
    let handler = handler_with(book.clone(), |cx, book| async move {
        // Created in one order, awaited in the other.
        let a = cx.elicit::<Num>("a", "?");
        let b = cx.elicit::<Num>("b", "?");
        let after_b = async {
            let b = b.await?.v;
            book.write(format!("b is {b}"));
            ok(b + cx.elicit::<Num>("c", "?").await?.v)
        };
        let (b, a) = join(after_b, a).await;
        ok((a?.v, b?))
    });
    let first = world.first(&handler).await;
    assert_eq!(first.keys(), ["a", "b"]);
    let answers = json!({"a": num(-1), "b": num(2)});
    let second = world.next(&handler, &first, &answers).await;
    assert_eq!(
        second.keys(),
        ["a", "c"],
        "the branch of b continues in the same round"
    );
    assert_eq!(book.lines(), ["b is 2"]);
    let answers = json!({"a": num(1), "c": num(3)});
    assert_eq!(
        world.next(&handler, &second, &answers).await.out(),
        json!([1, 5])
    );
}

#[tokio::test]
async fn declined_form_is_an_answer() {
    let world = World::new();
    let elicit = handler(|cx| async move { ok(cx.elicit::<Num>("n", "?").await?.v) });
    let ask = handler(|cx| async move {
        let answer = cx.ask::<Num>("n", "?").await?;
        let again = cx.ask::<Num>("last", "?").await?;
        ok(format!("{answer:?} {again:?}"))
    });
    for (action, error, outcome) in [
        (
            "decline",
            AskError::Declined { name: "n".into() },
            "Declined",
        ),
        (
            "cancel",
            AskError::Cancelled { name: "n".into() },
            "Cancelled",
        ),
    ] {
        let answers = json!({"n": {"action": action}});
        let token = world.first(&elicit).await.token();
        let round = world.present(&elicit, &token, &answers).await;
        assert_eq!(*round.error().kind(), ErrorKind::Ask(error.clone()));
        assert_eq!(round.error().as_ask().unwrap().name(), "n");
        let token = world.first(&ask).await.token();
        let round = world.present(&ask, &token, &answers).await;
        // A later answer to `n` changes nothing.
        let answers = json!({"n": num(1), "last": num(2)});
        let round = world.next(&ask, &round, &answers).await;
        assert_eq!(round.out(), format!("{outcome} Accepted(Num {{ v: 2 }})"));
    }
}

#[tokio::test]
async fn first_request_may_contain_answers() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let (a, b) = join(cx.elicit::<Num>("a", "?"), cx.roots("b")).await;
        ok((a?.v, b?.len(), cx.elicit::<Num>("c", "?").await?.v))
    });
    let answers = json!({"zzz": {"any": "thing"}, "c": num(3), "a": num(1), "b": {"roots": []}});
    assert_eq!(
        world.first_with(&handler, &answers).await.out(),
        json!([1, 0, 3])
    );
    // A missing answer is asked for; a used one is in the token.
    let part = json!({"a": num(1), "b": {"roots": []}});
    let round = world.first_with(&handler, &part).await;
    assert_eq!(round.keys(), ["c"]);
    let round = world.next(&handler, &round, &json!({"c": num(4)})).await;
    assert_eq!(round.out(), json!([1, 0, 4]));
    // An invalid answer is asked again; a malformed one is the client's error.
    let round = world
        .first_with(&handler, &json!({"a": num(-1), "b": {"roots": []}}))
        .await;
    assert_eq!(round.keys(), ["a"]);
    assert!(round.message("a").contains("must be at least 0"));
    let fault = world
        .first_with(&handler, &json!({"a": {"nonsense": 1}}))
        .await;
    assert!(fault.fault().bad_answer);
    assert_contains(&fault.fault().message, &["inputResponses[\"a\"]"]);
}

#[tokio::test]
async fn answers_to_unknown_keys_are_ignored() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let a = cx.elicit::<Num>("a", "?").await?.v;
        ok((a, cx.elicit::<Num>("b", "?").await?.v))
    });
    let token = world.first(&handler).await.token();
    // An answer to a future ask is ignored.
    let answers = json!({"b": num(9), "constructor": {"x": 1}, "": {}, "a": num(1)});
    let round = world.present(&handler, &token, &answers).await;
    assert_eq!(round.keys(), ["b"]);
    // So is an answer to a settled ask.
    let answers = json!({"a": num(7), "b": num(2)});
    assert_eq!(
        world.next(&handler, &round, &answers).await.out(),
        json!([1, 2])
    );
}

#[tokio::test]
async fn missing_answer_is_asked_again() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let asks = ["a", "b", "c"].map(|name| cx.elicit::<Num>(name, name));
        let all: Result<Vec<Num>, AskError> = join_all(asks).await.into_iter().collect();
        ok(all?.into_iter().map(|n| n.v).collect::<Vec<_>>())
    });
    let round = world.first(&handler).await;
    assert_eq!(round.keys(), ["a", "b", "c"]);
    let round = world.next(&handler, &round, &json!({})).await;
    assert_eq!(round.keys(), ["a", "b", "c"]);
    assert_eq!(
        round.message("a"),
        "a",
        "a missing answer is not a rejected one"
    );
    let round = world.next(&handler, &round, &json!({"b": num(2)})).await;
    assert_eq!(round.keys(), ["a", "c"]);
    let answers = json!({"a": num(1), "b": num(99), "c": num(3)});
    assert_eq!(
        world.next(&handler, &round, &answers).await.out(),
        json!([1, 2, 3])
    );
}

#[tokio::test]
async fn malformed_answer_is_rejected_with_its_key() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let asks = join(cx.elicit::<Num>("form", "?"), cx.roots("roots"));
        let (_, _) = join(asks, cx.sample("model", SamplingParams::new(1))).await;
        ok(0)
    });
    let token = world.first(&handler).await.token();
    for (key, answer) in [
        ("form", json!({"action": "perhaps"})),
        ("form", json!({"content": {"v": 1}})),
        ("form", json!({"action": "accept", "content": [1]})),
        ("roots", json!({"roots": [{}]})),
        ("roots", json!({"roots": 5})),
        ("model", json!({"role": "assistant"})),
    ] {
        let round = world
            .present(&handler, &token, &json!({ key: answer }))
            .await;
        let RoundEnd::Rejected(StartError::Shape { key: named, source }) = &round.end else {
            panic!("{answer}: {:?}", round.end)
        };
        assert_eq!(named, key);
        assert!(matches!(
            source,
            AnswerError::NotAnObject(_) | AnswerError::Shape { .. }
        ));
    }
}

#[tokio::test]
async fn answers_are_ordered_by_their_asks() {
    let world = World::new();
    for names in [["a", "b"], ["b", "a"]] {
        let handler = handler(move |cx| async move {
            let [one, two] = names.map(|name| cx.elicit::<Num>(name, "?"));
            // Polled in another order than created.
            let first = match select(two, one).await {
                Either::Left((n, _)) => (names[1], n?.v),
                Either::Right((n, _)) => (names[0], n?.v),
            };
            ok((first, cx.elicit::<Num>("last", "?").await?.v))
        });
        let first = world.first(&handler).await;
        assert_eq!(first.keys(), names);
        for text in [
            r#"{"a":{"action":"accept","content":{"v":1}},"b":{"action":"accept","content":{"v":1}}}"#,
            r#"{"b":{"action":"accept","content":{"v":1}},"a":{"action":"accept","content":{"v":1}}}"#,
        ] {
            let token = first.token();
            let second = world.request_text(&handler, Some(&token), text, None).await;
            let last = world
                .next(&handler, &second, &json!({"last": num(0)}))
                .await;
            assert_eq!(last.out(), json!([[names[0], 1], 0]), "{text}");
        }
    }
}

#[tokio::test]
async fn form_can_be_built_at_run_time() {
    let world = World::new();
    let handler = handler(|cx| async move {
        let form = Form::new([Field::one_of("colour", ["red", "blue"])]);
        match cx.ask_form("pick", "Which?", &form).await? {
            Answer::Accepted(content) => ok(content),
            other => ok(json!(format!("{other:?}"))),
        }
    });
    let token = world.first(&handler).await.token();
    let bad = json!({"pick": accept(&json!({"colour": "green"}))});
    let round = world.present(&handler, &token, &bad).await;
    assert!(round.message("pick").contains("must be one of red, blue"));
    let good = json!({"pick": accept(&json!({"colour": "blue", "more": 1}))});
    let out = world.next(&handler, &round, &good).await.out();
    assert_eq!(out, json!({"colour": "blue", "more": 1}));
}

#[tokio::test]
async fn malformed_url_is_rejected() {
    let world = World::new();
    for (url, good) in [
        ("https://example.com/pay?order=1&to=%C3%A4#top", true),
        ("http://localhost:8080", true),
        ("app+pay.x-1:order/1", true),
        ("https://[::1]/", true),
        ("", false),
        ("example.com/pay", false),
        ("/pay", false),
        ("https:", false),
        ("://example.com", false),
        ("1http://example.com", false),
        ("https://example.com/a b", false),
        ("https://example.com/\n", false),
        ("https://example.com/<order>", false),
        ("https://exämple.com", false),
    ] {
        let straight = handler(move |cx| async move {
            cx.elicit_url("pay", "Please pay", url, || async { ok(true) })
                .await?;
            ok(0)
        });
        let explicit = move |_: Cx| -> HandlerFuture {
            let reply = Incomplete::new().url("pay", "Please pay", url);
            Box::pin(async move { Ok(Outcome::Incomplete(reply)) })
        };
        let (straight, explicit) = (world.first(&straight).await, world.first(&explicit).await);
        if good {
            assert_eq!(
                (straight.keys(), explicit.keys()),
                (vec!["pay"], vec!["pay"])
            );
            continue;
        }
        for message in [&straight.fault().message, &explicit.error().to_string()] {
            assert_contains(message, &["malformed URL for \"pay\""]);
        }
    }
}

#[tokio::test]
async fn url_is_asked_again_until_the_check_succeeds() {
    let world = World::new();
    let book = Book::default();
    let handler = handler_with(book.clone(), |cx, book| async move {
        let done = || {
            let book = book.clone();
            async move {
                book.write("checked");
                ok(book.count("paid") > 0)
            }
        };
        cx.elicit_url("pay", "Please pay", "https://example.com/pay", done)
            .await?;
        ok(cx.elicit::<Num>("last", "?").await?.v)
    });
    let yes: Value = json!({"action": "accept"});
    let first = world.first(&handler).await;
    assert_eq!(book.count("checked"), 0, "no check before consent");
    let second = world.next(&handler, &first, &json!({"pay": yes})).await;
    assert_eq!(second.keys(), ["pay#2"]);
    assert!(second.message("pay#2").contains("not been completed"));
    assert_eq!(book.count("checked"), 1);
    book.write("paid");
    let third = world.next(&handler, &second, &json!({"pay#2": yes})).await;
    assert_eq!(third.keys(), ["last"]);
    assert_eq!(book.count("checked"), 2, "an earlier check does not repeat");
    let last = world.next(&handler, &third, &json!({"last": num(4)})).await;
    assert_eq!(last.out(), 4);
    assert_eq!(book.count("checked"), 2);
    let refused = world
        .next(&handler, &first, &json!({"pay": {"action": "decline"}}))
        .await;
    assert!(matches!(
        refused.error().as_ask(),
        Some(AskError::Declined { .. })
    ));
}
