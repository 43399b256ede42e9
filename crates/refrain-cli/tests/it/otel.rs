//! Traces of real processes, received over OTLP by a collector in this process.

mod collector;
mod waterfall;

use crate::support::tasks::shared_store;
use crate::support::{Balancer, Files, Instance, Serve, program, run_command};
use collector::{Collector, ReceivedSpan};
use tokio::process::Command;

/// A secret that only the collector gets.
const API_KEY: &str = "key-of-the-collector";

/// The variables that export spans to the collector.
fn variables(collector: &Collector, service: &str) -> [(&'static str, String); 4] {
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        ("OTEL_EXPORTER_OTLP_HEADERS", format!("x-api-key={API_KEY}")),
        ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned()),
        ("OTEL_SERVICE_NAME", service.to_owned()),
    ]
}

fn exporting(serve: Serve, collector: &Collector, service: &str) -> Serve {
    let variables = variables(collector, service);
    let set = |serve: Serve, (name, value): (&str, String)| serve.env(name, &value);
    variables.into_iter().fold(serve, set)
}

fn exporting_command(collector: &Collector, args: &[&str]) -> Command {
    let mut command = program();
    command.args(args).envs(variables(collector, "client"));
    command
}

/// Two instances behind a balancer behind a gateway. Each request of the gateway goes to the
/// instance that did not get the one before.
struct Fleet {
    instances: [Instance; 2],
    gateway: Instance,
    _balancer: Balancer,
    _files: Files,
}

impl Fleet {
    async fn start(collector: &Collector) -> Self {
        let files = Files::new();
        let (keys, store) = (files.keys("fleet.keys"), shared_store(&files));
        let start = async |name| {
            let serve = Serve::new().keys(&keys).store(&store);
            exporting(serve, collector, name).start().await
        };
        let instances = [start("a").await, start("b").await];
        let balancer = Balancer::start(instances.iter().map(|it| it.address)).await;
        let config = format!("[backends.vms]\nurl = {:?}\n", balancer.url());
        let config = files.write("gateway.toml", &config);
        let gateway = Serve::gateway().args(["--listen", "127.0.0.1:0"]);
        let gateway = gateway.config(&config);
        let gateway = exporting(gateway, collector, "gateway").start().await;
        Self {
            instances,
            gateway,
            _balancer: balancer,
            _files: files,
        }
    }

    /// Stops all processes, which send their last spans.
    async fn stop(mut self) {
        self.gateway.stop().await;
        for instance in &mut self.instances {
            instance.stop().await;
        }
    }
}

/// The spans of a call that asks, and then becomes a task with two steps.
async fn call_spans() -> Vec<ReceivedSpan> {
    let collector = Collector::start(API_KEY).await;
    let fleet = Fleet::start(&collector).await;
    let url = fleet.gateway.url();
    let mut call = vec!["call", &url, "create_vm", "name=web", "pause_ms=300"];
    call.extend(["--answer", r#"size={"processors": 2}"#]);
    let called = run_command(exporting_command(&collector, &call)).await;
    assert_eq!(called.code, 0, "{called:?}");
    assert!(called.out.contains("web runs"), "{called:?}");
    fleet.stop().await;
    named_by_round(collector.trace("refrain call"))
}

/// Names the instance of the first round `a`, and that of the second `b`. Either may serve the other requests.
fn named_by_round(mut spans: Vec<ReceivedSpan>) -> Vec<ReceivedSpan> {
    let is_round = |span: &&ReceivedSpan| {
        span.attribute("refrain.round").as_deref() == Some("1") && span.service != "gateway"
    };
    let first = spans.iter().find(is_round).map(|span| span.service.clone());
    for span in &mut spans {
        if matches!(&*span.service, "a" | "b") {
            span.service = match &*span.span.name {
                "server/discover" | "tasks/get" => "instance",
                _ if Some(&span.service) == first.as_ref() => "a",
                _ => "b",
            }
            .to_owned();
        }
    }
    spans
}

#[tokio::test]
async fn one_trace_spans_client_gateway_instances_steps_and_task() {
    let spans = call_spans().await;
    let tree = collector::tree(&spans);
    assert_eq!(tree, include_str!("otel/tree.txt"), "{tree}");
    check_links(&spans);
    check_attributes(&spans);
    waterfall::check(&spans);
}

/// The second round at the instances is linked to the first, and the run of the task to the call that created it.
fn check_links(spans: &[ReceivedSpan]) {
    let at_instances = |span: &&ReceivedSpan| matches!(&*span.service, "a" | "b");
    let of = |name: &str| {
        let named = spans.iter().filter(|span| span.span.name == name);
        named.filter(at_instances).collect::<Vec<_>>()
    };
    let rounds = of("tools/call create_vm");
    let [first, second] = &rounds[..] else {
        panic!("expected two rounds, got {}", rounds.len());
    };
    assert_ne!(first.service, second.service);
    assert_eq!(second.links(), [first.id()]);
    assert_eq!(second.attribute("refrain.round"), Some("2".to_owned()));
    let tasks = of("task create_vm");
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0].links(), [second.id()]);
    assert_eq!(tasks[0].parent(), second.id());
}

fn check_attributes(spans: &[ReceivedSpan]) {
    let name = "tools/call create_vm";
    let is_sent = |it: &&ReceivedSpan| it.service == "client" && it.span.name == name;
    let sent = spans.iter().find(is_sent).expect("a request of the client");
    let received = spans.iter().find(|span| span.parent() == sent.id());
    let received = received.expect("the request at the gateway");
    for (span, home) in [(sent, None), (received, Some("client"))] {
        for (key, value) in [
            ("mcp.method.name", Some("tools/call")),
            ("mcp.protocol.version", Some("2026-07-28")),
            ("gen_ai.operation.name", Some("execute_tool")),
            ("gen_ai.tool.name", Some("create_vm")),
            ("network.transport", Some("tcp")),
            ("network.protocol.name", Some("http")),
            ("refrain.home", home),
            // Only log lines have this.
            ("trace_id", None),
            // Only failed requests have this.
            ("error.type", None),
        ] {
            let found = span.attribute(key);
            assert_eq!(found.as_deref(), value, "{key} of {:?}", span.span);
        }
        assert!(span.attribute("jsonrpc.request.id").is_some());
    }
    assert_eq!(
        sent.attribute("server.address"),
        Some("127.0.0.1".to_owned())
    );
    assert!(sent.attribute("server.port").is_some());
    let request = sent.attribute("jsonrpc.request.id");
    assert_eq!(received.attribute("jsonrpc.request.id"), request);
    let texts = format!("{spans:?}");
    assert!(!texts.contains(API_KEY), "{texts}");
}

#[tokio::test]
async fn every_method_has_spans_and_rejections_have_error_types() {
    let collector = Collector::start(API_KEY).await;
    let serve = exporting(Serve::new(), &collector, "server");
    let mut server = serve.start().await;
    let url = server.url();
    for (args, code) in [
        (["tools", &url].as_slice(), 0),
        (&["prompts", &url], 0),
        (&["resources", &url], 0),
        (&["call", &url, "unknown"], 1),
    ] {
        let done = run_command(exporting_command(&collector, args)).await;
        assert_eq!(done.code == 0, code == 0, "{done:?}");
    }
    server.stop().await;
    let spans = collector.all();
    let names = |service: &str, kind: &str| {
        let of = spans
            .iter()
            .filter(|it| it.service == service && it.kind() == kind);
        let mut names: Vec<_> = of.map(|it| it.attribute("mcp.method.name")).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    let methods = names("client", "client");
    assert_eq!(names("server", "server"), methods);
    for method in [
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
    ] {
        assert!(methods.contains(&Some(method.to_owned())), "{methods:?}");
    }
    let unknown: Vec<_> = spans
        .iter()
        .filter(|span| span.span.name.starts_with("tools/call"))
        .collect();
    assert_eq!(unknown.len(), 2, "{unknown:?}");
    for span in unknown {
        for key in ["error.type", "rpc.response.status_code"] {
            assert_eq!(span.attribute(key).as_deref(), Some("-32602"), "{key}");
        }
        assert!(span.has_error_status(), "{span:?}");
    }
}

#[tokio::test]
async fn unreachable_collector_does_not_stop_serving() {
    let [free] = crate::relay::free_addresses::<1>();
    let endpoint = format!("http://{free}");
    let serve = Serve::new().env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    let serve = serve.env(
        "OTEL_EXPORTER_OTLP_HEADERS",
        &format!("x-api-key={API_KEY}"),
    );
    let serve = serve.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let mut server = serve.start().await;
    let called = crate::support::run(["call", &server.url(), "echo", "text=hi"]).await;
    assert_eq!(called.code, 0, "{called:?}");
    server.log.wait_for("failed to export spans", 1).await;
    server.stop().await;
    assert!(!server.log.text().contains(API_KEY));
}

#[tokio::test]
async fn export_is_controlled_by_the_standard_variables() {
    let collector = Collector::start(API_KEY).await;
    for (name, value) in [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
    ] {
        let serve = exporting(Serve::new(), &collector, "server").env(name, value);
        let mut server = serve.start().await;
        let called = crate::support::run(["call", &server.url(), "echo", "text=hi"]).await;
        assert_eq!(called.code, 0, "{called:?}");
        server.stop().await;
        assert!(collector.all().is_empty(), "{name}");
    }
    for (name, value, hint) in [
        ("OTEL_TRACES_EXPORTER", "zipkin", "use otlp or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "use http/protobuf"),
    ] {
        let serve = exporting(Serve::new(), &collector, "server").env(name, value);
        let error = serve.fails().await;
        assert!(error.contains(hint) && error.contains(name), "{error}");
    }
}

#[tokio::test]
async fn malformed_endpoint_of_the_collector_is_a_start_error() {
    for name in [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ] {
        for value in [
            "localhost:4318",
            "http://",
            "ftp://me:secret@collector",
            "/v1",
        ] {
            let error = Serve::new().env(name, value).fails().await;
            let expected = format!(
                "error: invalid ${name}: expected an http:// or https:// URL\n\
                 hint: set the URL of a collector, such as http://localhost:4318\n"
            );
            assert_eq!(error, expected, "{value}");
        }
    }
}
