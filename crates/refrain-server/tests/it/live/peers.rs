//! Live calls in a fleet: requests are handed to the instance that holds the call.

use super::*;

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
    clock.forward(25 * 3600);
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

/// A request that is handed on to somebody who does not answer it, and its connection.
async fn spied_on(spy: &TcpListener) -> (TcpStream, String) {
    let (mut stream, _) = within("the relay", spy.accept()).await.expect("a relay");
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("requestState") {
        let read = tokio::io::AsyncReadExt::read_buf(&mut stream, &mut seen);
        assert!(within("the request", read).await.expect("a request") > 0);
    }
    (stream, String::from_utf8(seen).expect("text"))
}

#[tokio::test]
async fn a_peer_is_sent_what_it_needs_and_no_secrets() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let spy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", spy.local_addr().expect("an address"));
    let build = || {
        let proxy = TrustedProxy::new("a long random secret").expect("a secret");
        let proxy = proxy.user_header("x-user").expect("a header");
        builder(&ledger, &keys).authenticator(proxy)
    };
    let holder = start(build().peers(Peers::new("spy"))).await;
    let relaying = start(build().peers(Peers::new("a").peer("spy", url))).await;
    let by_proxy = |request: Request| {
        request
            .header("X-Proxy-Secret", "a long random secret")
            .header("X-User", "ada@example.com")
            .header("X-Api-Key", "key-of-ada")
            .header("Cookie", "cookie-of-ada")
            .header("Mcp-Session-Id", "session-of-ada")
            .header("Mcp-Param-Region", "north")
            .header("Traceparent", "00-1-2-01")
            .header("Baggage", "a=1")
    };
    let asks = holder.send(&by_proxy(first("waits"))).await.reply();
    let mut connection = relaying.connect().await;
    let request = by_proxy(second("waits", &token(&asks)));
    connection.send(&request).await;
    let (stream, seen) = spied_on(&spy).await;
    drop(stream);
    let seen = seen.to_lowercase();
    for secret in ["secret", "ada@", "x-user", "key-of", "cookie", "session-of"] {
        assert!(!seen.contains(secret), "{secret} in {seen}");
    }
    for needed in [
        "content-type: application/json",
        "accept: ",
        "mcp-method: tools/call",
        "mcp-name: waits",
        "mcp-protocol-version: 2026-07-28",
        "mcp-param-region: north",
        "traceparent: 00-1-2-01",
        "baggage: a=1",
        "refrain-relay: ",
    ] {
        assert!(seen.contains(needed), "no {needed} in {seen}");
    }
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
        let (stream, seen) = spied_on(&spy).await;
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
