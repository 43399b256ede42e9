//! Spans of rounds in an OpenTelemetry exporter.

use crate::support::watch::listen;
use crate::support::{Instance, Login, Request, keys, login, result, start, token};
use opentelemetry::Value as Attribute;
use opentelemetry::trace::{SpanId, SpanKind, Status, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use refrain_core::{Cx, Error, KeyRing, Result, ok};
use refrain_server::{Server, Tool};
use serde_json::{Value, json};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;

async fn order(cx: Cx) -> Result<String> {
    cx.elicit::<Login>("login", "Who?").await?;
    cx.step("charge", async { ok(()) }).await?;
    Ok(cx.trace().traceparent().to_string())
}

async fn fail(_: Cx) -> Result<String> {
    Err(Error::internal("the disk is full"))
}

fn record() -> (InMemorySpanExporter, DefaultGuard) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let guard = listen(tracing_subscriber::registry().with(layer));
    (exporter, guard)
}

async fn instance(keys: &KeyRing) -> Instance {
    let server = Server::builder("otel", "1")
        .tool(Tool::new("order", order))
        .tool(Tool::new("fail", fail))
        .keys(keys.clone());
    start(server).await
}

/// Runs two rounds on two instances and returns the handler's traceparent in the second.
async fn two_rounds(first: Option<&str>, second: Option<&str>) -> String {
    let keys = keys();
    let (one, two) = (instance(&keys).await, instance(&keys).await);
    let request = |parent: Option<&str>| {
        let request = Request::tool("order", json!({})).meta("tracestate", json!("vendor=7"));
        match parent {
            Some(parent) => request.meta("traceparent", json!(parent)),
            None => request,
        }
    };
    let asked = one.send(&request(first)).await.reply();
    let again = request(second).again(&token(&asked), login("x"));
    let reply = two.send(&again).await.reply();
    let text = result(&reply)["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{reply}")).to_owned()
}

/// The spans of the rounds, and those of the step `charge`, in the order they ended.
fn spans(exporter: &InMemorySpanExporter) -> (Vec<SpanData>, Vec<SpanData>) {
    let all = exporter.get_finished_spans().expect("the exporter is open");
    let all = all.into_iter().filter(|span| span.name != "ask login");
    all.partition(|span| span.name != "step charge")
}

fn attribute<'a>(span: &'a SpanData, key: &str) -> Option<&'a Attribute> {
    let found = span.attributes.iter().find(|pair| pair.key.as_str() == key);
    found.map(|pair| &pair.value)
}

#[tokio::test]
async fn two_rounds_share_a_trace_under_the_client_spans() {
    let (exporter, _guard) = record();
    let traceparent = two_rounds(
        Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        Some("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"),
    )
    .await;
    let (rounds, charges) = spans(&exporter);
    let parents: Vec<String> = rounds
        .iter()
        .map(|span| span.parent_span_id.to_string())
        .collect();
    assert_eq!(parents, ["b7ad6b7169203331", "00f067aa0ba902b7"]);
    for (span, round) in rounds.iter().zip([1_i64, 2]) {
        assert_eq!(
            span.span_context.trace_id().to_string(),
            "0af7651916cd43dd8448eb211c80319c"
        );
        assert!(span.parent_span_is_remote);
        assert_eq!(span.span_context.trace_state().header(), "vendor=7");
        assert_eq!(span.name, "tools/call order");
        assert_eq!(span.span_kind, SpanKind::Server);
        assert_eq!(span.status, Status::Unset);
        let tool = attribute(span, "gen_ai.tool.name");
        assert_eq!(tool, Some(&Attribute::from("order")));
        assert_eq!(
            attribute(span, "refrain.round"),
            Some(&Attribute::from(round))
        );
        assert_eq!(
            attribute(span, "otel.name"),
            None,
            "it became the span name"
        );
    }
    // The second round is linked to the first, which asked.
    let links = |n: usize| {
        let links = rounds[n].links.iter();
        links
            .map(|link| link.span_context.span_id())
            .collect::<Vec<_>>()
    };
    assert_eq!(links(0), []);
    assert_eq!(links(1), [rounds[0].span_context.span_id()]);
    // The second round's span is the parent of the step's span, and of the traceparent that the handler passes on.
    assert_eq!(charges.len(), 1);
    let second = rounds[1].span_context.span_id();
    assert_eq!(charges[0].parent_span_id, second);
    assert_eq!(
        traceparent,
        format!("00-0af7651916cd43dd8448eb211c80319c-{second}-01")
    );
}

#[tokio::test]
async fn two_rounds_without_client_trace_share_a_trace() {
    let (exporter, _guard) = record();
    two_rounds(None, None).await;
    two_rounds(None, None).await;
    let (rounds, charges) = spans(&exporter);
    let traces: Vec<_> = rounds
        .iter()
        .map(|span| span.span_context.trace_id())
        .collect();
    assert_eq!(traces.len(), 4);
    assert_eq!((traces[0], traces[2]), (traces[1], traces[3]));
    assert_ne!(traces[0], traces[2]);
    assert_eq!(charges[0].span_context.trace_id(), traces[0]);
    // The first round has no parent, so the sampler decides whether the trace is recorded.
    assert_eq!(rounds[0].parent_span_id, SpanId::INVALID);
    assert_eq!(rounds[1].parent_span_id, rounds[0].span_context.span_id());
}

#[tokio::test]
async fn failed_round_has_error_status() {
    let (exporter, _guard) = record();
    let keys = keys();
    let one = instance(&keys).await;
    one.send(&Request::tool("fail", json!({})))
        .await
        .error(200, -32603);
    let (rounds, _) = spans(&exporter);
    // Without a description: the message could contain an error of the handler.
    assert_eq!(rounds[0].status, Status::error(""));
    let error = attribute(&rounds[0], "error.type");
    assert_eq!(error, Some(&Attribute::from("-32603")));
    // Log events become events of the span.
    let events: Value = rounds[0]
        .events
        .iter()
        .map(|event| event.name.clone())
        .collect();
    assert_eq!(events, json!(["handler failed", "round ended"]));
}
