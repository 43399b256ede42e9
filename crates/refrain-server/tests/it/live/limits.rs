//! Live calls are limited in number and time.

use super::ends::has_gone_by;
use super::*;

#[tokio::test]
async fn live_calls_are_limited_in_number() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls: 2,
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits)).await;
    let asks = instance.send(&first("waits")).await.reply();
    instance.send(&first("waits")).await.reply();
    let refused = instance.send(&first("waits")).await;
    names(&refused.error(503, -32603), &["limit of 2 live calls"]);
    assert_eq!(ledger.lines(), ["begun", "begun"], "it did not even begin");
    // A pending dialogue is no running call.
    instance.at_rest().await;
    let done = instance.send(&second("waits", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
    begins_again(&instance).await;
}

#[tokio::test]
async fn live_calls_are_limited_in_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls: 1,
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits.clone())).await;
    let asks = instance.send(&first("waits")).await.reply();
    has_gone_by(limits.live_time).await;
    ledger.has("dropped").await;
    let late = instance.send(&second("waits", &token(&asks))).await;
    let message = late.error(200, -32603);
    names(&message, &["given up", "no answer", "call again"]);
    begins_again(&instance).await;
}

/// Waits until there is a place for another call.
async fn begins_again(instance: &Instance) {
    let free = async {
        while instance.send(&first("waits")).await.status == 503 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("a place", free).await;
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
    let by = |request: Request, who: &str| {
        request.header("Authorization", &format!("Bearer secret-of-{who}"))
    };
    let asks = instance.send(&by(first("waits"), "ada")).await.reply();
    let refused = instance.send(&by(first("waits"), "ada")).await;
    let message = refused.error(503, -32603);
    names(&message, &["limit of 1 live calls of one caller"]);
    // Others are not held up, and neither is the call that is there.
    instance.send(&by(first("waits"), "bob")).await.reply();
    let done = instance
        .send(&by(second("waits", &token(&asks)), "ada"))
        .await;
    assert_eq!(text(&done.reply()), "Ada");
    instance.send(&by(first("waits"), "ada")).await.reply();
    // Who has no name is known by the session, or not at all.
    let instance = start(builder()).await;
    for _ in 0..2 {
        instance.send(&first("waits")).await.reply();
        let session = Session::open(&instance).await;
        let mut stream = session.stream(&call(1, "waits", json!({}))).await;
        let asked = stream.next().await;
        let refused = session.post(&call(2, "waits", json!({}))).await;
        assert_eq!(refused.status, 503, "{refused:?}");
        session.post(&filled_in(&asked, "Ada")).await;
        stream.rest().await;
        let mut stream = session.stream(&call(3, "waits", json!({}))).await;
        assert_eq!(stream.next().await["method"], "elicitation/create");
    }
}

#[tokio::test]
async fn the_work_of_a_live_handler_is_limited_as_that_of_any_round() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        round_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits)).await;
    let asks = instance.send(&first("waits")).await.reply();
    let message = instance.send(&first("works")).await.error(200, -32603);
    names(&message, &["time limit of a round"]);
    // Whoever thinks is not in a hurry: far more than that time has passed.
    let done = instance.send(&second("waits", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
}

/// Works for longer than a call may wait, and then asks.
async fn late(cx: Cx, ledger: Books, signals: State<Arc<Signals>>) -> Result<String> {
    gated(cx.clone(), ledger.clone(), signals).await?;
    let name: crate::support::Login = cx.elicit("name", "?").await?;
    Ok(name.name)
}

#[tokio::test]
async fn a_handler_at_work_is_not_cut_by_the_time_that_a_call_may_wait() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_time: Duration::from_millis(30),
        ..ServerLimits::default()
    };
    let (signals, _said) = signals();
    let builder = builder(&ledger, &keys)
        .tool(Tool::new("gated", gated).live())
        .tool(Tool::new("late", late).live())
        .state(signals.clone());
    let instance = start(builder.limits(limits)).await;
    for tool in ["gated", "late"] {
        let mut connection = instance.connect().await;
        connection.send(&first(tool)).await;
        ledger.has("begun").await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        signals.open();
        let response = connection.response().await;
        if tool == "gated" {
            assert_eq!(text(&response.reply()), "done");
        } else {
            // What waits for an answer when that time is over has waited too long.
            let message = response.error(200, -32603);
            names(&message, &["no answer", "is done", "call again"]);
        }
        assert_eq!(ledger.lines(), ["begun", "ended"]);
        ledger.clear();
    }
}

/// Sleeps for longer than anybody waits.
async fn sleeps(cx: Cx) -> Result<String> {
    cx.sleep(Duration::from_secs(3600)).await;
    Ok("slept".into())
}

#[tokio::test]
async fn a_call_that_sleeps_for_longer_than_it_may_is_told_so() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_time: Duration::from_millis(30),
        ..ServerLimits::default()
    };
    let builder = builder(&ledger, &keys).tool(Tool::new("sleeps", sleeps).live());
    let instance = start(builder.limits(limits)).await;
    let message = instance.send(&first("sleeps")).await.error(200, -32603);
    names(&message, &["not done within the limit", "call again"]);
    assert!(!message.contains("answer"), "nothing was asked: {message}");
}

/// Says something whenever it is asked to go on, and does nothing else.
async fn chats(cx: Cx, ledger: Books) -> Result<String> {
    let _dropped = Dropped(Arc::clone(&ledger));
    ledger.write("begun");
    loop {
        cx.progress(1.0, None, "still here");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_never_stops_talking_is_stopped() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        round_time: Duration::from_millis(200),
        ..ServerLimits::default()
    };
    let chats = || Tool::new("chats", chats).live();
    let brief = builder(&ledger, &keys).tool(chats()).limits(limits);
    let brief = start(brief).await;
    let message = brief.send(&first("chats")).await.error(200, -32603);
    names(&message, &["time limit of a round"]);
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
    ledger.clear();
    let patient = start(builder(&ledger, &keys).tool(chats())).await;
    let mut connection = patient.connect().await;
    connection.send(&first("chats")).await;
    ledger.has("begun").await;
    drop(connection);
    ledger.has("dropped").await;
}

#[test]
fn what_cannot_be_built() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let why = |builder: ServerBuilder| builder.build().expect_err("a mistake").to_string();
    let build = || builder(&ledger, &keys);
    let both = Tool::new("both", inline).live().task();
    names(&why(build().tool(both)), &["\"both\"", "live", "task"]);
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
        names(&why(build().advertise(url)), &[&shown, reason]);
    }
}
