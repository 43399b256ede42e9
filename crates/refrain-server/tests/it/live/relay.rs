//! Live calls in a fleet: requests are relayed to the holder.

use super::*;
use crate::support::Response;
use refrain_server::drafts;
use refrain_testkit::net::issuer::authority;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

#[tokio::test]
async fn live_call_runs_each_effect_once_on_two_instances() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), true).await;
    let balancer = balancer(&instances).await;
    for _ in 0..4 {
        let asks = send(&balancer, &first_round("inline")).await;
        let token = token(&asks);
        assert_eq!(asked(&asks), ["name"]);
        let done = send(&balancer, &second_round("inline", &token)).await;
        assert_eq!(text(&done), "Done for Ada.");
        // Skips one turn of the balancer.
        send(&balancer, &first_round("wrapped")).await;
    }
    let lines = ledger.lines();
    let count = |what| lines.iter().filter(|line| *line == what).count();
    assert_eq!(
        (count("mutation 1"), count("mutation 2")),
        (8, 4),
        "{lines:?}"
    );
    let metrics: String = instances.iter().map(|i| i.server.metrics_text()).collect();
    let relayed = |line: &&str| line.starts_with("refrain_live_total{event=\"relayed\"}");
    let relayed: u32 = metrics
        .lines()
        .filter(relayed)
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
        .sum();
    assert_eq!(relayed, 4, "each second round was relayed");
}

#[tokio::test]
async fn notes_go_to_the_waiting_round() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), true).await;
    let started = first_round("twice").meta("progressToken", json!(1));
    let events = instances[0].send(&started).await.events();
    assert_eq!(events[0]["params"]["message"], "started");
    let token_of = token(&events[1]);
    // The other instance relays events immediately.
    let answer = first_round("twice")
        .again(&token_of, json!({"first": accept("a")}))
        .meta("progressToken", json!("second"));
    let events = instances[1].send(&answer).await.events();
    assert_eq!(events[0]["params"]["message"], "half");
    assert_eq!(events[0]["params"]["progressToken"], "second");
    assert_eq!(asked(&events[1]), ["second", "third"]);
}

#[tokio::test]
async fn holder_without_advertised_url_is_an_error_with_hint() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), false).await;
    let asks = instances[0].send(&first_round("inline")).await.reply();
    let token = token(&asks);
    let rejected = instances[1].send(&second_round("inline", &token)).await;
    let message = rejected.error(200, -32603);
    assert_contains(
        &message,
        &[
            "another instance",
            "--advertise",
            "steps",
            "start a new call",
        ],
    );
    assert_eq!(ledger.lines(), ["mutation 1"]);
    // The holder still has the call.
    let done = instances[0]
        .send(&second_round("inline", &token))
        .await
        .reply();
    assert_eq!(text(&done), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn unreachable_or_restarted_holder_is_an_error() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        drain_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let build = || builder(&ledger, &keys).limits(limits.clone());
    let mut instances = fleet(2, build, true).await;
    let asks = instances[0].send(&first_round("waits")).await.reply();
    let request = second_round("waits", &token(&asks));
    let holder = instances.remove(0);
    let address = holder.address;
    holder.stopped_now().await;
    // The waiting handler was dropped.
    ledger.wait_for("dropped").await;
    let message = instances[0].send(&request).await.error(200, -32603);
    assert_contains(
        &message,
        &[
            "does not respond",
            "had no effect",
            "start a new call",
            "steps",
        ],
    );
    // A restarted instance at the same URL does not have the call.
    let listener = TcpListener::bind(address)
        .await
        .expect("the port is free again");
    let again = builder(&ledger, &keys).advertise(url_of(&listener));
    let again = start_on(listener, again, AllowedHosts::local());
    for instance in [&instances[0], &again] {
        let message = instance.send(&request).await.error(200, -32603);
        assert_contains(&message, &["no longer in memory", "start a new call"]);
    }
    assert_eq!(ledger.lines(), ["started", "dropped"]);
}

#[tokio::test]
async fn live_token_is_bound_to_caller_and_call() {
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
    let by = |request: Request, who: &str| request.bearer(&format!("secret-of-{who}"));
    let asks = instances[0]
        .send(&by(first_round("waits"), "ada"))
        .await
        .reply();
    let token_of = token(&asks);
    let request = second_round("waits", &token_of);
    let stranger = instances[1].send(&by(request.clone(), "bob")).await;
    assert_contains(&stranger.error(200, -32602), &["requestState is not valid"]);
    let other = second_round("inline", &token_of);
    instances[0]
        .send(&by(other, "ada"))
        .await
        .error(200, -32602);
    let changed = second_round("waits", &tampered(&token_of, 60));
    instances[0]
        .send(&by(changed, "ada"))
        .await
        .error(200, -32602);
    assert_eq!(instances[0].send(&request).await.status, 401);
    // The relayed request has the same caller, so the holder opens the token.
    let done = instances[1].send(&by(request.clone(), "ada")).await.reply();
    assert_eq!(text(&done), "Ada");
    clock.forward(25 * 3600);
    let late = instances[1].send(&by(request, "ada")).await;
    assert_contains(&late.error(200, -32602), &["requestState is not valid"]);
}

#[tokio::test]
async fn forged_relay_header_is_rejected() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(2, || builder(&ledger, &keys), true).await;
    let lone = start(builder(&ledger, &keys)).await;
    for (instance, header) in [
        (&instances[0], "AAAA"),
        (&instances[0], "?"),
        (&lone, "AAAA"),
    ] {
        let forged = first_round("inline").header("Refrain-Relay", header);
        let message = instance.send(&forged).await.error(403, -32600);
        assert_contains(&message, &["Refrain-Relay", "leave it out"]);
    }
    assert_eq!(ledger.lines(), [""; 0]);
}

/// Accepts a relayed request without a response. Returns the connection and the request.
async fn accept_relayed(spy: &TcpListener) -> (TcpStream, String) {
    let (mut stream, _) = within("the relay", spy.accept())
        .await
        .expect("the relay connects");
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("requestState") {
        let read = tokio::io::AsyncReadExt::read_buf(&mut stream, &mut seen);
        assert!(
            within("the request", read)
                .await
                .expect("the request is readable")
                > 0
        );
    }
    (stream, String::from_utf8(seen).expect("the body is UTF-8"))
}

#[tokio::test]
async fn relayed_request_contains_no_secrets() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let spy = bind().await;
    let build = || {
        let proxy = TrustedProxy::new("a long random secret").expect("the secret is long enough");
        let proxy = proxy
            .user_header("x-user")
            .expect("the header name is valid");
        builder(&ledger, &keys).authenticator(proxy)
    };
    let holder = start(build().advertise(url_of(&spy))).await;
    let relaying = start(build()).await;
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
    let asks = holder.send(&by_proxy(first_round("waits"))).await.reply();
    let mut connection = relaying.connect().await;
    let request = by_proxy(second_round("waits", &token(&asks)));
    connection.send(&request).await;
    let (stream, seen) = accept_relayed(&spy).await;
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
async fn relay_header_is_valid_for_one_request_to_one_instance() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    // The spy only records requests.
    let spy = bind().await;
    let holder = start(builder(&ledger, &keys).advertise(url_of(&spy))).await;
    let other = start_advertised(builder(&ledger, &keys)).await;
    let relaying = start(builder(&ledger, &keys)).await;
    let asks = holder.send(&first_round("waits")).await.reply();
    let request = second_round("waits", &token(&asks)).header("Authorization", "Bearer x");
    let (mut response, header) = {
        let mut connection = relaying.connect().await;
        connection.send(&request).await;
        let (stream, seen) = accept_relayed(&spy).await;
        assert!(!seen.to_lowercase().contains("authorization"), "{seen}");
        let line = seen
            .lines()
            .find_map(|line| line.strip_prefix("refrain-relay: "));
        let header = line
            .expect("the request has a relay header")
            .trim()
            .to_owned();
        drop(stream);
        // The spy closed the connection without a response.
        (connection.response().await, header)
    };
    let message = response.error(200, -32603);
    assert_contains(&message, &["does not respond", "unknown whether"]);
    // The header is valid only with the same body and at the same instance.
    let stolen = first_round("inline").header("Refrain-Relay", &header);
    response = holder.send(&stolen).await;
    assert_contains(&response.error(403, -32600), &["Refrain-Relay"]);
    let elsewhere = request.clone().header("Refrain-Relay", &header);
    assert_contains(
        &other.send(&elsewhere).await.error(421, -32600),
        &["Refrain-Relay", "another instance"],
    );
    let done = holder.send(&elsewhere).await;
    assert_eq!(text(&done.reply()), "Ada");
    assert!(done.header("refrain-instance").is_some(), "{done:?}");
    let other = holder.send(&first_round("wrapped")).await;
    assert_eq!(other.header("refrain-instance"), None, "{other:?}");
}

#[tokio::test]
async fn another_instance_at_the_url_does_not_relay_again() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let other = start_advertised(builder(&ledger, &keys)).await;
    let url = format!("http://{}/mcp", other.address);
    let holder = start(builder(&ledger, &keys).advertise(url)).await;
    let relaying = start(builder(&ledger, &keys)).await;
    let asks = holder.send(&first_round("waits")).await.reply();
    // The rejection of the header is not passed on to the client.
    let rejected = relaying.send(&second_round("waits", &token(&asks))).await;
    let message = rejected.error(200, -32603);
    assert_contains(&message, &["no longer in memory", "had no effect"]);
    assert!(!message.contains("Refrain-Relay"), "{message}");
}

#[tokio::test]
async fn relay_header_of_another_audience_is_rejected() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let other = Server::builder("another", "1")
        .tool(Tool::new("waits", waits).live())
        .state(ledger.clone())
        .keys(keys.clone());
    let other = start(other).await;
    let url = format!("http://{}/mcp", other.address);
    let holder = start(builder(&ledger, &keys).advertise(url)).await;
    let relaying = start(builder(&ledger, &keys)).await;
    let asks = holder.send(&first_round("waits")).await.reply();
    let rejected = relaying.send(&second_round("waits", &token(&asks))).await;
    assert_contains(
        &rejected.error(200, -32603),
        &["rejected the relayed request", "had no effect"],
    );
}

/// The instance id of a server, as the ids of events have it.
async fn id_of(instance: &Instance) -> String {
    let mut stream = Session::open(instance).await.get().await;
    let event = stream
        .event()
        .await
        .expect("the stream starts with an event id");
    event
        .id
        .split('-')
        .next()
        .expect("split returns at least one part")
        .to_owned()
}

/// A holder that advertises the URL of `spy`, its instance id, and another instance.
async fn start_spied(spy: &TcpListener) -> (Instance, String, Instance) {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let holder = start(builder(&ledger, &keys).advertise(url_of(spy))).await;
    let id = id_of(&holder).await;
    (holder, id, start(builder(&ledger, &keys)).await)
}

/// The response to a request whose holder answers with these bytes, `ID` replaced by its instance id.
async fn relay_to_answer(answer: &str) -> Response {
    let spy = bind().await;
    let (holder, id, relaying) = start_spied(&spy).await;
    let asks = holder.send(&first_round("waits")).await.reply();
    let mut connection = relaying.connect().await;
    connection.send(&second_round("waits", &token(&asks))).await;
    let (mut stream, _) = accept_relayed(&spy).await;
    let answer = answer.replace("ID", &id);
    let written = tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes());
    within("the answer", written)
        .await
        .expect("the relay reads");
    connection.response().await
}

fn http(status: &str, instance: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nRetry-After: 1\r\nSet-Cookie: a=1\r\n\
         Refrain-Instance: {instance}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn only_responses_of_the_holder_are_passed_on() {
    let error = |code: i32| {
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}}).to_string()
    };
    let busy = relay_to_answer(&http("503 Busy", "ID", &error(-32603))).await;
    assert_eq!(busy.error(503, -32603), "no");
    assert_eq!(busy.header("retry-after"), Some("1"));
    assert_eq!(busy.header("set-cookie"), None);
    assert_eq!(busy.header("refrain-instance"), None);
    let missing_capability = relay_to_answer(&http("400 Bad Request", "ID", &error(-32021))).await;
    assert_eq!(missing_capability.error(400, -32021), "no");
    for (status, body, effect) in [
        ("404 Not Found", error(-32603), "had no effect"),
        ("403 Forbidden", error(-32600), "had no effect"),
        ("401 Unauthorized", String::new(), "had no effect"),
        ("400 Bad Request", "<html>".to_owned(), "had no effect"),
        ("502 Bad Gateway", "<html>".to_owned(), "had no effect"),
        ("302 Found", String::new(), "unknown whether"),
        ("500 Oh", error(-32603), "unknown whether"),
        ("503 Busy", "<html>".to_owned(), "unknown whether"),
        ("200 OK", "<html>".to_owned(), "unknown whether"),
        ("200 OK", error(-32603), "unknown whether"),
    ] {
        for instance in ["", "0123456789abcdef"] {
            let answer = http(status, instance, &body);
            let message = relay_to_answer(&answer).await.error(200, -32603);
            assert_contains(
                &message,
                &["another instance", "rejected the relayed request", effect],
            );
        }
    }
}

#[tokio::test]
async fn silent_holder_times_out() {
    let spy = bind().await;
    let (holder, id, relaying) = start_spied(&spy).await;
    let asks = holder.send(&first_round("waits")).await.reply();
    let stream = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nRefrain-Instance: {id}\r\n\r\n:\n\n"
    );
    for head in ["", &stream] {
        let mut connection = relaying.connect().await;
        connection.send(&second_round("waits", &token(&asks))).await;
        let (mut stream, _) = accept_relayed(&spy).await;
        let written = tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes());
        within("the head", written).await.expect("the relay reads");
        if !head.is_empty() {
            // The stream starts and then stays silent.
            assert_eq!(connection.head().await.status, 200);
            assert_eq!(connection.block().await.as_deref(), Some(":"));
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(91)).await;
        tokio::time::resume();
        let message = if head.is_empty() {
            connection.response().await.error(200, -32603)
        } else {
            let data = loop {
                // An unfinished event is ended first.
                let piece = connection.block().await.expect("the stream is open");
                let mut lines = piece.lines();
                if let Some(data) = lines.find_map(|line| line.strip_prefix("data: ")) {
                    break data.to_owned();
                }
            };
            let event: Value = serde_json::from_str(&data).expect("replies are JSON");
            event["error"]["message"]
                .as_str()
                .expect("the message is a string")
                .to_owned()
        };
        assert_contains(&message, &["does not respond", "unknown whether", "Retry"]);
    }
}

#[tokio::test]
async fn draft_endpoint_relays_to_the_holder() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let start = async || {
        let listener = bind().await;
        let address = listener.local_addr().expect("a bound listener");
        let advertised = || builder(&ledger, &keys).advertise(url_of(&listener));
        let main = advertised().build().expect("the server builds");
        let drafted = advertised().draft(Draft::Second).build();
        let drafted = vec![(Draft::Second, drafted.expect("the server builds"))];
        let (hosts, stopped) = (AllowedHosts::local(), std::future::pending());
        tokio::spawn(drafts::serve(listener, main, drafted, hosts, stopped));
        address
    };
    let (holder, other) = (start().await, start().await);
    let params = json!({"name": "waits", "arguments": {}});
    let asks = call_draft(holder, params.clone()).await;
    let mut answer = params;
    answer["requestState"] = asks["result"]["requestState"].clone();
    answer["inputResponses"] = json!({"name": accept("Ada")});
    let done = call_draft(other, answer).await;
    assert_eq!(done["result"]["content"][0]["text"], "Ada", "{done}");
    assert_eq!(ledger.lines()[0], "started");
}

/// Runs itself in another process that trusts the test certificate.
#[tokio::test]
async fn live_call_is_relayed_over_https() {
    let ca = authority("ca.pem");
    if std::env::var("SSL_CERT_FILE").ok().as_ref() != Some(&ca) {
        let test = std::env::current_exe().expect("the test binary has a path");
        let process = tokio::process::Command::new(test)
            .args(["--exact", "live::relay::live_call_is_relayed_over_https"])
            .env("SSL_CERT_FILE", &ca)
            .output();
        let output = within("the other process", process)
            .await
            .expect("the process ran");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("1 passed"), "{printed}");
        return;
    }
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let (plain, tls) = (bind().await, bind().await);
    let address = plain.local_addr().expect("the listener is bound");
    let url = url_of(&tls).replace("http:", "https:");
    let holder = builder(&ledger, &keys).advertise(url);
    let holder = start_on(plain, holder, AllowedHosts::local());
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(read("server.der"))],
            PrivatePkcs8KeyDer::from(read("server.pk8")).into(),
        );
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("certificate and key match")));
    tokio::spawn(async move {
        while let Ok((stream, _)) = tls.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor
                    .accept(stream)
                    .await
                    .expect("the TLS handshake succeeds");
                let mut inner = TcpStream::connect(address)
                    .await
                    .expect("the holder listens");
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut inner).await;
            });
        }
    });
    let other = start(builder(&ledger, &keys)).await;
    let asks = holder.send(&first_round("waits")).await.reply();
    let done = other
        .send(&second_round("waits", &token(&asks)))
        .await
        .reply();
    assert_eq!(text(&done), "Ada");
}

fn read(fixture: &str) -> Vec<u8> {
    std::fs::read(authority(fixture)).expect("the fixture exists")
}
