//! The rounds of a live call.

use super::*;
use refrain_core::Source;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

#[tokio::test]
async fn steps_run_each_effect_once_on_several_instances() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(3, || builder(&ledger, &keys), false).await;
    let balancer = balancer(&instances).await;
    let asks = send(&balancer, &first_round("wrapped")).await;
    let done = send(&balancer, &second_round("wrapped", &token(&asks))).await;
    assert_eq!(text(&done), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn handler_continues_on_its_instance() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first_round("twice")).await.reply();
    assert_eq!(asked(&asks), ["first"]);
    let with_progress = first_round("twice")
        .again(&token(&asks), json!({"first": accept("a"), "other": {}}))
        .meta("progressToken", json!("p"));
    // Only this round subscribes to progress.
    let events = instance.send(&with_progress).await.events();
    assert_eq!(events[0]["params"]["progressToken"], "p");
    let next = &events[1];
    assert_eq!(asked(next), ["second", "third"]);
    // With one of two answers, the other ask is repeated.
    let half = first_round("twice").again(&token(next), json!({"third": accept("c")}));
    let rest = instance.send(&half).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    // Without answers, the same ask is repeated.
    let none = first_round("twice").again(&token(&rest), json!({}));
    let rest = instance.send(&none).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    let all = first_round("twice").again(&token(&rest), json!({"second": accept("b")}));
    assert_eq!(text(&instance.send(&all).await.reply()), "abc");
    assert_eq!(ledger.lines(), ["first a", "others b c"]);
}

#[tokio::test]
async fn handler_can_continue_without_its_answer() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first_round("impatient")).await.reply();
    ledger.write("enough");
    ledger.wait_for("from timeout").await;
    let done = instance
        .send(&second_round("impatient", &token(&asks)))
        .await;
    assert_eq!(text(&done.reply()), "timeout");
    assert_eq!(ledger.lines(), ["enough", "from timeout"]);
}

#[tokio::test]
async fn malformed_answers_are_rejected_and_the_call_continues() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first_round("inline")).await.reply();
    let token_of = token(&asks);
    let malformed = first_round("inline").again(&token_of, json!({"name": {"action": "perhaps"}}));
    let message = instance.send(&malformed).await.error(200, -32602);
    assert_contains(&message, &["inputResponses", "name"]);
    let invalid = json!({"name": {"action": "accept", "content": {"name": 5}}});
    let invalid = first_round("inline").again(&token_of, invalid);
    let again = instance.send(&invalid).await.reply();
    let key = asked(&again)[0].to_owned();
    let message = &result(&again)["inputRequests"][&key]["params"]["message"];
    assert_contains(
        message.as_str().expect("the message is a string"),
        &["not accepted"],
    );
    let valid = first_round("inline").again(&token(&again), json!({ key: accept("Ada") }));
    assert_eq!(text(&instance.send(&valid).await.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn explicit_handler_runs_again_when_all_asks_are_answered() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first_round("explicit")).await.reply();
    assert_eq!(asked(&asks), ["first", "second"]);
    let half = first_round("explicit").again(&token(&asks), json!({"first": accept("a")}));
    let rest = instance.send(&half).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    assert_eq!(ledger.lines(), ["run"]);
    let all = first_round("explicit").again(&token(&rest), json!({"second": accept("b")}));
    let done = instance.send(&all).await.reply();
    assert_eq!(text(&done), format!("{} {}", accept("a"), accept("b")));
    assert_eq!(ledger.lines(), ["run", "run"]);
}

#[tokio::test]
async fn cx_kept_after_its_call_cannot_ask() {
    for tool in ["keeps", "keeps_live"] {
        let (ledger, keys) = (Arc::<Ledger>::default(), keys());
        let instance = start(builder(&ledger, &keys)).await;
        assert_eq!(
            text(&instance.send(&first_round(tool)).await.reply()),
            "kept"
        );
        let error = |name| format!("cannot ask {name:?}: its call has ended");
        ledger.wait_for(&error("idea")).await;
        assert_eq!(ledger.lines(), [error("late"), error("idea")], "{tool}");
    }
}

/// A clock that blocks its n-th reader, counted from when `reads` is set.
#[derive(Default)]
struct BlockingClock {
    reads: AtomicUsize,
    is_blocking: AtomicBool,
    is_released: AtomicBool,
}

impl Source for BlockingClock {
    fn now(&self) -> SystemTime {
        let one_less = |reads: usize| reads.checked_sub(1);
        if self
            .reads
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            == Ok(1)
        {
            self.is_blocking.store(true, Ordering::SeqCst);
            // Not for ever: this thread may drive the timers.
            let started = std::time::Instant::now();
            let short = || started.elapsed() < Duration::from_millis(300);
            while !self.is_released.load(Ordering::SeqCst) && short() {
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
async fn handler_sees_the_answers_before_the_reply_is_made() {
    // At some of these reads the handler was polled, but is not yet known to be idle.
    for reads in 1..=12 {
        answers_are_seen_with_blocked_clock(reads).await;
    }
}

async fn answers_are_seen_with_blocked_clock(reads: usize) {
    let ledger = Arc::<Ledger>::default();
    let (signals, _received) = signals();
    let clock = Arc::<BlockingClock>::default();
    let tool = {
        let (signals, clock) = (signals.clone(), clock.clone());
        move |cx: Cx| {
            let (signals, clock) = (signals.clone(), clock.clone());
            async move {
                let one = async {
                    cx.elicit::<Login>("a", "?").await?;
                    cx.elicit::<Login>("c", "?").await
                };
                let two = cx.elicit::<Login>("b", "?");
                let both = async { tokio::try_join!(one, two) };
                // Because of the sleep, the clock is read whenever the handler becomes idle.
                let sleeps = cx.sleep(Duration::from_secs(3600));
                let arms = async {
                    signals.pass().await;
                    clock.reads.store(reads, Ordering::SeqCst);
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
    let asks = instance.send(&first_round("asks")).await.reply();
    assert_eq!(asked(&asks), ["a", "b"]);
    signals.open();
    let blocked = async {
        while !clock.is_blocking.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    // The clock may be read fewer times.
    let _ = tokio::time::timeout(Duration::from_millis(100), blocked).await;
    // Sends one of two answers.
    let mut connection = instance.connect().await;
    let half = first_round("asks").again(&token(&asks), json!({"a": accept("x")}));
    connection.send(&half).await;
    let started = async {
        while instance.server.running() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(50), started).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    clock.is_released.store(true, Ordering::SeqCst);
    let rest = connection.response().await.reply();
    assert_eq!(
        asked(&rest),
        ["b", "c"],
        "the handler used the answer first"
    );
    let all = first_round("asks").again(&token(&rest), json!({"b": accept("y"), "c": accept("z")}));
    assert_eq!(text(&instance.send(&all).await.reply()), "zy");
}

#[tokio::test]
async fn legacy_call_runs_each_effect_once() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let plain = Tool::new("plain", inline);
    let instance = start(builder(&ledger, &keys).tool(plain)).await;
    let session = Session::open(&instance).await;
    // In a legacy session, all tools run as plain async code.
    for (id, tool) in [(1, "inline"), (2, "plain")] {
        let mut stream = session.stream(&call(id, tool, json!({}))).await;
        let asked = stream.next().await;
        assert_eq!(asked["params"]["message"], "Who are you?");
        assert_eq!(ledger.lines(), ["mutation 1"]);
        // The second answer is ignored.
        for _ in 0..2 {
            session.post(&filled_in(&asked, "Ada")).await;
        }
        let done = stream.next().await;
        assert_eq!(done["result"]["content"][0]["text"], "Done for Ada.");
        assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"], "{tool}");
        ledger.clear();
    }
}
