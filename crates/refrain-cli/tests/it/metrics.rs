//! The metrics port.

use crate::support::tasks::in_the_middle;
use crate::support::{
    Call, Client, Files, Instance, Reply, Request, Serve, ended, refrain, root, run_tool,
};
use refrain_testkit::net::http::{page_of, send, status_of, text_of};
use refrain_testkit::net::process::Log;
use rustix::process::Signal;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Starts an instance with a metrics port, and returns the port's address.
async fn with_metrics(serve: Serve) -> (Instance, SocketAddr) {
    let instance = serve.start().await;
    let address = metrics_address(&instance.log).await;
    (instance, address)
}

/// The address of the metrics port in a log.
pub(crate) async fn metrics_address(log: &Log) -> SocketAddr {
    let line = log.wait_for("serving metrics", 1).await;
    let address = line
        .split_once("http://")
        .and_then(|(_, rest)| rest.split_once("/metrics"));
    let address = address.and_then(|(address, _)| address.parse().ok());
    address.unwrap_or_else(|| panic!("no address in {line:?}"))
}

#[tokio::test]
async fn metrics_are_enabled_by_flag_or_file() {
    let files = Files::new();
    let config = files.write("config.toml", "metrics = \"127.0.0.1:0\"\n");
    for serve in [
        Serve::new().args(["--metrics", "127.0.0.1:0"]),
        Serve::new().config(&config).args(["--log", "json"]),
    ] {
        let (instance, metrics) = with_metrics(serve).await;
        let client = Client::new(instance.address);
        let done = client
            .round(&mut Call::new("echo", json!({"text": "hello"})))
            .await;
        assert_eq!(done, Reply::Done("Echo: hello".into()));
        let text = text_of(metrics, "/metrics").await;
        let line =
            "refrain_rounds_total{method=\"tools/call\",target=\"echo\",outcome=\"complete\"} 1";
        assert!(text.lines().any(|l| l == line), "{text}");
        // The main port does not serve metrics.
        assert_eq!(status_of(instance.address, "/metrics").await.unwrap(), 404);
        assert_eq!(status_of(metrics, "/mcp").await.unwrap(), 404);
    }
    let taken = Serve::new().start().await;
    let address = taken.address.to_string();
    let error = Serve::new().args(["--metrics", &address]).fails().await;
    assert!(
        error.contains(&format!("cannot listen on {address}")),
        "{error}"
    );
    let same = ["serve", "--listen", &address, "--metrics", &address];
    let same = refrain(same);
    assert!(
        same.err
            .contains("`metrics` and `listen` must not be the same address"),
        "{same:?}"
    );
}

/// DNS rebinding: a page under another name cannot read the metrics.
#[tokio::test]
async fn loopback_metrics_reject_foreign_hosts() {
    let (_instance, metrics) = with_metrics(Serve::new().args(["--metrics", "127.0.0.1:0"])).await;
    let port = metrics.port();
    for (host, status) in [
        ("localhost".to_owned(), 200),
        (format!("localhost:{port}"), 200),
        (format!("127.0.0.1:{port}"), 200),
        ("[::1]:9464".to_owned(), 200),
        (format!("rebound.example:{port}"), 403),
        ("rebound.example".to_owned(), 403),
        ("localhost.rebound.example".to_owned(), 403),
        (String::new(), 403),
    ] {
        for path in ["/metrics", "/healthz"] {
            let request = Request::get(path).header("Host", &host);
            let response = send(metrics, &request).await;
            assert_eq!(response.status, status, "{path} of {host:?}");
        }
    }
}

#[tokio::test]
async fn draining_is_visible_on_both_ports() {
    in_the_middle(async |pause_ms| {
        let grace = Duration::from_millis(3 * pause_ms);
        let files = Files::new();
        let limits = format!("[limits]\ndrain_grace_ms = {}\n", grace.as_millis());
        let config = files.write("config.toml", &limits);
        let serve = Serve::new().config(&config);
        let (mut instance, metrics) = with_metrics(serve.args(["--metrics", "127.0.0.1:0"])).await;
        let ports = [instance.address, metrics];
        for port in ports {
            assert_eq!(status_of(port, "/readyz").await.unwrap(), 200);
        }
        let text = text_of(metrics, "/metrics").await;
        assert!(text.contains("\nrefrain_draining 0\n"), "{text}");
        let begun = Instant::now();
        instance.signal(Signal::TERM);
        instance.log.wait_for("draining", 1).await;
        let mut statuses = Vec::new();
        for port in ports {
            for page in ["/readyz", "/healthz"] {
                statuses.push(status_of(port, page).await);
            }
        }
        let client = Client::new(instance.address);
        let sum = client.try_round(&mut Call::sum(5, 0)).await;
        let page = page_of(metrics, "/metrics").await;
        if begun.elapsed() >= grace {
            return None;
        }
        let statuses: Vec<u16> = statuses.into_iter().map(Result::unwrap).collect();
        assert_eq!(statuses, [503, 200, 503, 200]);
        assert_eq!(sum.unwrap().reply, Reply::HandedOn);
        let text = page.unwrap();
        assert!(text.contains("\nrefrain_draining 1\n"), "{text}");
        let handed_on = "{method=\"tools/call\",target=\"sum\",outcome=\"handed_on\"} 1\n";
        assert!(text.contains(handed_on), "{text}");
        let status = instance.ended().await;
        assert!(status.success(), "{status}");
        for port in ports {
            assert!(status_of(port, "/readyz").await.is_err());
        }
        Some(())
    })
    .await;
}

#[tokio::test]
async fn metrics_are_read_by_the_prometheus_parser() {
    let (instance, metrics) = with_metrics(Serve::new().args(["--metrics", "127.0.0.1:0"])).await;
    let client = Client::new(instance.address);
    for call in [Call::weather("Oslo"), Call::order("lamp")] {
        let finished = client.finish(call).await;
        assert!(matches!(finished.reply, Reply::Done(_)), "{finished:?}");
    }
    let program = [".tools/bin/python", "tests/clients/read_metrics.py"];
    let url = format!("http://{metrics}/metrics");
    let families = run_tool("60", &program, &[url.as_ref()]).await;
    let expected = "info refrain_build
counter refrain_calls
counter refrain_rounds
histogram mcp_server_operation_duration_seconds
counter refrain_other_requests
counter refrain_asks
counter refrain_tokens_refused
counter refrain_requests_refused
histogram refrain_token_size_bytes
counter refrain_entries_replayed
counter refrain_steps_run
counter refrain_tasks
counter refrain_webhooks
counter refrain_live
gauge refrain_tasks_running
gauge refrain_calls_running
gauge refrain_live_calls
gauge refrain_subscriptions
gauge refrain_draining
";
    assert_eq!(families, expected);
}

/// Every family, and every label value that does not depend on the registered tools.
#[tokio::test]
async fn every_metric_is_documented() {
    let (_instance, metrics) = with_metrics(Serve::new().args(["--metrics", "127.0.0.1:0"])).await;
    let text = text_of(metrics, "/metrics").await;
    let page = std::fs::read_to_string(root().join("docs/operate/metrics.md"))
        .expect("the page is readable");
    let mut seen = 0;
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            assert!(
                page.contains(&format!("| `{name}{suffix}` |")),
                "{name}{suffix}"
            );
            seen += 1;
        }
        for label in ["outcome=\"", "reason=\"", "kind=\""] {
            if let Some((_, rest)) = line.split_once(label) {
                let value = rest.split('"').next().expect("a value");
                let plain = label == "kind=\"" && page.contains(value);
                assert!(
                    plain || page.contains(&format!("`{value}`")),
                    "{label}{value}"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{text}");
}

#[tokio::test]
async fn stdio_instance_serves_metrics() {
    let serve = Serve::without_address().args(["--stdio", "--metrics", "127.0.0.1:0"]);
    let (mut child, log) = serve.with_input();
    let address = metrics_address(&log).await;
    assert_eq!(status_of(address, "/readyz").await.unwrap(), 200);
    drop(child.stdin.take());
    let status = ended(&mut child).await;
    assert!(status.success(), "{status}");
}
