//! The end of live calls: disconnects, shutdown, undelivered replies.

use super::*;
use refrain_core::Source;
use refrain_server::drafts;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

#[tokio::test]
async fn disconnect_before_the_first_reply_cancels_the_call() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let mut connection = instance.connect().await;
    connection.send(&first_round("works")).await;
    ledger.wait_for("started").await;
    drop(connection);
    ledger.wait_for("dropped").await;
}

#[tokio::test]
async fn shutdown_cancels_idle_calls_and_rejects_new_ones() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first_round("waits")).await.reply();
    instance.server.start_draining();
    let mut rejected = instance.send(&first_round("inline")).await;
    assert_contains(
        &rejected.error(503, -32603),
        &["shutting down", "retry the call"],
    );
    instance.server.close_live();
    ledger.wait_for("dropped").await;
    rejected = instance.send(&second_round("waits", &token(&asks))).await;
    assert_contains(
        &rejected.error(200, -32603),
        &["shutting down", "call the tool again"],
    );
    assert_eq!(ledger.lines(), ["started", "dropped"]);
}

#[tokio::test]
async fn draining_instance_serves_legacy_clients() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let session = Session::open(&instance).await;
    instance.server.start_draining();
    let mut stream = session.stream(&call(1, "inline", json!({}))).await;
    let asked = stream.next().await;
    session.post(&filled_in(&asked, "Ada")).await;
    let done = stream.next().await;
    assert_eq!(done["result"]["content"][0]["text"], "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

const BRIEF: Duration = Duration::from_millis(200);
const HOUR: Duration = Duration::from_secs(3600);

/// Limits of an instance that drains for this long.
fn drains_for(drain_time: Duration) -> ServerLimits {
    ServerLimits {
        drain_grace: Duration::ZERO,
        drain_time,
        ..ServerLimits::default()
    }
}

#[tokio::test]
async fn waiting_call_of_legacy_client_is_lost_after_the_drain_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = drains_for(BRIEF);
    let mut instance = start(builder(&ledger, &keys).limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "waits", json!({}))).await;
    assert_eq!(stream.next().await["method"], "elicitation/create");
    let stopped = Instant::now();
    instance.stop();
    let rest = stream.rest().await;
    assert!(stopped.elapsed() >= BRIEF, "lost too early");
    let message = rest.last().expect("there is a reply")["error"]["message"].clone();
    assert_contains(
        message.as_str().expect("the message is a string"),
        &["shutting down", "call the tool again"],
    );
    instance.stopped().await;
    assert_eq!(ledger.lines(), ["started", "dropped"]);
}

#[tokio::test]
async fn waiting_call_is_lost_after_the_drain_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = drains_for(BRIEF);
    let instance = start(builder(&ledger, &keys).limits(limits)).await;
    instance.send(&first_round("waits")).await.reply();
    let (address, stopped) = (instance.address, Instant::now());
    instance.stopped_now().await;
    assert!(stopped.elapsed() >= BRIEF, "lost too early");
    assert_eq!(ledger.lines(), ["started", "dropped"]);
    assert!(TcpStream::connect(address).await.is_err());
}

/// Stops the instance, and waits until it is draining. Its drain grace must be zero.
async fn drain(instance: &mut Instance) {
    instance.stop();
    until("the instance to drain", || instance.server.is_draining()).await;
}

/// Asserts that a draining instance accepts connections, but no new live calls.
async fn assert_accepts(instance: &Instance) {
    for _ in 0..20 {
        let ready = instance.get("/readyz").await;
        assert_eq!((ready.status, ready.text()), (503, "draining\n".into()));
        assert_eq!(ready.header("connection"), Some("close"));
    }
    let rejected = instance.send(&first_round("inline")).await;
    assert_contains(&rejected.error(503, -32603), &["shutting down"]);
}

#[tokio::test]
async fn answers_arrive_while_the_instance_drains() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let mut instance = start(builder(&ledger, &keys).limits(drains_for(HOUR))).await;
    let state = token(&instance.send(&first_round("twice")).await.reply());
    drain(&mut instance).await;
    assert_accepts(&instance).await;
    let answer = first_round("twice").again(&state, json!({"first": accept("a")}));
    let state = token(&instance.send(&answer).await.reply());
    // The call has asked again.
    assert_accepts(&instance).await;
    let answers = json!({"second": accept("b"), "third": accept("c")});
    let done = instance
        .send(&first_round("twice").again(&state, answers))
        .await;
    assert_eq!(text(&done.reply()), "abc");
    assert_eq!(done.header("connection"), Some("close"));
    // Long before the drain time has passed.
    instance.stopped().await;
    assert_eq!(ledger.lines(), ["first a", "others b c"]);
}

#[tokio::test]
async fn relayed_answer_arrives_while_the_holder_drains() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let build = || builder(&ledger, &keys).limits(drains_for(HOUR));
    let mut instances = fleet(2, build, true).await;
    let asks = instances[0].send(&first_round("inline")).await.reply();
    drain(&mut instances[0]).await;
    assert_accepts(&instances[0]).await;
    let done = instances[1]
        .send(&second_round("inline", &token(&asks)))
        .await;
    assert_eq!(text(&done.reply()), "Done for Ada.");
    instances.remove(0).stopped().await;
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn answers_of_legacy_clients_arrive_while_the_holder_drains() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let build = || builder(&ledger, &keys).limits(drains_for(HOUR));
    let mut instances = fleet(2, build, true).await;
    let session = Session::open(&instances[0]).await;
    let mut direct = session.stream(&call(1, "inline", json!({}))).await;
    let mut relayed = session
        .at(&instances[1])
        .stream(&call(2, "inline", json!({})))
        .await;
    let asked = [direct.next().await, relayed.next().await];
    drain(&mut instances[0]).await;
    assert_accepts(&instances[0]).await;
    session.post(&filled_in(&asked[0], "Ada")).await;
    let there = session.at(&instances[1]);
    there.post(&filled_in(&asked[1], "Bob")).await;
    for (stream, name) in [(&mut direct, "Ada"), (&mut relayed, "Bob")] {
        let done = stream.next().await;
        let expected = format!("Done for {name}.");
        assert_eq!(done["result"]["content"][0]["text"], expected, "{done}");
    }
    instances.remove(0).stopped().await;
}

#[tokio::test]
async fn ended_calls_do_not_delay_shutdown() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys).limits(drains_for(HOUR))).await;
    // The last reply of a call with a call id is kept.
    let request = identified("inline");
    let asks = instance.send(&request).await.reply();
    instance.send(&second_round("inline", &token(&asks))).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "inline", json!({}))).await;
    let asked = stream.next().await;
    session.post(&filled_in(&asked, "Ada")).await;
    stream.next().await;
    instance.stopped_now().await;
}

/// An instance with a tool that waits for a signal.
async fn with_gate(ledger: &Arc<Ledger>) -> (Instance, Arc<Signals>) {
    let (signals, _received) = signals();
    let builder = builder(ledger, &keys())
        .tool(Tool::new("gated", gated).live())
        .state(signals.clone());
    (start(builder.limits(drains_for(HOUR))).await, signals)
}

/// Asserts that shutdown waits for the running call.
async fn assert_shutdown_waits(mut instance: Instance, ledger: &Ledger, signals: &Signals) {
    drain(&mut instance).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!instance.has_stopped(), "a handler is running");
    signals.open();
    instance.stopped().await;
    assert_eq!(ledger.lines(), ["started", "ended"]);
}

#[tokio::test]
async fn shutdown_waits_for_a_busy_handler_without_client() {
    let ledger = Arc::<Ledger>::default();
    let (instance, signals) = with_gate(&ledger).await;
    let mut connection = instance.connect().await;
    let request = identified("gated");
    connection.send(&request).await;
    ledger.wait_for("started").await;
    drop(connection);
    instance.at_rest().await;
    assert_shutdown_waits(instance, &ledger, &signals).await;
}

#[tokio::test]
async fn shutdown_waits_for_a_legacy_call_with_broken_stream() {
    let ledger = Arc::<Ledger>::default();
    let (instance, signals) = with_gate(&ledger).await;
    let session = Session::open(&instance).await;
    let stream = session.stream(&call(1, "gated", json!({}))).await;
    ledger.wait_for("started").await;
    drop(stream);
    assert_shutdown_waits(instance, &ledger, &signals).await;
}

/// Sleeps repeatedly until it may end.
async fn polls(cx: Cx, ledger: LedgerState, may_end: State<Arc<AtomicBool>>) -> Result<String> {
    ledger.write("started");
    while !may_end.load(Ordering::SeqCst) {
        cx.sleep(Duration::from_millis(5)).await;
        ledger.write("slept");
    }
    Ok("done".into())
}

#[tokio::test]
async fn sleeping_call_gets_the_drain_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let may_end = Arc::new(AtomicBool::new(false));
    let builder = builder(&ledger, &keys)
        .limits(drains_for(HOUR))
        .state(may_end.clone());
    let mut instance = start(builder.tool(Tool::new("polls", polls).live())).await;
    let session = Session::open(&instance).await;
    let mut legacy = session.stream(&call(1, "polls", json!({}))).await;
    ledger.wait_for("started").await;
    ledger.clear();
    let mut modern = instance.connect().await;
    modern.send(&first_round("polls")).await;
    ledger.wait_for("started").await;
    drain(&mut instance).await;
    for _ in 0..10 {
        ledger.clear();
        ledger.wait_for("slept").await;
    }
    may_end.store(true, Ordering::SeqCst);
    let done = legacy.next().await;
    assert_eq!(done["result"]["content"][0]["text"], "done", "{done}");
    assert_eq!(text(&modern.response().await.reply()), "done");
    instance.stopped().await;
}

#[tokio::test]
async fn waiting_call_of_a_draft_server_is_lost_after_the_drain_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let build = || {
        let limits = drains_for(BRIEF);
        let builder = builder(&ledger, &keys).limits(limits);
        builder.build().expect("the server builds")
    };
    let listener = bind().await;
    let address = listener.local_addr().expect("a bound listener");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let spoken = vec![(Draft::Second, build())];
    let hosts = AllowedHosts::local();
    let serving = tokio::spawn(drafts::serve(listener, build(), spoken, hosts, stopped));
    let asks = call_draft(address, json!({"name": "waits", "arguments": {}})).await;
    assert!(
        asks["result"]["inputRequests"]["name"].is_object(),
        "{asks}"
    );
    let stopping = Instant::now();
    drop(stop);
    let ended = within("the instance to stop", serving).await;
    ended.expect("no panic").expect("no I/O error");
    assert!(stopping.elapsed() >= BRIEF, "lost too early");
    assert_eq!(ledger.lines(), ["started", "dropped"]);
}

/// Advances the runtime's clock by slightly more than this time.
pub(super) async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time + Duration::from_secs(1)).await;
    tokio::time::resume();
}

const MINUTE: Duration = Duration::from_secs(60);

/// Waits until the metrics have this line.
async fn wait_for_metric(instance: &Instance, line: &str) {
    until(line, || {
        instance.server.metrics_text().lines().any(|l| l == line)
    })
    .await;
}

/// Waits for the signal, then asks.
async fn asks_late(cx: Cx, ledger: LedgerState, signals: State<Arc<Signals>>) -> Result<String> {
    gated(cx.clone(), ledger.clone(), signals).await?;
    waits(cx, ledger).await
}

#[tokio::test]
async fn call_with_undelivered_reply_is_cancelled() {
    let ledger = Arc::<Ledger>::default();
    let (signals, _received) = signals();
    let builder = builder(&ledger, &keys())
        .tool(Tool::new("asks_late", asks_late).live())
        .state(signals.clone());
    let instance = start(builder).await;
    let request = identified("asks_late");
    let mut connection = instance.connect().await;
    connection.send(&request).await;
    ledger.wait_for("started").await;
    drop(connection);
    instance.at_rest().await;
    signals.open();
    wait_for_metric(&instance, "refrain_live_total{event=\"parked\"} 1").await;
    assert_eq!(ledger.lines(), ["started", "ended", "started"]);
    advance(MINUTE).await;
    ledger.wait_for("dropped").await;
    // A later request gets an error.
    let message = instance.send(&request).await.error(200, -32602);
    assert_contains(&message, &["call id", "later round"]);
    assert_eq!(ledger.lines(), ["started", "ended", "started", "dropped"]);
}

#[tokio::test]
async fn call_with_delivered_reply_keeps_waiting() {
    let ledger = Arc::<Ledger>::default();
    let instance = start(builder(&ledger, &keys())).await;
    let asks = instance.send(&first_round("waits")).await.reply();
    advance(MINUTE).await;
    let done = instance.send(&second_round("waits", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
}

#[tokio::test]
async fn last_reply_is_kept_for_a_minute() {
    let ledger = Arc::<Ledger>::default();
    let instance = start(builder(&ledger, &keys())).await;
    let asks = instance.send(&first_round("inline")).await.reply();
    let request = second_round("inline", &token(&asks));
    for _ in 0..2 {
        assert_eq!(
            text(&instance.send(&request).await.reply()),
            "Done for Ada."
        );
    }
    advance(MINUTE).await;
    let late = async {
        loop {
            let late = instance.send(&request).await;
            if late.json().get("error").is_some() {
                return late.error(200, -32603);
            }
        }
    };
    let message = within("the reply to be dropped", late).await;
    assert_contains(
        &message,
        &["no longer in memory", "finished", "check them before"],
    );
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

/// A clock that panics while it is broken.
#[derive(Default)]
pub(super) struct BrokenClock(AtomicBool);

impl BrokenClock {
    pub(super) fn set(&self, broken: bool) {
        self.0.store(broken, Ordering::SeqCst);
    }
}

impl Source for BrokenClock {
    fn now(&self) -> SystemTime {
        assert!(!self.0.load(Ordering::SeqCst), "the clock is broken");
        SystemTime::now()
    }

    fn fill(&self, bytes: &mut [u8]) {
        SystemSource::new().fill(bytes);
    }
}

#[tokio::test]
async fn panic_in_the_driver_ends_the_call() {
    let ledger = Arc::<Ledger>::default();
    let clock = Arc::new(BrokenClock::default());
    let breaks = {
        let clock = clock.clone();
        move |cx: Cx, ledger: LedgerState| {
            // Sealing panics in the first run.
            clock.set(ledger.lines().is_empty());
            waits(cx, ledger)
        }
    };
    let builder = builder(&ledger, &keys()).tool(Tool::new("breaks", breaks).live());
    let instance = start(builder.source(clock.clone())).await;
    let request = identified("breaks");
    let message = instance.send(&request).await.error(200, -32603);
    assert_contains(&message, &["Internal error"]);
    clock.set(false);
    // The call can start again.
    let asks = instance.send(&request).await.reply();
    let done = instance.send(&second_round("breaks", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
}
