//! Limits of live calls in number and time.

use super::lifetime::advance;
use super::*;
use schemars::JsonSchema;
use serde::Deserialize;

#[tokio::test]
async fn live_calls_are_limited_in_number() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls: 2,
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits)).await;
    let asks = instance.send(&first_round("waits")).await.reply();
    instance.send(&first_round("waits")).await.reply();
    let rejected = instance.send(&first_round("waits")).await;
    assert_contains(&rejected.error(503, -32603), &["limit of 2 live calls"]);
    assert_eq!(
        ledger.lines(),
        ["started", "started"],
        "the third call did not start"
    );
    // An idle call does not count as running.
    instance.at_rest().await;
    let done = instance.send(&second_round("waits", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
    wait_for_permit(&instance).await;
}

#[tokio::test]
async fn live_calls_are_limited_in_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls: 1,
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits.clone())).await;
    let asks = instance.send(&first_round("waits")).await.reply();
    advance(limits.live_time).await;
    ledger.wait_for("dropped").await;
    let late = instance.send(&second_round("waits", &token(&asks))).await;
    let message = late.error(200, -32603);
    assert_contains(&message, &["cancelled", "no answer", "call the tool again"]);
    wait_for_permit(&instance).await;
}

/// Waits until another call gets a permit.
async fn wait_for_permit(instance: &Instance) {
    let free = async {
        while instance.send(&first_round("waits")).await.status == 503 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("a permit", free).await;
}

#[tokio::test]
async fn live_calls_of_one_caller_are_limited() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls_each: 1,
        ..ServerLimits::default()
    };
    let tokens = BearerTokens::new()
        .with("ada", "secret-of-ada")
        .with("bob", "secret-of-bob");
    let builder = || builder(&ledger, &keys).limits(limits.clone());
    let instance = start(builder().authenticator(tokens)).await;
    let by = |request: Request, who: &str| request.bearer(&format!("secret-of-{who}"));
    let asks = instance
        .send(&by(first_round("waits"), "ada"))
        .await
        .reply();
    let rejected = instance.send(&by(first_round("waits"), "ada")).await;
    let message = rejected.error(503, -32603);
    assert_contains(&message, &["this caller is at its limit of 1 live calls"]);
    // Other callers and the existing call are not affected.
    instance
        .send(&by(first_round("waits"), "bob"))
        .await
        .reply();
    let done = instance
        .send(&by(second_round("waits", &token(&asks)), "ada"))
        .await;
    assert_eq!(text(&done.reply()), "Ada");
    instance
        .send(&by(first_round("waits"), "ada"))
        .await
        .reply();
}

#[tokio::test]
async fn live_calls_of_anonymous_callers_at_one_address_are_limited_together() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls_each: 1,
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "waits", json!({}))).await;
    let asked = stream.next().await;
    // Another call of the session, another session and a live tool share the quota.
    let rejected = session.post(&call(2, "waits", json!({}))).await;
    assert_eq!(rejected.status, 503, "{rejected:?}");
    let other = Session::open(&instance).await;
    let rejected = other.post(&call(1, "waits", json!({}))).await;
    assert_eq!(rejected.status, 503, "{rejected:?}");
    let rejected = instance.send(&first_round("waits")).await;
    let message = rejected.error(503, -32603);
    assert_contains(&message, &["this caller is at its limit of 1 live calls"]);
    session.post(&filled_in(&asked, "Ada")).await;
    stream.rest().await;
    let mut stream = other.stream(&call(2, "waits", json!({}))).await;
    assert_eq!(stream.next().await["method"], "elicitation/create");
}

#[tokio::test]
async fn waiting_call_of_the_largest_anonymous_caller_is_evicted() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls: 8,
        live_calls_each: 3,
        ..ServerLimits::default()
    };
    let builder = builder(&ledger, &keys).limits(limits);
    let instance = start(builder.client_address_header("X-Forwarded-For")).await;
    let mut waiting = Vec::new();
    for address in [1, 1, 1, 2, 2, 3, 4, 5] {
        let asks = instance
            .send(&forwarded_for(first_round("waits"), address))
            .await
            .reply();
        waiting.push((address, token(&asks)));
    }
    let asks = instance
        .send(&forwarded_for(first_round("waits"), 6))
        .await
        .reply();
    ledger.wait_for("dropped").await;
    let answer = |address, token: &str| forwarded_for(second_round("waits", token), address);
    let done = instance.send(&answer(6, &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
    let (_, oldest) = waiting.remove(0);
    let message = instance.send(&answer(1, &oldest)).await.error(200, -32603);
    assert_contains(&message, &["cancelled", "make room for other callers"]);
    // The others still wait for their clients.
    for (address, token) in waiting {
        let done = instance.send(&answer(address, &token)).await;
        assert_eq!(text(&done.reply()), "Ada");
    }
}

#[tokio::test]
async fn anonymous_caller_does_not_evict_calls_of_a_smaller_one() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls: 3,
        live_calls_each: 2,
        ..ServerLimits::default()
    };
    let builder = builder(&ledger, &keys).limits(limits);
    let instance = start(builder.client_address_header("X-Forwarded-For")).await;
    for address in [1, 2, 3] {
        instance
            .send(&forwarded_for(first_round("waits"), address))
            .await
            .reply();
    }
    for address in [1, 4] {
        let rejected = instance
            .send(&forwarded_for(first_round("waits"), address))
            .await;
        assert_contains(&rejected.error(503, -32603), &["limit of 3 live calls"]);
    }
    assert_eq!(ledger.lines(), ["started"; 3]);
}

/// Asks with a text of the requested length.
async fn asks_at_length(cx: Cx, ledger: LedgerState, args: TextLength) -> Result<String> {
    let _dropped = DropGuard(Arc::clone(&ledger));
    let name: Login = cx.elicit("name", "?".repeat(args.length)).await?;
    Ok(name.name)
}

#[derive(Deserialize, JsonSchema)]
struct TextLength {
    length: usize,
}

/// An instance that keeps this many bytes of the live calls of one caller.
async fn instance_with_bytes(ledger: &Arc<Ledger>, live_bytes_each: usize) -> Instance {
    let limits = ServerLimits {
        live_bytes_each,
        ..ServerLimits::default()
    };
    let tokens = BearerTokens::new()
        .with("ada", "secret-of-ada")
        .with("bob", "secret-of-bob");
    let builder = builder(ledger, &keys()).authenticator(tokens);
    start(
        builder
            .tool(Tool::new("asks_at_length", asks_at_length).live())
            .limits(limits),
    )
    .await
}

fn by_ada(request: Request) -> Request {
    request.bearer("secret-of-ada")
}

async fn session_of_ada(instance: &Instance) -> Session {
    let header = [("Authorization", "Bearer secret-of-ada")];
    let capabilities = json!({"elicitation": {}});
    Session::open_with(instance.address, "2025-11-25", &capabilities, &header).await
}

#[tokio::test]
async fn bytes_of_live_calls_of_one_caller_are_limited() {
    let ledger = Arc::<Ledger>::default();
    let instance = instance_with_bytes(&ledger, 20_000).await;
    let large = json!({"length": 1, "text": "x".repeat(6000)});
    let request = || Request::tool("asks_at_length", large.clone());
    let asks = instance.send(&by_ada(request())).await.reply();
    let rejected = instance.send(&by_ada(request())).await;
    assert_eq!(rejected.header("retry-after"), Some("1"));
    let message = rejected.error(503, -32603);
    assert_contains(
        &message,
        &["this caller", "limit of 20000 bytes of live calls"],
    );
    // A call of a legacy session is counted with the others.
    let session = session_of_ada(&instance).await;
    let rejected = session
        .post(&call(1, "asks_at_length", large.clone()))
        .await;
    assert_contains(&rejected.error(503, -32603), &["20000 bytes of live calls"]);
    // Neither other callers nor small calls are affected.
    let other = request().bearer("secret-of-bob");
    instance.send(&other).await.reply();
    instance.send(&by_ada(first_round("waits"))).await.reply();
    let answer = request().again(&token(&asks), json!({"name": accept("Ada")}));
    let done = instance.send(&by_ada(answer)).await;
    assert_eq!(text(&done.reply()), "Ada");
    let mut stream = session.stream(&call(2, "asks_at_length", large)).await;
    assert_eq!(stream.next().await["method"], "elicitation/create");
}

#[tokio::test]
async fn arguments_of_many_small_values_count_with_their_size_in_memory() {
    let ledger = Arc::<Ledger>::default();
    let instance = instance_with_bytes(&ledger, 20_000).await;
    let small = json!({"length": 1, "values": vec![json!({"": 0}); 500]});
    assert!(small.to_string().len() < 5000);
    let rejected = instance
        .send(&by_ada(Request::tool("asks_at_length", small)))
        .await;
    assert_contains(&rejected.error(503, -32603), &["20000 bytes of live calls"]);
    assert_eq!(ledger.lines(), [""; 0], "the call did not start");
}

#[tokio::test]
async fn answer_over_the_limit_of_bytes_can_be_sent_again() {
    let ledger = Arc::<Ledger>::default();
    let instance = instance_with_bytes(&ledger, 4000).await;
    let long = "x".repeat(5000);
    let asks = instance.send(&by_ada(first_round("waits"))).await.reply();
    let answer = |name: &str| {
        let answers = json!({"name": accept(name)});
        by_ada(first_round("waits").again(&token(&asks), answers))
    };
    let rejected = instance.send(&answer(&long)).await;
    assert_eq!(rejected.header("retry-after"), Some("1"));
    assert_contains(&rejected.error(503, -32603), &["4000 bytes of live calls"]);
    let done = instance.send(&answer("Ada")).await;
    assert_eq!(text(&done.reply()), "Ada");
    let session = session_of_ada(&instance).await;
    let mut stream = session.stream(&call(1, "waits", json!({}))).await;
    let asked = stream.next().await;
    let rejected = session.post(&filled_in(&asked, &long)).await;
    assert_eq!(rejected.header("retry-after"), Some("1"));
    assert_contains(&rejected.error(503, -32603), &["4000 bytes of live calls"]);
    assert_eq!(session.post(&filled_in(&asked, "Bob")).await.status, 202);
    let reply = stream.next().await;
    assert_eq!(reply["result"]["content"][0]["text"], "Bob");
}

#[tokio::test]
async fn call_whose_asks_exceed_the_limit_of_bytes_is_cancelled() {
    let ledger = Arc::<Ledger>::default();
    let instance = instance_with_bytes(&ledger, 20_000).await;
    let request =
        |length: usize| by_ada(Request::tool("asks_at_length", json!({"length": length})));
    let message = instance.send(&request(7000)).await.error(200, -32603);
    assert_contains(&message, &["cancelled", "20000 bytes of live calls"]);
    assert_eq!(ledger.lines(), ["dropped"]);
    // The bytes of the cancelled call were returned.
    instance.send(&request(6000)).await.reply();
}

#[tokio::test]
async fn busy_live_handler_has_the_time_limit_of_a_round() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        round_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits)).await;
    let asks = instance.send(&first_round("waits")).await.reply();
    let message = instance
        .send(&first_round("works"))
        .await
        .error(200, -32603);
    assert_contains(&message, &["time limit of a round"]);
    // The time limit does not apply while a call waits for an answer.
    let done = instance.send(&second_round("waits", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
}

/// Runs longer than the live time limit, then asks.
async fn late(cx: Cx, ledger: LedgerState, signals: State<Arc<Signals>>) -> Result<String> {
    gated(cx.clone(), ledger.clone(), signals).await?;
    let name: Login = cx.elicit("name", "?").await?;
    Ok(name.name)
}

#[tokio::test]
async fn busy_handler_may_exceed_the_live_time_limit() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_time: Duration::from_millis(30),
        ..ServerLimits::default()
    };
    let (signals, _received) = signals();
    let builder = builder(&ledger, &keys)
        .tool(Tool::new("gated", gated).live())
        .tool(Tool::new("late", late).live())
        .state(signals.clone());
    let instance = start(builder.limits(limits)).await;
    for tool in ["gated", "late"] {
        let mut connection = instance.connect().await;
        connection.send(&first_round(tool)).await;
        ledger.wait_for("started").await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        signals.open();
        let response = connection.response().await;
        if tool == "gated" {
            assert_eq!(text(&response.reply()), "done");
        } else {
            // An idle call is cancelled after that time.
            let message = response.error(200, -32603);
            assert_contains(
                &message,
                &["no answer", "effects so far remain", "call the tool again"],
            );
        }
        assert_eq!(ledger.lines(), ["started", "ended"]);
        ledger.clear();
    }
}

/// Sleeps longer than the live time limit.
async fn sleeps(cx: Cx) -> Result<String> {
    cx.sleep(Duration::from_secs(3600)).await;
    Ok("slept".into())
}

#[tokio::test]
async fn sleeping_call_is_cancelled_at_the_live_time_limit() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_time: Duration::from_millis(30),
        ..ServerLimits::default()
    };
    let builder = builder(&ledger, &keys).tool(Tool::new("sleeps", sleeps).live());
    let instance = start(builder.limits(limits)).await;
    let message = instance
        .send(&first_round("sleeps"))
        .await
        .error(200, -32603);
    assert_contains(
        &message,
        &["did not finish within the limit", "call the tool again"],
    );
    assert!(!message.contains("answer"), "there was no ask: {message}");
}

/// Sends notes forever.
async fn notes_forever(cx: Cx, ledger: LedgerState) -> Result<String> {
    let _dropped = DropGuard(Arc::clone(&ledger));
    ledger.write("started");
    loop {
        cx.progress(1.0, None, "still here");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_that_only_sends_notes_is_stopped() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        round_time: Duration::from_millis(200),
        ..ServerLimits::default()
    };
    let notes_forever = || Tool::new("notes_forever", notes_forever).live();
    let limited = builder(&ledger, &keys).tool(notes_forever()).limits(limits);
    let limited = start(limited).await;
    let message = limited
        .send(&first_round("notes_forever"))
        .await
        .error(200, -32603);
    assert_contains(&message, &["time limit of a round"]);
    assert_eq!(ledger.lines(), ["started", "dropped"]);
    ledger.clear();
    let unlimited = start(builder(&ledger, &keys).tool(notes_forever())).await;
    let mut connection = unlimited.connect().await;
    connection.send(&first_round("notes_forever")).await;
    ledger.wait_for("started").await;
    drop(connection);
    ledger.wait_for("dropped").await;
}

#[test]
fn invalid_live_configuration_is_rejected() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let why = |builder: ServerBuilder| {
        builder
            .build()
            .expect_err("the configuration is invalid")
            .to_string()
    };
    let build = || builder(&ledger, &keys);
    let no_keys = Server::builder("x", "1").advertise("http://a/mcp");
    assert!(matches!(
        no_keys.build(),
        Err(BuildError::AdvertiseNeedsKeys)
    ));
    for (url, reason) in [
        ("", "URL"),
        ("10.0.0.8", "scheme"),
        ("ftp://b/", "https"),
        ("http://user@b/", "password"),
    ] {
        let shown = format!("{url:?}");
        assert_contains(&why(build().advertise(url)), &[&shown, reason]);
    }
}
