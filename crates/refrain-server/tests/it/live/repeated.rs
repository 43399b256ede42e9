//! Repeated requests of live calls: each effect runs once.

use super::*;
use refrain_core::MemoryReplayLog;
use std::time::Instant;

#[tokio::test]
async fn repeated_requests_of_a_round_have_one_effect_and_reply() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), true).await;
    let asks = instances[0].send(&first_round("inline")).await.reply();
    let request = second_round("inline", &token(&asks));
    let at = |at: usize| instances[at % 2].send(&request);
    let all = tokio::join!(at(0), at(1), at(0), at(1), at(1), at(0));
    let late = instances[1].send(&request).await;
    for response in [all.0, all.1, all.2, all.3, all.4, all.5, late] {
        assert_eq!(text(&response.reply()), "Done for Ada.");
    }
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
    // Only the reply of the previous round is kept.
    let asks = instances[0].send(&first_round("twice")).await.reply();
    let one = first_round("twice").again(&token(&asks), json!({"first": accept("a")}));
    let next = instances[0].send(&one).await.reply();
    assert_eq!(
        instances[1].send(&one).await.reply(),
        next,
        "the same reply"
    );
    let both = json!({"second": accept("b"), "third": accept("c")});
    let last = first_round("twice").again(&token(&next), both);
    assert_eq!(text(&instances[1].send(&last).await.reply()), "abc");
    let message = instances[0].send(&one).await.error(200, -32602);
    assert_contains(&message, &["already used", "last reply"]);
    let firsts = ledger.lines().iter().filter(|l| *l == "first a").count();
    assert_eq!(firsts, 1);
}

#[tokio::test]
async fn repeated_first_request_is_the_same_call() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let request = identified("inline");
    let (one, two) = tokio::join!(instance.send(&request), instance.send(&request));
    let late = instance.send(&request).await.reply();
    let one = one.reply();
    assert_eq!(one, two.reply());
    assert_eq!(one, late);
    let answer = second_round("inline", &token(&one)).meta("refrain/callId", json!("c-1"));
    assert_eq!(text(&instance.send(&answer).await.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

/// Three rounds and four mutations.
async fn thrice(cx: Cx, ledger: LedgerState) -> Result<String> {
    ledger.write("started");
    for name in ["one", "two", "three"] {
        let login: Login = cx.elicit(name, "?").await?;
        ledger.write(format!("{name} {}", login.name));
    }
    Ok("done".into())
}

#[tokio::test]
async fn late_first_request_neither_restarts_nor_ends_the_call() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys).tool(Tool::new("thrice", thrice).live())).await;
    let request = identified("thrice");
    let mut reply = instance.send(&request).await.reply();
    assert_eq!(instance.send(&request).await.reply(), reply);
    for name in ["one", "two", "three"] {
        let answers = json!({ name: accept("Ada") });
        let answer = first_round("thrice").again(&token(&reply), answers);
        reply = instance
            .send(&answer.meta("refrain/callId", json!("c-1")))
            .await
            .reply();
        // The first reply is no longer kept, during the call and after its end.
        let rejected = instance.send(&request).await;
        assert_contains(&rejected.error(200, -32602), &["call id", "later round"]);
    }
    assert_eq!(text(&reply), "done");
    assert_eq!(
        ledger.lines(),
        ["started", "one Ada", "two Ada", "three Ada"],
        "each effect once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_first_requests_are_one_call() {
    const AT_ONCE: usize = 3;
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let arrived = Arc::new(AtomicUsize::new(0));
    // Each request runs the handler function up to its future. None continues before all got that far.
    let tool = Tool::new("meets", {
        let arrived = arrived.clone();
        move |cx: Cx, ledger: LedgerState| {
            arrived.fetch_add(1, Ordering::SeqCst);
            let started = Instant::now();
            while !arrived.load(Ordering::SeqCst).is_multiple_of(AT_ONCE) {
                assert!(
                    started.elapsed() < Duration::from_secs(20),
                    "the other requests did not arrive"
                );
                std::thread::yield_now();
            }
            inline(cx, ledger)
        }
    });
    let instance = Arc::new(start(builder(&ledger, &keys).tool(tool.live())).await);
    for call in 1..=20 {
        let id = json!(format!("c-{call}"));
        let request = first_round("meets").meta("refrain/callId", id.clone());
        let mut sending = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (instance, request) = (instance.clone(), request.clone());
            sending.spawn(async move { instance.send(&request).await.reply() });
        }
        let replies = within("the replies", sending.join_all()).await;
        assert_eq!(arrived.load(Ordering::SeqCst), call * AT_ONCE);
        let tokens: Vec<_> = replies.iter().map(token).collect();
        assert!(tokens.iter().all(|token| *token == tokens[0]));
        let answer = second_round("meets", &tokens[0]).meta("refrain/callId", id);
        assert_eq!(text(&instance.send(&answer).await.reply()), "Done for Ada.");
        assert_eq!(ledger.lines().len(), 2 * call, "{:?}", ledger.lines());
    }
}

#[tokio::test]
async fn shared_log_makes_a_repeated_request_one_call_on_all_instances() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let log = Arc::new(MemoryReplayLog::new());
    let build = || builder(&ledger, &keys).replay_log(log.clone());
    let instances = fleet(2, build, true).await;
    let request = identified("inline");
    let asks = instances[0].send(&request).await.reply();
    for instance in &instances {
        assert_eq!(instance.send(&request).await.reply(), asks);
    }
    let done = instances[1]
        .send(&second_round("inline", &token(&asks)))
        .await;
    assert_eq!(text(&done.reply()), "Done for Ada.");
    // A late request on another instance gets the recorded first reply.
    assert_eq!(instances[1].send(&request).await.reply(), asks);
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn first_request_running_elsewhere_is_not_started_again() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let log = Arc::new(MemoryReplayLog::new());
    let build = || builder(&ledger, &keys).replay_log(log.clone());
    let instances = fleet(2, build, true).await;
    let request = identified("works");
    let mut connection = instances[0].connect().await;
    connection.send(&request).await;
    ledger.wait_for("started").await;
    let message = instances[1].send(&request).await.error(200, -32603);
    assert_contains(&message, &["already started", "had no effect", "Retry"]);
    assert_eq!(ledger.lines(), ["started"]);
}

/// A busy handler is not cancelled after `live_time`, but after the tool's `round_time`.
#[tokio::test]
async fn busy_call_is_not_started_again_after_its_live_time() {
    const HOUR: u64 = 3600;
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let (log, clock) = (Arc::new(MemoryReplayLog::new()), Clock::new());
    let build = || {
        let long = Tool::new("long", works).live();
        let long = long.round_time(Duration::from_secs(30 * HOUR));
        let builder = builder(&ledger, &keys).replay_log(log.clone());
        builder.source(clock.clone()).tool(long)
    };
    let instances = fleet(2, build, true).await;
    let request = identified("long");
    let mut connection = instances[0].connect().await;
    connection.send(&request).await;
    ledger.wait_for("started").await;
    for _ in 0..2 {
        clock.forward(15 * HOUR);
        let message = instances[1].send(&request).await.error(200, -32603);
        assert_contains(&message, &["already started", "had no effect", "Retry"]);
    }
    assert_eq!(ledger.lines(), ["started"]);
}

#[tokio::test]
async fn client_can_repeat_its_request_with_the_missing_capability() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let build = || builder(&ledger, &keys);
    let log = Arc::new(MemoryReplayLog::new());
    for builder in [build(), build().replay_log(log)] {
        let instance = start(builder).await;
        let request = identified("waits");
        let without = request.clone().meta(CAPABILITIES_KEY, json!({}));
        for _ in 0..2 {
            let rejected = instance.send(&without).await;
            assert_eq!(rejected.json()["error"]["code"], -32021, "{rejected:?}");
        }
        let asks = instance.send(&request).await.reply();
        let done = instance.send(&second_round("waits", &token(&asks))).await;
        assert_eq!(text(&done.reply()), "Ada");
    }
}

#[tokio::test]
async fn first_reply_is_recorded_after_disconnect() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let log = Arc::new(MemoryReplayLog::new());
    let (signals, mut received) = signals();
    let build = || {
        let signals = signals.clone();
        let slow = move |cx: Cx, ledger: LedgerState| {
            let signals = signals.clone();
            async move {
                signals.say("started");
                signals.pass().await;
                inline(cx, ledger).await
            }
        };
        let builder = builder(&ledger, &keys).replay_log(log.clone());
        builder.tool(Tool::new("slow", slow).live())
    };
    let instances = fleet(2, build, true).await;
    let request = identified("slow");
    let mut connection = instances[0].connect().await;
    connection.send(&request).await;
    within("the handler", received.recv()).await;
    drop(connection);
    instances[0].at_rest().await;
    signals.open();
    let again = async {
        loop {
            let again = instances[1].send(&request).await.reply();
            if again.get("result").is_some() {
                return again;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let asks = within("the reply", again).await;
    let done = instances[1]
        .send(&second_round("slow", &token(&asks)))
        .await;
    assert_eq!(text(&done.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}
