//! Metrics: exact values after real requests.

mod rejections;

use crate::support::{
    CAPABILITIES_KEY, Guard, Instance, Login, MetricsPort, Request, Scrape, Signals, Word, echo,
    echo_call, expect_signal, greet, login, signals, start, token, within,
};
use refrain_core::{Cx, Elicit, Error, Incomplete, Result};
use refrain_server::prometheus_client::collector::Collector;
use refrain_server::prometheus_client::encoding::DescriptorEncoder;
use refrain_server::prometheus_client::metrics::MetricType;
use refrain_server::prometheus_client::metrics::counter::Counter;
use refrain_server::prometheus_client::metrics::family::Family;
use refrain_server::prometheus_client::metrics::histogram::Histogram;
use refrain_server::prometheus_client::registry::{Registry, Unit};
use refrain_server::{
    Prompt, Resource, ResourceTemplate, Server, ServerBuilder, ServerLimits, State, Tool,
    serve_stdio,
};
use refrain_wire::{SamplingParams, ToolResult};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

async fn fail(_: Cx) -> Result<ToolResult> {
    Ok(ToolResult::error("tool error"))
}

async fn failing(_: Cx) -> Result<String> {
    Err(Error::msg("handler error"))
}

async fn internal(_: Cx) -> Result<String> {
    Err(Error::internal(std::io::Error::other("a secret")))
}

async fn boom(_: Cx) -> Result<String> {
    panic!("boom");
}

/// Makes one ask of each kind, and two forms.
async fn everything(_: Cx) -> Result<Incomplete> {
    Ok(Incomplete::new()
        .form("login", "Who?", Login::form())
        .form("again", "Who?", Login::form())
        .url("visit", "Go there", "https://example.com/")
        .sample("opinion", SamplingParams::new(10).user("And you?"))
        .roots("where"))
}

/// Runs two steps, asks, and runs a third step.
async fn work(cx: Cx) -> Result<String> {
    let step = |n: u32| cx.step("work", async move { Ok::<_, Error>(n) });
    step(1).await?;
    step(2).await?;
    greet(cx.clone()).await?;
    step(3).await?;
    Ok("done".into())
}

async fn held(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    cx.step("work", async { Ok::<_, Error>(()) }).await?;
    signals.say("started");
    signals.pass().await;
    Ok("let through".into())
}

async fn read(_: Cx) -> Result<&'static str> {
    Ok("text")
}

async fn prompt(_: Cx, word: Word) -> Result<String> {
    Ok(word.text)
}

fn builder() -> ServerBuilder {
    Server::builder("metrics", "1.2")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
}

async fn served(builder: ServerBuilder) -> (Instance, MetricsPort) {
    let instance = start(builder).await;
    let port = MetricsPort::start(&instance.server).await;
    (instance, port)
}

fn call(tool: &str) -> Request {
    Request::tool(tool, json!({}))
}

#[track_caller]
fn assert_rounds(scrape: &Scrape, method: &str, expected: &[(&str, f64)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(k, v)| ((*k).to_owned(), *v))
        .collect();
    assert_eq!(scrape.rounds(method), expected);
}

#[tokio::test]
async fn idle_server_reports_zero() {
    let (_instance, port) = served(builder()).await;
    let scrape = port.scrape().await;
    let families: Vec<_> = scrape.families.iter().map(|(n, k)| (&**n, &**k)).collect();
    assert_eq!(
        families,
        [
            ("mcp_server_operation_duration_seconds", "histogram"),
            ("refrain_asks", "counter"),
            ("refrain_build", "info"),
            ("refrain_calls", "counter"),
            ("refrain_calls_running", "gauge"),
            ("refrain_draining", "gauge"),
            ("refrain_entries_replayed", "counter"),
            ("refrain_live", "counter"),
            ("refrain_live_calls", "gauge"),
            ("refrain_other_requests", "counter"),
            ("refrain_requests_refused", "counter"),
            ("refrain_rounds", "counter"),
            ("refrain_steps_run", "counter"),
            ("refrain_subscriptions", "gauge"),
            ("refrain_tasks", "counter"),
            ("refrain_tasks_running", "gauge"),
            ("refrain_token_size_bytes", "histogram"),
            ("refrain_tokens_refused", "counter"),
            ("refrain_webhooks", "counter"),
        ]
    );
    let version = env!("CARGO_PKG_VERSION");
    let build = format!(
        "refrain_build_info{{version=\"{version}\",protocol=\"2026-07-28\",server=\"metrics\",server_version=\"1.2\"}}"
    );
    assert_eq!(scrape.get(&build), 1.0);
    for (family, kind) in &scrape.families {
        let name = match kind.as_str() {
            "counter" => format!("{family}_total"),
            "histogram" => format!("{family}_count"),
            _ => continue,
        };
        assert_eq!(scrape.all(&name), [], "no request was sent");
    }
    // Series with known labels exist from the start.
    let rounds =
        "refrain_rounds_total{method=\"tools/call\",target=\"echo\",outcome=\"cancelled\"}";
    assert_eq!(scrape.get(rounds), 0.0);
    assert_eq!(scrape.get("refrain_calls_running"), 0.0);
    assert_eq!(scrape.get("refrain_draining"), 0.0);
}

#[tokio::test]
async fn rounds_are_counted_by_method_target_and_outcome() {
    let (signals, mut received) = signals();
    let limits = ServerLimits {
        concurrent_calls: 2,
        shed_above: 2,
        ..ServerLimits::default()
    };
    let builder = builder()
        .tool(Tool::new("fail", fail))
        .tool(Tool::new("failing", failing))
        .tool(Tool::new("internal", internal))
        .tool(Tool::new("boom", boom))
        .tool(Tool::new("held", held))
        .prompt(Prompt::new("echo", prompt))
        .resource(Resource::new("notes://today", "today", read))
        .resource_template(ResourceTemplate::new("notes://\"{day}\"", "day", read))
        .state(signals.clone())
        .limits(limits);
    let (instance, port) = served(builder).await;

    for _ in 0..3 {
        instance.send(&echo_call()).await.reply();
    }
    let first = instance.send(&call("greet")).await.reply();
    let again = call("greet").again(&token(&first), login("alice"));
    instance.send(&again).await.reply();
    instance.send(&call("fail")).await.reply();
    instance.send(&call("failing")).await.reply();
    // Invalid arguments, a malformed answer, and a token of another call.
    instance.send(&call("echo")).await.reply();
    let wrong = call("greet").param("inputResponses", json!({"login": {"action": 5}}));
    instance.send(&wrong).await.error(200, -32602);
    let stolen = echo_call().again(&token(&first), login("alice"));
    instance.send(&stolen).await.error(200, -32602);
    instance.send(&call("internal")).await.error(200, -32603);
    instance.send(&call("boom")).await.error(200, -32603);
    let nothing = call("greet").meta(CAPABILITIES_KEY, json!({}));
    instance.send(&nothing).await.error(400, -32021);
    let prompted = Request::prompt("echo", json!({"text": "x"}));
    instance.send(&prompted).await.reply();
    let wrong = Request::prompt("echo", json!({"text": 5}));
    instance.send(&wrong).await.error(200, -32602);
    for uri in ["notes://today", "notes://\"monday\"", "notes://\"sunday\""] {
        instance.send(&Request::read(uri)).await.reply();
    }
    // Unregistered names do not become labels.
    for name in ["x", "y"] {
        instance.send(&call(name)).await.error(200, -32602);
    }
    instance
        .send(&Request::read("none://"))
        .await
        .error(200, -32602);

    // Two calls run, a third gets no permit, then both clients disconnect.
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = instance.connect().await;
        client.send(&call("held")).await;
        expect_signal(&mut received, "started").await;
        clients.push(client);
    }
    assert_eq!(port.scrape().await.get("refrain_calls_running"), 2.0);
    assert_eq!(instance.send(&echo_call()).await.status, 503);
    drop(clients);
    instance.at_rest().await;

    let scrape = port.scrape().await;
    assert_rounds(
        &scrape,
        "tools/call",
        &[
            (" busy", 1.0),
            (" invalid_params", 2.0),
            ("boom internal_error", 1.0),
            ("echo complete", 3.0),
            ("echo invalid_params", 1.0),
            ("echo tool_error", 1.0),
            ("fail tool_error", 1.0),
            ("failing tool_error", 1.0),
            ("greet complete", 1.0),
            ("greet input_required", 1.0),
            ("greet invalid_params", 1.0),
            ("greet missing_capability", 1.0),
            ("held cancelled", 2.0),
            ("internal internal_error", 1.0),
        ],
    );
    let prompts = [("echo complete", 1.0), ("echo invalid_params", 1.0)];
    assert_rounds(&scrape, "prompts/get", &prompts);
    let reads = [
        (" invalid_params", 1.0),
        (r#"notes://\"{day}\" complete"#, 2.0),
        ("notes://today complete", 1.0),
    ];
    assert_rounds(&scrape, "resources/read", &reads);

    let calls: Vec<_> = scrape.all("refrain_calls_total");
    let expected = [
        ("prompts/get", "echo", 1.0),
        ("resources/read", r#"notes://\"{day}\""#, 2.0),
        ("resources/read", "notes://today", 1.0),
        ("tools/call", "boom", 1.0),
        ("tools/call", "echo", 3.0),
        ("tools/call", "fail", 1.0),
        ("tools/call", "failing", 1.0),
        ("tools/call", "greet", 3.0),
        ("tools/call", "held", 2.0),
        ("tools/call", "internal", 1.0),
    ]
    .map(|(method, target, n)| (format!("{{method={method:?},target=\"{target}\"}}"), n));
    let expected: Vec<_> = expected.iter().map(|(k, n)| (&**k, *n)).collect();
    assert_eq!(calls, expected);

    // Only rounds with a reply have a duration.
    let name = "mcp_server_operation_duration_seconds_count";
    let counts = scrape.all(name);
    let sum = |method: &str| {
        let of = counts.iter().filter(|(labels, _)| labels.contains(method));
        of.map(|(_, count)| count).sum::<f64>()
    };
    assert_eq!(sum("tools/call"), 15.0, "{counts:?}");
    assert_eq!(sum("prompts/get"), 2.0);
    assert_eq!(sum("resources/read"), 4.0);
    let labels = r#"mcp_method_name="tools/call",gen_ai_tool_name="fail",error_type="tool_error""#;
    assert_eq!(scrape.get(&format!("{name}{{{labels}}}")), 1.0);
    let buckets = name.replace("_count", "_bucket");
    let first = format!(r#"{buckets}{{le="0.01",{labels}}}"#);
    assert!(scrape.get(&first) <= 1.0);
    assert_eq!(scrape.get("refrain_calls_running"), 0.0);
    // Steps of cancelled rounds count too.
    assert_eq!(scrape.get("refrain_steps_run_total"), 2.0);
}

#[tokio::test]
async fn asks_tokens_entries_and_steps_are_counted() {
    let builder = builder()
        .tool(Tool::new("everything", everything))
        .tool(Tool::new("work", work));
    let (instance, port) = served(builder).await;
    let asked = instance.send(&call("everything")).await.reply();
    let first = instance.send(&call("work")).await.reply();
    let mut sizes = [token(&asked).len(), token(&first).len()];
    sizes.sort_unstable();
    let scrape = port.scrape().await;
    assert_eq!(
        scrape.all("refrain_asks_total"),
        [
            ("{kind=\"form\"}", 3.0),
            ("{kind=\"roots\"}", 1.0),
            ("{kind=\"sampling\"}", 1.0),
            ("{kind=\"url\"}", 1.0),
        ]
    );
    let sum = sizes.iter().sum::<usize>() as f64;
    assert_eq!(scrape.get("refrain_token_size_bytes_sum"), sum);
    assert_eq!(scrape.get("refrain_token_size_bytes_count"), 2.0);
    let small = sizes.iter().filter(|size| **size <= 256).count() as f64;
    let bucket = "refrain_token_size_bytes_bucket{le=\"256.0\"}";
    assert_eq!(scrape.get(bucket), small);
    assert_eq!(scrape.get("refrain_steps_run_total"), 2.0);
    assert_eq!(scrape.get("refrain_entries_replayed_total"), 0.0);

    let again = call("work").again(&token(&first), login("alice"));
    instance.send(&again).await.reply();
    let scrape = port.scrape().await;
    assert_eq!(scrape.get("refrain_steps_run_total"), 3.0);
    assert_eq!(scrape.get("refrain_entries_replayed_total"), 3.0);
}

#[tokio::test]
async fn handed_on_flows_and_draining_are_reported() {
    let limits = ServerLimits {
        drain_grace: Duration::from_secs(5),
        ..ServerLimits::default()
    };
    let (mut instance, port) = served(builder().tool(Tool::new("work", work)).limits(limits)).await;
    assert_eq!(port.get("/readyz").await.status, 200);
    instance.server.start_draining();
    assert_eq!(port.get("/readyz").await.status, 503);
    assert_eq!(port.get("/healthz").await.status, 200);
    let reply = instance.send(&call("work")).await.reply();
    assert_eq!(reply["result"].get("inputRequests"), None, "{reply}");
    let scrape = port.scrape().await;
    assert_eq!(scrape.get("refrain_draining"), 1.0);
    assert_rounds(&scrape, "tools/call", &[("work handed_on", 1.0)]);
    assert_eq!(scrape.get("refrain_token_size_bytes_count"), 1.0);
    // The metrics port stays open while the instance stops.
    instance.stop();
    assert_eq!(port.scrape().await.get("refrain_draining"), 1.0);
    port.stop().await;
}

#[tokio::test]
async fn repeated_reply_is_counted_separately() {
    let builder = builder()
        .tool(Tool::new("work", work).single_use())
        .single_instance();
    let (instance, port) = served(builder).await;
    let first = instance.send(&call("work")).await.reply();
    let again = call("work").again(&token(&first), login("alice"));
    for _ in 0..2 {
        instance.send(&again).await.reply();
    }
    let scrape = port.scrape().await;
    let rounds = [
        ("work complete", 1.0),
        ("work input_required", 1.0),
        ("work repeated", 1.0),
    ];
    assert_rounds(&scrape, "tools/call", &rounds);
    assert_eq!(scrape.get("refrain_steps_run_total"), 3.0);
}

#[tokio::test]
async fn two_servers_have_separate_metrics() {
    let (one, one_port) = served(builder()).await;
    let (_two, two_port) = served(builder()).await;
    one.send(&echo_call()).await.reply();
    let (one, two) = (one_port.scrape().await, two_port.scrape().await);
    assert_rounds(&one, "tools/call", &[("echo complete", 1.0)]);
    assert_rounds(&two, "tools/call", &[]);
}

#[tokio::test]
async fn metrics_port_and_endpoint_are_separate() {
    let (instance, port) = served(builder()).await;
    assert_eq!(instance.get("/metrics").await.status, 404);
    assert_eq!(port.get("/mcp").await.status, 404);
    assert_eq!(port.get("/").await.status, 404);
}

#[tokio::test]
async fn stdio_requests_are_counted() {
    let limits = ServerLimits {
        body: 1000,
        ..ServerLimits::default()
    };
    let server = builder().limits(limits).build().expect("the server builds");
    let mut input = Vec::new();
    let lines = [
        echo_call().message(),
        b"not JSON".to_vec(),
        vec![b'x'; 2000],
        Request::rpc("no/such", json!({})).message(),
        Request::rpc("server/discover", json!({})).message(),
    ];
    for line in lines {
        input.extend_from_slice(&line);
        input.push(b'\n');
    }
    let serving = serve_stdio(
        server.clone(),
        input.as_slice(),
        tokio::io::sink(),
        std::future::pending(),
    );
    within("the end of the input", serving)
        .await
        .expect("no I/O error");
    let scrape = Scrape::parse(&server.metrics_text());
    assert_rounds(&scrape, "tools/call", &[("echo complete", 1.0)]);
    assert_eq!(
        scrape.all("refrain_requests_refused_total"),
        [
            ("{reason=\"parse\"}", 1.0),
            ("{reason=\"too_large\"}", 1.0),
            ("{reason=\"unknown_method\"}", 1.0),
        ]
    );
    let lists = scrape.all("refrain_other_requests_total");
    assert_eq!(lists, [("{method=\"server/discover\"}", 1.0)]);
}

#[tokio::test]
async fn metrics_of_the_program_follow_those_of_the_server() {
    #[derive(Debug)]
    struct Broken;
    impl Collector for Broken {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
            encoder.encode_descriptor("broken", "Never shown.", None, MetricType::Gauge)?;
            Err(std::fmt::Error)
        }
    }
    let restarts = Family::<Vec<(&str, &str)>, Counter>::default();
    let latency = Histogram::new([0.1, 1.0]);
    let mut registry = Registry::with_prefix("gateway");
    registry.register("restarts", "Restarts, by backend", restarts.clone());
    registry.register_with_unit("latency", "Of a call", Unit::Seconds, latency.clone());
    let mut broken = Registry::default();
    broken.register_collector(Box::new(Broken));
    let builder = Server::builder("test", "1").register_metrics(broken);
    let server = builder
        .register_metrics(registry)
        .build()
        .expect("a server");
    restarts
        .get_or_create(&vec![("backend", "files")])
        .inc_by(3);
    latency.observe(0.5);
    let port = MetricsPort::start(&server).await;
    let text = port.get("/metrics").await.text();
    assert!(
        text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1,
        "{text}"
    );
    assert!(!text.contains("broken"), "{text}");
    let scrape = Scrape::parse(&text);
    let restarted = scrape.all("gateway_restarts_total");
    assert_eq!(restarted, [("{backend=\"files\"}", 3.0)]);
    assert_eq!(scrape.all("gateway_latency_seconds_count"), [("", 1.0)]);
    let (own, program) = text.split_once("gateway_restarts").expect("both parts");
    assert!(own.contains("refrain_calls_running 0\n"), "{text}");
    assert!(!program.contains("refrain_"), "{text}");
}
