//! Processes of backends: who shares them, how many there are, and what they inherit.

use crate::http_backend;
use crate::support::{
    Ledger, Running, answer, asked, authenticator, backend, command, completed, text, text_of,
    token,
};
use futures_util::future::join_all;
use refrain::client::wire::AskKind;
use refrain::client::{Bearer, CallSpec, Client, ClientLimits, Dialect};
use refrain::server::ServerBuilder;
use refrain_gateway::{BackendTable, GatewayConfig, GatewayTable, Sessions, Setting};
use refrain_testkit::net::wait::success;
use refrain_testkit::net::{self, Request, until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The id of the process that serves a call, and the number of its calls.
async fn process(client: &Client) -> (u64, u64) {
    let found = text(client, "process", json!({})).await;
    let found: Value = serde_json::from_str(&found).expect("JSON");
    let number = |key: &str| found[key].as_u64().expect("a number");
    (number("pid"), number("calls"))
}

async fn start_for_two(config: &GatewayConfig) -> Running {
    let authenticator = authenticator(&["alice", "bob"]);
    Running::start_with(config, |builder| builder.authenticator(authenticator)).await
}

/// A client of Alice that answers no asks and does not retry.
async fn alice_without_asks(running: &Running) -> Client {
    let limits = ClientLimits {
        retries: 0,
        ..ClientLimits::default()
    };
    let bearer = Bearer::new(&token("alice")).expect("a valid token");
    let alice = Client::builder().authorize(bearer).limits(limits);
    success("connecting", alice.connect(&running.instance.url())).await
}

/// Two callers make 500 calls each, 10 at a time. Returns the connections that served each caller, as `tool` names them.
async fn interleave(running: &Running, tool: &str) -> [BTreeSet<String>; 2] {
    let clients = [
        running.client_of("alice").await,
        running.client_of("bob").await,
    ];
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    for _ in 0..50 {
        let calls = clients
            .iter()
            .map(async |client| join_all((0..10).map(|_| text(client, tool, json!({})))).await);
        for (connections, found) in seen.iter_mut().zip(join_all(calls).await) {
            connections.extend(found);
        }
    }
    seen
}

#[tokio::test]
async fn interleaved_callers_never_share_a_process() {
    let ledger = Ledger::new();
    let running = start_for_two(&GatewayConfig::single("tested", backend(&ledger))).await;
    let [alice, bob] = interleave(&running, "process").await.map(|seen| {
        let found = seen
            .iter()
            .map(|found| serde_json::from_str::<Value>(found));
        let pid = |found: Value| found["pid"].as_u64().expect("a number");
        found
            .map(|found| pid(found.expect("JSON")))
            .collect::<BTreeSet<_>>()
    });
    assert!(alice.is_disjoint(&bob), "{alice:?} {bob:?}");
    assert!(alice.len() <= 16 && bob.len() <= 16, "{alice:?} {bob:?}");
    running.stop().await;
}

#[tokio::test]
async fn interleaved_callers_never_share_a_session() {
    let server = http_backend::start().await;
    let config = GatewayConfig::single("tested", http_backend::at(&server));
    let running = start_for_two(&config).await;
    let [alice, bob] = interleave(&running, "session").await;
    assert!(alice.is_disjoint(&bob), "{alice:?} {bob:?}");
    assert!(alice.len() == 1 && bob.len() == 1, "{alice:?} {bob:?}");
    let calls = server.count("tools/call");
    assert_eq!(calls, 1000);
    running.stop().await;
}

#[tokio::test]
async fn concurrent_asks_reach_their_own_calls() {
    let ledger = Ledger::new();
    let running = Running::start(&GatewayConfig::single("tested", backend(&ledger))).await;
    let client = running.client().await;
    let subjects = ["tea", "cake", "milk"];
    let open = subjects.map(|subject| asked(&client, "ask", json!({"subject": subject})));
    let open = join_all(open).await;
    for (pending, subject) in open.into_iter().zip(subjects).rev() {
        let done = completed(answer(&client, pending, "Ada").await);
        assert_eq!(done, format!("{subject} for Ada"));
    }
    assert_eq!(ledger.count("ask"), 3);
    running.stop().await;
}

/// A modern process may sign its request state with its own key.
#[tokio::test]
async fn next_round_reaches_the_process_that_asked() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        command: command(&ledger, &["--modern"]),
        ..BackendTable::default()
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let pending = asked(&client, "ask", json!({"subject": "tea"})).await;
    // Other calls take every process that is free.
    let slow = join_all([0.5; 2].map(|seconds| text(&client, "slow", json!({"seconds": seconds}))));
    let answered = answer(&client, pending, "Ada");
    let (_, answered) = tokio::join!(slow, answered);
    assert_eq!(completed(answered), "tea for Ada");
    assert_eq!(ledger.count("ask"), 1);
    running.stop().await;
}

#[tokio::test]
async fn call_over_the_limit_waits_and_then_fails() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        connections: 2,
        prewarm: 0,
        queue_seconds: 1,
        ..backend(&ledger)
    };
    // One connection watches the lists, the other is for calls.
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let waiting = asked(&client, "ask", json!({"subject": "tea"})).await;
    let failed = client.call_tool("echo", json!({"text": "hi"})).await;
    let failed = failed.expect_err("no connection is free");
    let why = failed.to_string();
    assert!(
        why.contains("no connection to backend tested became free"),
        "{why}"
    );
    let answered = answer(&client, waiting, "Ada");
    let queued = text(&client, "echo", json!({"text": "queued"}));
    let (answered, queued) = tokio::join!(answered, queued);
    assert_eq!(completed(answered), "tea for Ada");
    assert_eq!(queued, "queued");
    running.stop().await;
}

#[tokio::test]
async fn idle_process_of_another_caller_gives_way() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        prewarm: 0,
        ..backend(&ledger)
    };
    let config = GatewayConfig {
        gateway: GatewayTable {
            connections: 2,
            connections_each: 1,
            ..GatewayTable::default()
        },
        ..GatewayConfig::single("tested", backend)
    };
    let running = start_for_two(&config).await;
    for name in ["alice", "bob", "alice"] {
        let client = running.client_of(name).await;
        assert_eq!(process(&client).await.1, 1, "{name} has a new process");
    }
    running.stop().await;
}

/// A process serves only clients that can answer the same asks.
#[tokio::test]
async fn own_idle_connection_gives_way_to_a_client_with_other_capabilities() {
    let server = http_backend::start().await;
    let backend = BackendTable {
        exclusive: true,
        connections: 1,
        queue_seconds: 1,
        ..http_backend::at(&server)
    };
    let running = start_for_two(&GatewayConfig::single("tested", backend)).await;
    let (with_forms, without) = (
        running.client_of("alice").await,
        alice_without_asks(&running),
    );
    let first = text(&with_forms, "session", json!({})).await;
    let second = text(&without.await, "session", json!({})).await;
    assert_ne!(first, second);
    running.stop().await;
}

#[tokio::test]
async fn caller_at_its_share_stops_only_its_own_idle_process() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        connections: 3,
        prewarm: 0,
        queue_seconds: 1,
        ..backend(&ledger)
    };
    // One connection watches the lists.
    let running = start_for_two(&GatewayConfig::single("tested", backend)).await;
    let (alice, bob) = (
        running.client_of("alice").await,
        running.client_of("bob").await,
    );
    let without_asks = alice_without_asks(&running).await;
    assert_eq!(process(&bob).await.1, 1);
    // Each stops the idle process of the one before, although Bob's was idle for longer.
    assert_eq!(process(&alice).await.1, 1);
    assert_eq!(process(&without_asks).await.1, 1);
    let waiting = asked(&alice, "ask", json!({"subject": "tea"})).await;
    let rejected = without_asks.call_tool("process", json!({})).await;
    let why = rejected.expect_err("the only process of the caller is in use");
    assert!(why.to_string().contains("no connection"), "{why}");
    assert_eq!(process(&bob).await.1, 2, "it was not replaced");
    completed(answer(&alice, waiting, "Ada").await);
    running.stop().await;
}

#[tokio::test]
async fn waiting_calls_of_one_address_leave_connections_to_other_anonymous_callers() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        prewarm: 0,
        queue_seconds: 1,
        ..backend(&ledger)
    };
    let config = GatewayConfig {
        gateway: GatewayTable {
            connections_each: 2,
            ..GatewayTable::default()
        },
        ..GatewayConfig::single("tested", backend)
    };
    let with_header = |builder: ServerBuilder| builder.client_address_header("x-address");
    let running = Running::start_with(&config, with_header).await;
    let client_at = async |address: &str| {
        let builder = Client::builder()
            .header("x-address", address)
            .limits(ClientLimits {
                retries: 0,
                ..ClientLimits::default()
            });
        let builder = builder.answer_manually([AskKind::Form]);
        success("connecting", builder.connect(&running.instance.url())).await
    };
    let (first, second) = (client_at("192.0.2.1").await, client_at("192.0.2.2").await);
    for subject in ["cup", "plate"] {
        asked(&first, "ask", json!({"subject": subject})).await;
    }
    let rejected = first.call_tool("echo", json!({"text": "third"})).await;
    let why = rejected.expect_err("the address is at its limit");
    assert!(
        why.to_string().contains("no connection to backend tested"),
        "{why}"
    );
    assert_eq!(text(&second, "echo", json!({"text": "hi"})).await, "hi");
    running.stop().await;
}

/// Processes with state are never closed to make room.
#[tokio::test]
async fn sessions_of_one_caller_leave_connections_to_others() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        sessions: Sessions::Handle,
        connections: 8,
        queue_seconds: 1,
        ..backend(&ledger)
    };
    let running = start_for_two(&GatewayConfig::single("tested", backend)).await;
    let alice = alice_without_asks(&running).await;
    let mut opened = 0;
    while opened < 8 && alice.call_tool("open_session", json!({})).await.is_ok() {
        opened += 1;
    }
    assert_eq!(opened, 4, "one of eight lists the backend");
    let bob = running.client_of("bob").await;
    let session = json!({"session": open(&bob).await});
    let found = text(&bob, "process", session).await;
    assert!(found.contains("\"calls\": 1"), "{found}");
    running.stop().await;
}

#[tokio::test]
async fn waiting_calls_of_one_caller_leave_connections_to_others() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        connections: 8,
        queue_seconds: 1,
        ..backend(&ledger)
    };
    let running = start_for_two(&GatewayConfig::single("tested", backend)).await;
    let alice = running.client_of("alice").await;
    let starting = (0..10).map(|number| {
        let subject = json!({"subject": format!("cup {number}")});
        let call =
            CallSpec::tool("ask").with_arguments(subject.as_object().cloned().expect("an object"));
        alice.start(call)
    });
    let started = join_all(starting.map(|call| timeout(Duration::from_secs(5), call))).await;
    let waiting = started
        .iter()
        .filter(|call| matches!(call, Ok(Ok(_))))
        .count();
    assert!((2..=4).contains(&waiting), "{waiting} of 8");
    let bob = running.client_of("bob").await;
    assert_eq!(text(&bob, "echo", json!({"text": "hi"})).await, "hi");
    running.stop().await;
}

/// A caller that abandons calls in a loop does not keep the machine busy with new processes.
#[tokio::test]
async fn abandoned_calls_delay_the_next_processes_of_their_caller() {
    let ledger = Ledger::new();
    let config = GatewayConfig::single("tested", backend(&ledger));
    let running = start_for_two(&config).await;
    let bob = running.client_of("bob").await;
    // Without a call id, so that it ends with its connection.
    let request = Request::tool("slow", json!({"seconds": 60}));
    let request = request.header("Authorization", &format!("Bearer {}", token("alice")));
    let begun = Instant::now();
    for _ in 0..40 {
        let mut connection = running.instance.connect().await;
        connection.write(&request.to_bytes("localhost")).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(connection);
        // One connection lists the backend, and one is prewarmed.
        until("the end of the call", || {
            running.metric("refrain_gateway_connections") <= 2
        })
        .await;
    }
    // 16 processes are replaced at once, and then one in each second. A few are started in advance.
    let starts = running.metric("refrain_gateway_starts_total");
    let limit = 24 + 2 * begun.elapsed().as_secs();
    assert!(starts <= limit, "{starts} of {limit}");
    assert_eq!(text(&bob, "echo", json!({"text": "hi"})).await, "hi");
    running.stop().await;
}

/// Each set of capabilities needs its own process.
#[tokio::test]
async fn caller_with_varying_capabilities_has_to_wait_for_processes() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        connections: 4,
        prewarm: 0,
        queue_seconds: 0,
        ..backend(&ledger)
    };
    let running = start_for_two(&GatewayConfig::single("tested", backend)).await;
    let call = async |caller: &str, capabilities: &Value| {
        let request = Request::tool("echo", json!({"text": "hi"}));
        let request = request.header("Authorization", &format!("Bearer {}", token(caller)));
        let request = request.meta(net::CAPABILITIES_KEY, capabilities.clone());
        running.instance.send(&request).await.status
    };
    let capabilities = [
        json!({}),
        json!({"roots": {}}),
        json!({"sampling": {}}),
        json!({"elicitation": {}}),
    ];
    // 16 processes are replaced at once, and then one in each second.
    let mut rejected = false;
    for capabilities in capabilities.iter().cycle().take(400) {
        if call("alice", capabilities).await == 503 {
            rejected = true;
            break;
        }
    }
    assert!(rejected, "no call had to wait");
    assert!(running.metric("refrain_gateway_starts_total") > 16);
    assert_eq!(call("bob", &capabilities[0]).await, 200);
    running.stop().await;
}

#[tokio::test]
async fn crashed_backend_is_reported_and_replaced() {
    let ledger = Ledger::new();
    let running = Running::start(&GatewayConfig::single("tested", backend(&ledger))).await;
    let client = running.client().await;
    let crashed = client.call_tool("crash", json!({})).await;
    let crashed = crashed.expect("a result");
    assert!(crashed.is_error);
    let why = text_of(&crashed);
    // The command and its output may contain secrets.
    assert_eq!(
        why,
        "backend tested: its process exited; it may have been executed, so check before you repeat it"
    );
    assert_eq!(
        text(&client, "echo", json!({"text": "again"})).await,
        "again"
    );
    running.stop().await;
}

#[tokio::test]
async fn noise_on_standard_output_is_ignored() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        command: command(&ledger, &["--noise"]),
        ..BackendTable::default()
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    assert_eq!(text(&client, "echo", json!({"text": "hi"})).await, "hi");
    running.stop().await;
}

#[tokio::test]
async fn program_does_not_inherit_variables_of_the_gateway() {
    let ledger = Ledger::new();
    let token = Setting::Text("secret".to_owned());
    let backend = BackendTable {
        env: [("TESTED_TOKEN".to_owned(), token)].into(),
        ..backend(&ledger)
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    // Cargo sets `CARGO_MANIFEST_DIR` for this test.
    for (name, value) in [("TESTED_TOKEN", "secret"), ("CARGO_MANIFEST_DIR", "unset")] {
        let found = text(&client, "environment", json!({"name": name})).await;
        assert_eq!(found, value, "{name}");
    }
    running.stop().await;
}

#[tokio::test]
async fn roots_outside_of_calls_come_from_the_configuration() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        command: command(&ledger, &["--ask-roots"]),
        roots: vec!["file:///srv/data".parse().expect("a URL")],
        ..BackendTable::default()
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let roots = text(&client, "roots", json!({})).await;
    let roots: Value = serde_json::from_str(&roots).expect("JSON");
    assert_eq!(roots, json!([{"uri": "file:///srv/data"}]));
    running.stop().await;
}

#[tokio::test]
async fn caller_sessions_keep_one_process() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        sessions: Sessions::Caller,
        ..backend(&ledger)
    };
    let running = start_for_two(&GatewayConfig::single("tested", backend)).await;
    let alice = running.client_of("alice").await;
    let bob = running.client_of("bob").await;
    let found = join_all((0..5).map(|_| process(&alice))).await;
    let pids: BTreeSet<u64> = found.iter().map(|(pid, _)| *pid).collect();
    assert_eq!(pids.len(), 1, "{found:?}");
    assert!(!pids.contains(&process(&bob).await.0));
    assert_eq!(process(&alice).await.1, 6, "the process kept its state");
    running.stop().await;
}

/// Opens a session, and returns its handle.
async fn open(client: &Client) -> String {
    let opened = text(client, "open_session", json!({})).await;
    let opened: Value = serde_json::from_str(&opened).expect("JSON");
    opened["session"].as_str().expect("a handle").to_owned()
}

#[tokio::test]
async fn crashed_process_ends_its_handle() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        sessions: Sessions::Handle,
        ..backend(&ledger)
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let session = json!({"session": open(&client).await});
    let crashed = client.call_tool("crash", session.clone()).await;
    assert!(crashed.expect("a result").is_error);
    let why = text(&client, "process", session).await;
    assert_eq!(why, "the session has ended; call open_session again");
    let session = json!({"session": open(&client).await});
    let found = text(&client, "process", session).await;
    assert!(found.contains("\"calls\": 1"), "{found}");
    running.stop().await;
}

#[tokio::test]
async fn unused_handle_ends() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        sessions: Sessions::Handle,
        idle_seconds: 1,
        ..backend(&ledger)
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let session = json!({"session": open(&client).await});
    until("the process to end", || {
        running.metric("refrain_gateway_connections") == 1
    })
    .await;
    let why = text(&client, "process", session).await;
    assert_eq!(why, "the session has ended; call open_session again");
    running.stop().await;
}

#[tokio::test]
async fn crashed_process_of_a_caller_is_replaced() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        sessions: Sessions::Caller,
        ..backend(&ledger)
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let (pid, _) = process(&client).await;
    let crashed = client.call_tool("crash", json!({})).await;
    assert!(crashed.expect("a result").is_error);
    let (next, calls) = process(&client).await;
    assert!(next != pid && calls == 1, "{next} {calls}");
    running.stop().await;
}

#[tokio::test]
async fn process_is_replaced_after_its_calls() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        calls_per_process: 2,
        ..backend(&ledger)
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(process(&client).await.1);
    }
    assert_eq!(counts, [1, 2, 1, 2]);
    running.stop().await;
}

#[tokio::test]
async fn idle_process_is_closed() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        idle_seconds: 1,
        prewarm: 0,
        ..backend(&ledger)
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let (pid, _) = process(&client).await;
    // One process watches the lists, and does not become idle.
    until("the process to end", || {
        running.metric("refrain_gateway_connections") == 1
    })
    .await;
    assert_ne!(process(&client).await.0, pid);
    running.stop().await;
}

#[tokio::test]
async fn process_is_started_before_it_is_needed() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        prewarm: 1,
        ..backend(&ledger)
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    process(&client).await;
    let started = "refrain_gateway_starts_total";
    // One process watches the lists, one has served the call, and one is prewarmed.
    until("the prewarmed process", || running.metric(started) == 3).await;
    // The prewarmed process takes the next concurrent call, and is replaced.
    let waiting = asked(&client, "ask", json!({"subject": "tea"})).await;
    process(&client).await;
    until("the next prewarmed process", || {
        running.metric(started) == 4
    })
    .await;
    drop(waiting);
    running.stop().await;
}

#[tokio::test]
async fn cancellation_reaches_the_backend() {
    let ledger = Ledger::new();
    let running = Running::start(&GatewayConfig::single("tested", backend(&ledger))).await;
    // A modern call with a call id continues, because its client may send it again.
    let legacy = Dialect::from_name("2025-11-25").expect("a revision");
    let builder = Client::builder().dialect(legacy);
    let client = success("a client", builder.connect(&running.instance.url())).await;
    let slow = CallSpec::tool("slow").argument("seconds", 600);
    let calling = client.clone();
    let slow = tokio::spawn(async move { calling.call(slow).await });
    until("the call", || ledger.count("slow") == 1).await;
    slow.abort();
    until("the cancellation", || ledger.count("cancelled") == 1).await;
    running.stop().await;
}

#[tokio::test]
async fn meta_of_a_request_reaches_the_backend() {
    let ledger = Ledger::new();
    let running = Running::start(&GatewayConfig::single("tested", backend(&ledger))).await;
    let client = running.client().await;
    let call = CallSpec::tool("meta").meta("com.example/tenant", json!("acme"));
    let result = success("the call", client.call(call)).await;
    let found = result["content"][0]["text"].as_str().expect("a text");
    let found: Value = serde_json::from_str(found).expect("JSON");
    assert_eq!(found["com.example/tenant"], "acme");
    assert!(found["traceparent"].is_string(), "{found}");
    running.stop().await;
}

#[tokio::test]
async fn handle_reaches_its_own_process() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        sessions: Sessions::Handle,
        ..backend(&ledger)
    };
    let running = start_for_two(&GatewayConfig::single("tested", backend)).await;
    let alice = running.client_of("alice").await;
    let (first, second) = (open(&alice).await, open(&alice).await);
    let mut pids = Vec::new();
    for session in [&first, &second, &first] {
        let found = text(&alice, "process", json!({"session": session})).await;
        let found: Value = serde_json::from_str(&found).expect("JSON");
        pids.push((found["pid"].clone(), found["calls"].clone()));
    }
    assert_eq!(pids[0].0, pids[2].0);
    assert_ne!(pids[0].0, pids[1].0);
    assert_eq!(pids[2].1, 2, "the process kept its state");
    let bob = running.client_of("bob").await;
    for arguments in [
        json!({"session": first}),
        json!({"session": "forged"}),
        json!({}),
    ] {
        let rejected = bob.call_tool("process", arguments).await;
        let is_rejected = rejected.map_or(true, |result| result.is_error);
        assert!(is_rejected, "a handle of another caller");
    }
    running.stop().await;
}

#[tokio::test]
async fn metrics_count_calls_and_asks_of_a_backend() {
    let ledger = Ledger::new();
    let running = Running::start(&GatewayConfig::single("tested", backend(&ledger))).await;
    let client = running.client().await;
    text(&client, "echo", json!({"text": "hi"})).await;
    let pending = asked(&client, "ask", json!({"subject": "tea"})).await;
    completed(answer(&client, pending, "Ada").await);
    let server = running.instance.server.clone();
    let has = |line: &str| server.metrics_text().lines().any(|found| found == line);
    until("the calls are counted", || {
        has(r#"refrain_gateway_calls_total{backend="tested",outcome="result"} 2"#)
    })
    .await;
    assert!(has(
        r#"refrain_gateway_asks_total{backend="tested",kind="form"} 1"#
    ));
    running.stop().await;
}

#[tokio::test]
async fn stubborn_processes_behind_a_wrapper_are_killed() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        command: vec![
            "sh".to_owned(),
            "-c".to_owned(),
            format!("{}; true", command(&ledger, &["--stubborn"]).join(" ")),
        ],
        calls_per_process: 1,
        prewarm: 0,
        ..BackendTable::default()
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let mut served = vec![process(&client).await.0];
    served.push(process(&client).await.0);
    let is_running = |pid: u64| Path::new("/proc").join(pid.to_string()).exists();
    until("the end of replaced processes", || {
        !served.iter().any(|pid| is_running(*pid))
    })
    .await;
    served.push(process(&client).await.0);
    running.stop().await;
    let lines = ledger.lines();
    let pids = lines
        .iter()
        .filter_map(|line| line.strip_prefix("pid ")?.parse().ok());
    let left: Vec<u64> = pids.filter(|pid| is_running(*pid)).collect();
    assert!(left.is_empty(), "{left:?}, served by {served:?}");
}
