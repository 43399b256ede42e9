//! The rounds of a live call.

use super::*;
use refrain_core::Source;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

#[tokio::test]
async fn wrapped_in_steps_each_mutation_is_made_once_over_several_instances() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(3, || builder(&ledger, &keys), false).await;
    let balancer = balancer(&instances).await;
    let asks = send(&balancer, &first("wrapped")).await;
    let done = send(&balancer, &second("wrapped", &token(&asks))).await;
    assert_eq!(text(&done), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn at_its_own_instance_a_handler_goes_on_where_it_was() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("twice")).await.reply();
    assert_eq!(asked(&asks), ["first"]);
    let with_progress = first("twice")
        .again(&token(&asks), json!({"first": login("a"), "other": {}}))
        .meta("progressToken", json!("p"));
    // The first round did not want to hear of progress; this one does.
    let events = instance.send(&with_progress).await.events();
    assert_eq!(events[0]["params"]["progressToken"], "p");
    let next = &events[1];
    assert_eq!(asked(next), ["second", "third"]);
    // One of two: the other is asked again.
    let half = first("twice").again(&token(next), json!({"third": login("c")}));
    let rest = instance.send(&half).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    // None at all: as before.
    let none = first("twice").again(&token(&rest), json!({}));
    let rest = instance.send(&none).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    let all = first("twice").again(&token(&rest), json!({"second": login("b")}));
    assert_eq!(text(&instance.send(&all).await.reply()), "abc");
    assert_eq!(ledger.lines(), ["first a", "others b c"]);
}

#[tokio::test]
async fn a_handler_may_go_on_without_its_answer() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("impatient")).await.reply();
    ledger.write("enough");
    ledger.has("said by nobody").await;
    let done = instance.send(&second("impatient", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "nobody");
    assert_eq!(ledger.lines(), ["enough", "said by nobody"]);
}

#[tokio::test]
async fn answers_of_another_shape_are_refused_and_the_call_goes_on() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("inline")).await.reply();
    let token_of = token(&asks);
    let odd = first("inline").again(&token_of, json!({"name": {"action": "perhaps"}}));
    let message = instance.send(&odd).await.error(200, -32602);
    names(&message, &["inputResponses", "name"]);
    let unfit = json!({"name": {"action": "accept", "content": {"name": 5}}});
    let unfit = first("inline").again(&token_of, unfit);
    let again = instance.send(&unfit).await.reply();
    let key = asked(&again)[0].to_owned();
    let message = &result(&again)["inputRequests"][&key]["params"]["message"];
    names(message.as_str().expect("a message"), &["not accepted"]);
    let fit = first("inline").again(&token(&again), json!({ key: login("Ada") }));
    assert_eq!(text(&instance.send(&fit).await.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn a_handler_in_the_explicit_style_is_run_again_when_all_is_answered() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("explicit")).await.reply();
    assert_eq!(asked(&asks), ["first", "second"]);
    let half = first("explicit").again(&token(&asks), json!({"first": login("a")}));
    let rest = instance.send(&half).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    assert_eq!(ledger.lines(), ["run"]);
    let all = first("explicit").again(&token(&rest), json!({"second": login("b")}));
    let done = instance.send(&all).await.reply();
    assert_eq!(text(&done), format!("{} {}", login("a"), login("b")));
    assert_eq!(ledger.lines(), ["run", "run"]);
}

#[tokio::test]
async fn a_cx_that_is_kept_past_its_call_asks_nobody() {
    for tool in ["keeps", "keeps_live"] {
        let (ledger, keys) = (Arc::<Ledger>::default(), keys());
        let instance = start(builder(&ledger, &keys)).await;
        assert_eq!(text(&instance.send(&first(tool)).await.reply()), "kept");
        let said = |name| format!("cannot ask {name:?}: its call has ended");
        ledger.has(&said("idea")).await;
        assert_eq!(ledger.lines(), [said("late"), said("idea")], "{tool}");
    }
}

/// A clock that holds up whoever looks at it for the n-th time, once it was told to.
#[derive(Default)]
struct Holding {
    looks: AtomicUsize,
    holds: AtomicBool,
    let_go: AtomicBool,
}

impl Source for Holding {
    fn now(&self) -> SystemTime {
        let one_less = |looks: usize| looks.checked_sub(1);
        if self
            .looks
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            == Ok(1)
        {
            self.holds.store(true, Ordering::SeqCst);
            // Not for ever: it may be the thread that all timers wait for.
            let begun = std::time::Instant::now();
            let short = || begun.elapsed() < Duration::from_millis(300);
            while !self.let_go.load(Ordering::SeqCst) && short() {
                std::thread::yield_now();
            }
        }
        SystemTime::now()
    }

    fn fill(&self, bytes: &mut [u8]) {
        SystemSource::new().fill(bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_handler_sees_the_answers_of_a_round_before_its_reply_is_made() {
    // At some of these looks the handler was polled, and nobody has seen yet that it rests.
    for looks in 1..=12 {
        sees_the_answers_when_held_up(looks).await;
    }
}

async fn sees_the_answers_when_held_up(looks: usize) {
    let ledger = Arc::<Ledger>::default();
    let (signals, _said) = signals();
    let clock = Arc::<Holding>::default();
    let tool = {
        let (signals, clock) = (signals.clone(), clock.clone());
        move |cx: Cx| {
            let (signals, clock) = (signals.clone(), clock.clone());
            async move {
                let one = async {
                    cx.elicit::<crate::support::Login>("a", "?").await?;
                    cx.elicit::<crate::support::Login>("c", "?").await
                };
                let two = cx.elicit::<crate::support::Login>("b", "?");
                let both = async { tokio::try_join!(one, two) };
                // While it sleeps, the clock is looked at whenever the handler has come to rest.
                let sleeps = cx.sleep(Duration::from_secs(3600));
                let arms = async {
                    signals.pass().await;
                    clock.looks.store(looks, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    biased;
                    () = sleeps => Ok("nothing".to_owned()),
                    both = both => both.map(|(c, b)| c.name + &b.name).map_err(Into::into),
                    () = arms => Ok("nothing".to_owned()),
                }
            }
        }
    };
    let builder = builder(&ledger, &keys()).tool(Tool::new("asks", tool).live());
    let instance = start(builder.source(clock.clone())).await;
    let asks = instance.send(&first("asks")).await.reply();
    assert_eq!(asked(&asks), ["a", "b"]);
    signals.open();
    let holds = async {
        while !clock.holds.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    // It may not be looked at so often.
    let _ = tokio::time::timeout(Duration::from_millis(100), holds).await;
    // A request with one of two answers comes.
    let mut connection = instance.connect().await;
    let half = first("asks").again(&token(&asks), json!({"a": login("x")}));
    connection.send(&half).await;
    let begun = async {
        while instance.server.running() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(50), begun).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    clock.let_go.store(true, Ordering::SeqCst);
    let rest = connection.response().await.reply();
    assert_eq!(asked(&rest), ["b", "c"], "it went on from the answer first");
    let all = first("asks").again(&token(&rest), json!({"b": login("y"), "c": login("z")}));
    assert_eq!(text(&instance.send(&all).await.reply()), "zy");
}

#[tokio::test]
async fn unwrapped_on_an_older_client_each_mutation_is_made_once() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let plain = Tool::new("plain", inline);
    let instance = start(builder(&ledger, &keys).tool(plain)).await;
    let session = Session::open(&instance).await;
    // Registered as live or not: it runs as plain code.
    for (id, tool) in [(1, "inline"), (2, "plain")] {
        let mut stream = session.stream(&call(id, tool, json!({}))).await;
        let asked = stream.next().await;
        assert_eq!(asked["params"]["message"], "Who are you?");
        assert_eq!(ledger.lines(), ["mutation 1"]);
        // Twice: the second finds nothing that waits.
        for _ in 0..2 {
            session.post(&filled_in(&asked, "Ada")).await;
        }
        let done = stream.next().await;
        assert_eq!(done["result"]["content"][0]["text"], "Done for Ada.");
        assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"], "{tool}");
        ledger.clear();
    }
}
