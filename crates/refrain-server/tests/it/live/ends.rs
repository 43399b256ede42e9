//! Live calls end with their client, and with their instance.

use super::*;
use refrain_core::Source;
use refrain_server::drafts;
use refrain_wire::drafts::Draft;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

#[tokio::test]
async fn a_client_that_goes_away_before_the_first_reply_ends_the_call() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let mut connection = instance.connect().await;
    connection.send(&first("works")).await;
    ledger.has("begun").await;
    drop(connection);
    ledger.has("dropped").await;
}

#[tokio::test]
async fn an_instance_that_stops_gives_up_what_waits_and_takes_nothing_on() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("waits")).await.reply();
    instance.server.start_draining();
    let mut refused = instance.send(&first("inline")).await;
    names(&refused.error(503, -32603), &["stopping", "call again"]);
    instance.server.close_live();
    ledger.has("dropped").await;
    refused = instance.send(&second("waits", &token(&asks))).await;
    names(&refused.error(200, -32603), &["is stopping", "call again"]);
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
}

#[tokio::test]
async fn older_clients_are_served_while_an_instance_is_on_its_way_out() {
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

#[tokio::test]
async fn an_older_client_whose_person_thinks_is_told_that_the_instance_stops() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let mut instance = start(builder(&ledger, &keys)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "waits", json!({}))).await;
    assert_eq!(stream.next().await["method"], "elicitation/create");
    instance.stop();
    let rest = stream.rest().await;
    let message = rest.last().expect("a reply")["error"]["message"].clone();
    names(
        message.as_str().expect("a message"),
        &["is stopping", "call again"],
    );
    // Long before the drain time is over.
    instance.stopped().await;
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
}

/// An instance with a tool that is let through by the signals.
async fn with_gate(ledger: &Arc<Ledger>) -> (Instance, Arc<Signals>) {
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        ..ServerLimits::default()
    };
    let (signals, _said) = signals();
    let builder = builder(ledger, &keys())
        .tool(Tool::new("gated", gated).live())
        .state(signals.clone());
    (start(builder.limits(limits)).await, signals)
}

/// Waits until the port of an instance that stops is closed.
async fn closed(instance: &Instance) {
    let closed = async {
        while TcpStream::connect(instance.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the port to be closed", closed).await;
}

/// Has an instance stop that has a call at work which nobody waits for.
async fn waits_for_the_call(mut instance: Instance, ledger: &Ledger, signals: &Signals) {
    instance.stop();
    closed(&instance).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!instance.has_stopped(), "there is a handler at work");
    signals.open();
    instance.stopped().await;
    assert_eq!(ledger.lines(), ["begun", "ended"]);
}

#[tokio::test]
async fn a_live_handler_at_work_is_waited_for_when_its_client_has_gone() {
    let ledger = Arc::<Ledger>::default();
    let (instance, signals) = with_gate(&ledger).await;
    let mut connection = instance.connect().await;
    let request = first("gated").meta("refrain/callId", json!("c-1"));
    connection.send(&request).await;
    ledger.has("begun").await;
    drop(connection);
    instance.at_rest().await;
    waits_for_the_call(instance, &ledger, &signals).await;
}

#[tokio::test]
async fn a_call_of_an_older_client_is_waited_for_when_its_stream_broke() {
    let ledger = Arc::<Ledger>::default();
    let (instance, signals) = with_gate(&ledger).await;
    let session = Session::open(&instance).await;
    let stream = session.stream(&call(1, "gated", json!({}))).await;
    ledger.has("begun").await;
    drop(stream);
    waits_for_the_call(instance, &ledger, &signals).await;
}

/// Looks again and again whether it may end.
async fn polls(cx: Cx, ledger: Books, may_end: State<Arc<AtomicBool>>) -> Result<String> {
    ledger.write("begun");
    while !may_end.load(Ordering::SeqCst) {
        cx.sleep(Duration::from_millis(5)).await;
        ledger.write("slept");
    }
    Ok("done".into())
}

#[tokio::test]
async fn a_call_that_only_sleeps_has_the_drain_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let may_end = Arc::new(AtomicBool::new(false));
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        ..ServerLimits::default()
    };
    let builder = builder(&ledger, &keys)
        .limits(limits)
        .state(may_end.clone());
    let mut instance = start(builder.tool(Tool::new("polls", polls).live())).await;
    let session = Session::open(&instance).await;
    let mut older = session.stream(&call(1, "polls", json!({}))).await;
    ledger.has("begun").await;
    ledger.clear();
    let mut modern = instance.connect().await;
    modern.send(&first("polls")).await;
    ledger.has("begun").await;
    instance.stop();
    closed(&instance).await;
    for _ in 0..10 {
        ledger.clear();
        ledger.has("slept").await;
    }
    may_end.store(true, Ordering::SeqCst);
    let done = older.next().await;
    assert_eq!(done["result"]["content"][0]["text"], "done", "{done}");
    assert_eq!(text(&modern.response().await.reply()), "done");
    instance.stopped().await;
}

#[tokio::test]
async fn what_waits_at_the_server_of_a_draft_is_given_up_too() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let build = || builder(&ledger, &keys).build().expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let spoken = vec![(Draft::Second, build())];
    let hosts = AllowedHosts::local();
    let serving = tokio::spawn(drafts::serve(listener, build(), spoken, hosts, stopped));
    let params = json!({"name": "waits", "arguments": {}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let (path, body) = (Draft::Second.path(), body.to_string());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = Connection::open(address).await;
    connection.write(head.as_bytes()).await;
    connection.write(body.as_bytes()).await;
    let asks = connection.response().await.reply();
    assert!(
        asks["result"]["inputRequests"]["name"].is_object(),
        "{asks}"
    );
    drop((connection, stop));
    let ended = within("the instance to stop", serving).await;
    ended.expect("no panic").expect("no I/O error");
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
}

/// Has this time and a little more go by.
pub(super) async fn has_gone_by(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time + Duration::from_secs(1)).await;
    tokio::time::resume();
}

const A_MINUTE: Duration = Duration::from_secs(60);

/// Waits until the metrics have this line.
async fn counted(instance: &Instance, line: &str) {
    let counted = async {
        while !instance.server.metrics_text().lines().any(|l| l == line) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(line, counted).await;
}

/// Asks when it is let through.
async fn asks_late(cx: Cx, ledger: Books, signals: State<Arc<Signals>>) -> Result<String> {
    gated(cx.clone(), ledger.clone(), signals).await?;
    waits(cx, ledger).await
}

#[tokio::test]
async fn a_call_whose_reply_nobody_comes_for_is_given_up() {
    let ledger = Arc::<Ledger>::default();
    let (signals, _said) = signals();
    let builder = builder(&ledger, &keys())
        .tool(Tool::new("asks_late", asks_late).live())
        .state(signals.clone());
    let instance = start(builder).await;
    let request = first("asks_late").meta("refrain/callId", json!("c-1"));
    let mut connection = instance.connect().await;
    connection.send(&request).await;
    ledger.has("begun").await;
    drop(connection);
    instance.at_rest().await;
    signals.open();
    counted(&instance, "refrain_live_total{event=\"parked\"} 1").await;
    assert_eq!(ledger.lines(), ["begun", "ended", "begun"]);
    has_gone_by(A_MINUTE).await;
    ledger.has("dropped").await;
    // Whoever comes after all is told.
    let message = instance.send(&request).await.error(200, -32602);
    names(&message, &["call id", "gone on since"]);
    assert_eq!(ledger.lines(), ["begun", "ended", "begun", "dropped"]);
}

#[tokio::test]
async fn a_call_whose_reply_was_read_waits_for_as_long_as_it_may() {
    let ledger = Arc::<Ledger>::default();
    let instance = start(builder(&ledger, &keys())).await;
    let asks = instance.send(&first("waits")).await.reply();
    has_gone_by(A_MINUTE).await;
    let done = instance.send(&second("waits", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
}

#[tokio::test]
async fn the_last_reply_is_kept_for_a_minute() {
    let ledger = Arc::<Ledger>::default();
    let instance = start(builder(&ledger, &keys())).await;
    let asks = instance.send(&first("inline")).await.reply();
    let request = second("inline", &token(&asks));
    for _ in 0..2 {
        assert_eq!(
            text(&instance.send(&request).await.reply()),
            "Done for Ada."
        );
    }
    has_gone_by(A_MINUTE).await;
    let late = async {
        loop {
            let late = instance.send(&request).await;
            if late.json().get("error").is_some() {
                return late.error(200, -32603);
            }
        }
    };
    let message = within("the call to be forgotten", late).await;
    names(
        &message,
        &["not held any more", "may have been finished", "look before"],
    );
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

/// A clock that can be broken.
#[derive(Default)]
pub(super) struct Breaking(AtomicBool);

impl Breaking {
    pub(super) fn set(&self, broken: bool) {
        self.0.store(broken, Ordering::SeqCst);
    }
}

impl Source for Breaking {
    fn now(&self) -> SystemTime {
        assert!(!self.0.load(Ordering::SeqCst), "the clock is broken");
        SystemTime::now()
    }

    fn fill(&self, bytes: &mut [u8]) {
        SystemSource::new().fill(bytes);
    }
}

#[tokio::test]
async fn whatever_breaks_while_a_handler_is_driven_ends_the_call() {
    let ledger = Arc::<Ledger>::default();
    let clock = Arc::new(Breaking::default());
    let breaks = {
        let clock = clock.clone();
        move |cx: Cx, ledger: Books| {
            // Nothing can be sealed any more, once.
            clock.set(ledger.lines().is_empty());
            waits(cx, ledger)
        }
    };
    let builder = builder(&ledger, &keys()).tool(Tool::new("breaks", breaks).live());
    let instance = start(builder.source(clock.clone())).await;
    let request = first("breaks").meta("refrain/callId", json!("c-1"));
    let message = instance.send(&request).await.error(200, -32603);
    names(&message, &["Internal error"]);
    clock.set(false);
    // Nothing of it is left.
    let asks = instance.send(&request).await.reply();
    let done = instance.send(&second("breaks", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
}
