//! Live tools: the handler waits in memory, and a ledger shows that nothing is done twice.

use crate::support::{
    Clock, Connection, Instance, Request, asked, names, result, start, start_on, text, token,
    within,
};
use refrain_core::{Cx, Elicit, Incomplete, KeyRing, Result, SystemSource, ok};
use refrain_server::{
    AllowedHosts, BearerTokens, BuildError, Peers, Reply, Server, ServerBuilder, ServerLimits,
    State, Tool,
};
use refrain_wire::SamplingParams;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What was done, in the order in which it was done, whichever instance did it.
#[derive(Debug, Default)]
struct Ledger(Mutex<Vec<String>>);

impl Ledger {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().expect("a ledger").push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("a ledger").clone()
    }

    /// Waits until something is written.
    async fn has(&self, line: &str) {
        let written = async {
            while !self.lines().iter().any(|known| known == line) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(line, written).await;
    }
}

type Books = State<Arc<Ledger>>;

/// The old style, as it is.
async fn inline(cx: Cx, ledger: Books) -> Result<String> {
    ledger.write("mutation 1");
    let name: crate::support::Login = cx.elicit("name", "Who are you?").await?;
    ledger.write("mutation 2");
    Ok(format!("Done for {}.", name.name))
}

/// The same, wrapped in steps.
async fn wrapped(cx: Cx, ledger: Books) -> Result<String> {
    cx.step("one", async {
        ledger.write("mutation 1");
        ok(())
    })
    .await?;
    let name: crate::support::Login = cx.elicit("name", "Who are you?").await?;
    cx.step("two", async {
        ledger.write("mutation 2");
        ok(())
    })
    .await?;
    Ok(format!("Done for {}.", name.name))
}

/// Asks twice, and says how it goes.
async fn twice(cx: Cx, ledger: Books) -> Result<String> {
    cx.progress(1.0, Some(3.0), "begun");
    let first: crate::support::Login = cx.elicit("first", "First?").await?;
    ledger.write(format!("first {}", first.name));
    cx.progress(2.0, Some(3.0), "half");
    let (second, third) = tokio::try_join!(
        cx.elicit::<crate::support::Login>("second", "Second?"),
        cx.elicit::<crate::support::Login>("third", "Third?"),
    )?;
    ledger.write(format!("others {} {}", second.name, third.name));
    Ok(format!("{}{}{}", first.name, second.name, third.name))
}

/// Writes down that it was dropped.
struct Dropped(Arc<Ledger>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.write("dropped");
    }
}

/// Asks, and is seen to end.
async fn waits(cx: Cx, ledger: Books) -> Result<String> {
    let _dropped = Dropped(Arc::clone(&ledger));
    ledger.write("begun");
    let name: crate::support::Login = cx.elicit("name", "?").await?;
    Ok(name.name)
}

/// Works until it is dropped.
async fn works(_: Cx, ledger: Books) -> Result<String> {
    let _dropped = Dropped(Arc::clone(&ledger));
    ledger.write("begun");
    std::future::pending().await
}

/// The explicit style: what is missing is said by the reply.
async fn explicit(cx: Cx, ledger: Books) -> Result<Reply<String>> {
    ledger.write("run");
    let said = |name: &str| cx.answer(name).map(|answer| answer.get().to_owned());
    let (Some(first), Some(second)) = (said("first"), said("second")) else {
        let form = <crate::support::Login as Elicit>::form();
        let asks = Incomplete::new().form("first", "?", form);
        return Ok(Reply::Incomplete(asks.form("second", "?", form)));
    };
    Ok(Reply::Complete(format!("{first} {second}")))
}

/// Has a task live on that asks when the call is over.
async fn keeps(cx: Cx, ledger: Books) -> Result<String> {
    let (kept, ledger) = (cx.clone(), Arc::clone(&ledger));
    tokio::spawn(async move {
        kept.cancelled().await;
        let asked = kept.elicit::<crate::support::Login>("late", "?").await;
        ledger.write(asked.expect_err("the call is over").to_string());
        let sampled = kept.sample("idea", SamplingParams::new(10).user("?")).await;
        ledger.write(sampled.expect_err("the call is over").to_string());
    });
    Ok("kept".into())
}

/// Gives up waiting after a while.
async fn impatient(cx: Cx, ledger: Books) -> Result<String> {
    let said = tokio::select! {
        name = cx.elicit::<crate::support::Login>("name", "?") => name?.name,
        () = tokio::time::sleep(Duration::from_millis(20)) => "nobody".into(),
    };
    ledger.write(format!("said by {said}"));
    Ok(said)
}

fn keys() -> KeyRing {
    KeyRing::generate(&SystemSource::new())
}

fn builder(ledger: &Arc<Ledger>, keys: &KeyRing) -> ServerBuilder {
    Server::builder("live", "1")
        .tool(Tool::new("inline", inline).live())
        .tool(Tool::new("wrapped", wrapped))
        .tool(Tool::new("twice", twice).live())
        .tool(Tool::new("waits", waits).live())
        .tool(Tool::new("works", works).live())
        .tool(Tool::new("impatient", impatient).live())
        .tool(Tool::new("explicit", explicit).live())
        .tool(Tool::new("keeps", keeps))
        .tool(Tool::new("keeps_live", keeps).live())
        .state(ledger.clone())
        .keys(keys.clone())
}

fn login(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

fn first(tool: &str) -> Request {
    Request::tool(tool, json!({}))
}

fn second(tool: &str, token: &str) -> Request {
    first(tool).again(token, json!({"name": login("Ada")}))
}

/// Instances that know each other by the names `a`, `b` and so on.
async fn fleet(count: usize, build: impl Fn() -> ServerBuilder, peers: bool) -> Vec<Instance> {
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    }
    let name = |at: usize| char::from(b'a' + at as u8).to_string();
    let known: Vec<_> = listeners
        .iter()
        .enumerate()
        .map(|(at, listener)| {
            let address = listener.local_addr().expect("an address");
            (name(at), format!("http://{address}/mcp"))
        })
        .collect();
    let mut instances = Vec::new();
    for (at, listener) in listeners.into_iter().enumerate() {
        let mut builder = build();
        if peers {
            let all = known
                .iter()
                .fold(Peers::new(name(at)), |peers, (name, url)| {
                    peers.peer(name, url)
                });
            builder = builder.peers(all);
        }
        instances.push(start_on(listener, builder, AllowedHosts::local()));
    }
    instances
}

/// Hands each connection to the next instance.
struct Balancer {
    address: SocketAddr,
    _accepting: JoinSet<()>,
}

impl Balancer {
    async fn over(instances: &[Instance]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let targets: Vec<_> = instances.iter().map(|instance| instance.address).collect();
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let next = AtomicUsize::new(0);
            let mut open = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let target = targets[next.fetch_add(1, Ordering::SeqCst) % targets.len()];
                open.spawn(async move {
                    let mut server = TcpStream::connect(target).await.expect("an instance");
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self {
            address,
            _accepting: accepting,
        }
    }

    async fn send(&self, request: &Request) -> Value {
        let mut connection = Connection::open(self.address).await;
        connection.exchange(request).await.reply()
    }
}

#[tokio::test]
async fn wrapped_in_steps_each_mutation_is_made_once_over_several_instances() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(3, || builder(&ledger, &keys), false).await;
    let balancer = Balancer::over(&instances).await;
    let asks = balancer.send(&first("wrapped")).await;
    let done = balancer.send(&second("wrapped", &token(&asks))).await;
    assert_eq!(text(&done), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn unwrapped_and_live_each_mutation_is_made_once_over_two_peers() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), true).await;
    let balancer = Balancer::over(&instances).await;
    for _ in 0..4 {
        let asks = balancer.send(&first("inline")).await;
        let token = token(&asks);
        assert_eq!(asked(&asks), ["name"]);
        let done = balancer.send(&second("inline", &token)).await;
        assert_eq!(text(&done), "Done for Ada.");
        // The turn of the instance that has just answered.
        balancer.send(&first("wrapped")).await;
    }
    let lines = ledger.lines();
    let count = |what| lines.iter().filter(|line| *line == what).count();
    assert_eq!(
        (count("mutation 1"), count("mutation 2")),
        (8, 4),
        "{lines:?}"
    );
    let told: String = instances.iter().map(|i| i.server.metrics_text()).collect();
    let relayed = |line: &&str| line.starts_with("refrain_live_total{event=\"relayed\"}");
    let relayed: u32 = told
        .lines()
        .filter(relayed)
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
        .sum();
    assert_eq!(relayed, 4, "each second round began at the other instance");
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
async fn what_a_live_handler_says_goes_to_the_round_that_waits() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), true).await;
    let begun = first("twice").meta("progressToken", json!(1));
    let events = instances[0].send(&begun).await.events();
    assert_eq!(events[0]["params"]["message"], "begun");
    let token_of = token(&events[1]);
    // Handed on as it comes, by the instance that does not hold the call.
    let answer = first("twice")
        .again(&token_of, json!({"first": login("a")}))
        .meta("progressToken", json!("second"));
    let events = instances[1].send(&answer).await.events();
    assert_eq!(events[0]["params"]["message"], "half");
    assert_eq!(events[0]["params"]["progressToken"], "second");
    assert_eq!(asked(&events[1]), ["second", "third"]);
}

#[tokio::test]
async fn without_peers_another_instance_says_what_to_do_and_does_nothing() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), false).await;
    let asks = instances[0].send(&first("inline")).await.reply();
    let token = token(&asks);
    let refused = instances[1].send(&second("inline", &token)).await;
    let message = refused.error(200, -32603);
    names(
        &message,
        &["another instance", "peers", "steps", "call anew"],
    );
    assert_eq!(ledger.lines(), ["mutation 1"]);
    // The holder still has it.
    let done = instances[0].send(&second("inline", &token)).await.reply();
    assert_eq!(text(&done), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn doubled_requests_of_a_round_have_one_effect_and_one_reply() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), true).await;
    let asks = instances[0].send(&first("inline")).await.reply();
    let request = second("inline", &token(&asks));
    let at = |at: usize| instances[at % 2].send(&request);
    let all = tokio::join!(at(0), at(1), at(0), at(1), at(1), at(0));
    let late = instances[1].send(&request).await;
    for response in [all.0, all.1, all.2, all.3, all.4, all.5, late] {
        assert_eq!(text(&response.reply()), "Done for Ada.");
    }
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
    // A round that lies further back is not repeated.
    let asks = instances[0].send(&first("twice")).await.reply();
    let one = first("twice").again(&token(&asks), json!({"first": login("a")}));
    let next = instances[0].send(&one).await.reply();
    assert_eq!(
        instances[1].send(&one).await.reply(),
        next,
        "the same reply"
    );
    let both = json!({"second": login("b"), "third": login("c")});
    let last = first("twice").again(&token(&next), both);
    assert_eq!(text(&instances[1].send(&last).await.reply()), "abc");
    let message = instances[0].send(&one).await.error(200, -32602);
    names(&message, &["used before", "last reply"]);
    let firsts = ledger.lines().iter().filter(|l| *l == "first a").count();
    assert_eq!(firsts, 1);
}

#[tokio::test]
async fn a_first_request_that_comes_again_with_its_call_id_is_the_same_call() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let request = first("inline").meta("refrain/callId", json!("c-1"));
    let (one, two) = tokio::join!(instance.send(&request), instance.send(&request));
    let late = instance.send(&request).await.reply();
    let one = one.reply();
    assert_eq!(one, two.reply());
    assert_eq!(one, late);
    let answer = second("inline", &token(&one)).meta("refrain/callId", json!("c-1"));
    assert_eq!(text(&instance.send(&answer).await.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn a_holder_that_is_gone_is_an_error_that_says_so() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        ..ServerLimits::default()
    };
    let build = || builder(&ledger, &keys).limits(limits.clone());
    let mut instances = fleet(2, build, true).await;
    let asks = instances[0].send(&first("waits")).await.reply();
    let request = second("waits", &token(&asks));
    let holder = instances.remove(0);
    let address = holder.address;
    holder.stopped_now().await;
    // What waited there was ended, and not just forgotten.
    ledger.has("dropped").await;
    let message = instances[0].send(&request).await.error(200, -32603);
    names(
        &message,
        &["does not answer", "nothing was done", "call anew", "steps"],
    );
    // Another one in its place, of the same name, knows nothing of the call.
    let listener = TcpListener::bind(address).await.expect("the same port");
    let again = builder(&ledger, &keys).peers(Peers::new("a"));
    let again = start_on(listener, again, AllowedHosts::local());
    for instance in [&instances[0], &again] {
        let message = instance.send(&request).await.error(200, -32603);
        names(&message, &["not held here any more", "call anew"]);
    }
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
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
async fn live_calls_are_limited_in_number_and_in_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls: 2,
        live_time: Duration::from_millis(300),
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
    ledger.has("dropped").await;
    let late = instance.send(&second("waits", &token(&asks))).await;
    names(&late.error(200, -32603), &["given up", "call again"]);
    let free = async {
        while instance.send(&first("waits")).await.status == 503 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("a place", free).await;
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
async fn a_handler_may_go_on_without_its_answer() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("impatient")).await.reply();
    ledger.has("said by nobody").await;
    let done = instance.send(&second("impatient", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "nobody");
    assert_eq!(ledger.lines(), ["said by nobody"]);
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
async fn a_live_token_is_bound_as_any_other() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let clock = Clock::new();
    let build = || {
        let tokens = BearerTokens::new()
            .with("ada", "secret-of-ada")
            .with("bob", "secret-of-bob");
        builder(&ledger, &keys)
            .authenticator(tokens)
            .source(clock.clone())
    };
    let instances = fleet(2, build, true).await;
    let by = |request: Request, who: &str| {
        request.header("Authorization", &format!("Bearer secret-of-{who}"))
    };
    let asks = instances[0].send(&by(first("waits"), "ada")).await.reply();
    let token_of = token(&asks);
    let request = second("waits", &token_of);
    let stranger = instances[1].send(&by(request.clone(), "bob")).await;
    names(&stranger.error(200, -32602), &["requestState is not valid"]);
    let other = second("inline", &token_of);
    instances[0]
        .send(&by(other, "ada"))
        .await
        .error(200, -32602);
    let mut changed = token_of.clone();
    changed.replace_range(60..61, if &token_of[60..61] == "A" { "B" } else { "A" });
    let changed = second("waits", &changed);
    instances[0]
        .send(&by(changed, "ada"))
        .await
        .error(200, -32602);
    assert_eq!(instances[0].send(&request).await.status, 401);
    // Relayed, the caller is the same: the token opens there too.
    let done = instances[1].send(&by(request.clone(), "ada")).await.reply();
    assert_eq!(text(&done), "Ada");
    clock.forward(3 * 3600);
    let late = instances[1].send(&by(request, "ada")).await;
    names(&late.error(200, -32602), &["requestState is not valid"]);
}

#[tokio::test]
async fn nobody_but_a_peer_can_say_who_is_calling() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), true).await;
    let lone = start(builder(&ledger, &keys)).await;
    for (instance, header) in [
        (&instances[0], "AAAA"),
        (&instances[0], "?"),
        (&lone, "AAAA"),
    ] {
        let forged = first("inline").header("Refrain-Relay", header);
        let message = instance.send(&forged).await.error(403, -32600);
        names(&message, &["Refrain-Relay", "leave it out"]);
    }
    assert_eq!(ledger.lines(), [""; 0]);
}

#[tokio::test]
async fn what_a_peer_said_is_good_for_one_request_to_one_peer() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    // A peer that only writes down what it is sent.
    let spy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = spy.local_addr().expect("an address");
    let holder = start(builder(&ledger, &keys).peers(Peers::new("spy"))).await;
    let other = start(builder(&ledger, &keys).peers(Peers::new("other"))).await;
    let peers = Peers::new("a").peer("spy", format!("http://{address}/mcp"));
    let relaying = start(builder(&ledger, &keys).peers(peers)).await;
    let asks = holder.send(&first("waits")).await.reply();
    let request = second("waits", &token(&asks)).header("Authorization", "Bearer x");
    let (mut spied, header) = {
        let mut connection = relaying.connect().await;
        connection.send(&request).await;
        let (stream, _) = within("the relay", spy.accept()).await.expect("a relay");
        let mut seen = Vec::new();
        let mut stream = stream;
        while !String::from_utf8_lossy(&seen).contains("requestState") {
            let read = tokio::io::AsyncReadExt::read_buf(&mut stream, &mut seen);
            assert!(within("the request", read).await.expect("a request") > 0);
        }
        let seen = String::from_utf8(seen).expect("text");
        assert!(!seen.to_lowercase().contains("authorization"), "{seen}");
        let line = seen
            .lines()
            .find_map(|line| line.strip_prefix("refrain-relay: "));
        let header = line.expect("a sealed header").trim().to_owned();
        drop(stream);
        // The peer went away in the middle of it.
        (connection.response().await, header)
    };
    let message = spied.error(200, -32603);
    names(&message, &["does not answer", "not known"]);
    // The same header with the same body is the same request; with another body, or elsewhere, it is nothing.
    let stolen = first("inline").header("Refrain-Relay", &header);
    spied = holder.send(&stolen).await;
    names(&spied.error(403, -32600), &["Refrain-Relay"]);
    let elsewhere = request.clone().header("Refrain-Relay", &header);
    names(
        &other.send(&elsewhere).await.error(403, -32600),
        &["Refrain-Relay"],
    );
    assert_eq!(text(&holder.send(&elsewhere).await.reply()), "Ada");
}

#[tokio::test]
async fn what_was_handed_on_once_is_not_handed_on_again() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    // Each takes the other for `c`, which holds the call.
    let one = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let two = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = |of: &TcpListener| format!("http://{}/mcp", of.local_addr().expect("an address"));
    let (to_one, to_two) = (url(&one), url(&two));
    let holder = start(builder(&ledger, &keys).peers(Peers::new("c"))).await;
    let build =
        |name: &str, to: &str| builder(&ledger, &keys).peers(Peers::new(name).peer("c", to));
    let one = start_on(one, build("a", &to_two), AllowedHosts::local());
    let two = start_on(two, build("b", &to_one), AllowedHosts::local());
    let asks = holder.send(&first("waits")).await.reply();
    for instance in [&one, &two] {
        // The other does not go by that name, and says so.
        let refused = instance.send(&second("waits", &token(&asks))).await;
        names(&refused.error(403, -32600), &["Refrain-Relay"]);
    }
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
        let said = |name| {
            format!("{name:?} cannot be asked: its call is over, and a question belongs to a call")
        };
        ledger.has(&said("idea")).await;
        assert_eq!(ledger.lines(), [said("late"), said("idea")], "{tool}");
    }
}

#[test]
fn what_cannot_be_built() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let why = |builder: ServerBuilder| builder.build().expect_err("a mistake").to_string();
    let build = || builder(&ledger, &keys);
    let both = Tool::new("both", inline).live().task();
    names(&why(build().tool(both)), &["\"both\"", "live", "task"]);
    let no_keys = Server::builder("x", "1").peers(Peers::new("a"));
    assert!(matches!(no_keys.build(), Err(BuildError::PeersNeedKeys)));
    for (peers, words) in [
        (Peers::new(""), ["\"\"", "1 to 200"]),
        (Peers::new("a b"), ["\"a b\"", "spaces"]),
        (Peers::new("a").peer("b", "10.0.0.8"), ["\"b\"", "scheme"]),
        (Peers::new("a").peer("b", "ftp://b/"), ["\"b\"", "https"]),
        (
            Peers::new("a")
                .peer("b", "http://b/")
                .peer("b", "http://c/"),
            ["\"b\"", "twice"],
        ),
    ] {
        names(&why(build().peers(peers)), &words);
    }
}
