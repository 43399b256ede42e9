//! Traces: one trace for all rounds of a flow, in spans and for handlers.

use crate::support::watch::{Recording, watch};
use crate::support::{Instance, Login, Request, asked, keys, login, result, start, text, token};
use refrain_core::{Cx, Error, KeyRing, Result};
use refrain_server::{Json, Prompt, Resource, ResourceTemplate, Server, ServerBuilder, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::level_filters::LevelFilter;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const FIRST: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const SECOND: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00";
const OTHER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-53995c3f42cd8ad8-01";

/// Asks, and returns the trace that a downstream call would get.
async fn call_on(cx: Cx) -> Result<Json<Value>> {
    tracing::info!("before the ask");
    cx.elicit::<Login>("login", "Who?").await?;
    tracing::info!("after the ask");
    let trace = cx.trace();
    Ok(Json(json!({
        "traceparent": trace.traceparent().to_string(),
        "tracestate": trace.tracestate(),
        "baggage": trace.baggage(),
        "made": trace.is_generated(),
    })))
}

async fn fail(_: Cx) -> Result<String> {
    Err(Error::msg("no such luck"))
}

async fn refuse(_: Cx) -> Result<String> {
    Err(Error::invalid_params("not like this"))
}

async fn read(_: Cx) -> Result<&'static str> {
    Ok("read")
}

fn builder(keys: &KeyRing) -> ServerBuilder {
    Server::builder("traces", "1")
        .tool(Tool::new("call_on", call_on))
        .tool(Tool::new("fail", fail))
        .tool(Tool::new("refuse", refuse))
        .prompt(Prompt::new("ask_for", read))
        .resource(Resource::new("x://r", "r", read))
        .keys(keys.clone())
}

async fn pair() -> (Instance, Instance) {
    let keys = keys();
    (start(builder(&keys)).await, start(builder(&keys)).await)
}

fn request(trace: &[(&str, Value)]) -> Request {
    let plain = Request::tool("call_on", json!({}));
    let add = |request: Request, (key, value): &(&str, Value)| request.meta(key, value.clone());
    trace.iter().fold(plain, add)
}

fn parent(text: &str) -> (&'static str, Value) {
    ("traceparent", json!(text))
}

/// Runs two rounds on two instances and returns the structured result.
async fn two_rounds(first: &[(&str, Value)], second: &[(&str, Value)]) -> Value {
    let (one, two) = pair().await;
    let reply = one.send(&request(first).id(json!("a-1"))).await.reply();
    assert_eq!(asked(&reply), ["login"]);
    let again = request(second)
        .again(&token(&reply), login("x"))
        .id(json!(2));
    let reply = two.send(&again).await.reply();
    result(&reply)["structuredContent"].clone()
}

fn field<'a>(watch: &'a Recording, round: usize, name: &str) -> Option<&'a str> {
    let span = watch.spans.get(round).expect("the round has a span");
    span.fields.get(name).map(String::as_str)
}

#[tokio::test]
async fn rounds_on_two_instances_share_a_trace() {
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    let trace = two_rounds(&[parent(FIRST)], &[parent(SECOND)]).await;
    let seen = seen.take();
    assert_eq!(seen.spans.len(), 2);
    for (round, (parent, id)) in [("b7ad6b7169203331", "a-1"), ("00f067aa0ba902b7", "2")]
        .into_iter()
        .enumerate()
    {
        let number = (round + 1).to_string();
        for (name, value) in [
            ("otel.name", "tools/call call_on"),
            ("otel.kind", "server"),
            ("mcp.method.name", "tools/call"),
            ("mcp.protocol.version", "2026-07-28"),
            ("gen_ai.operation.name", "execute_tool"),
            ("gen_ai.tool.name", "call_on"),
            ("jsonrpc.request.id", id),
            ("trace_id", TRACE),
            ("parent_id", parent),
            ("refrain.round", &number),
            ("refrain.home", "client"),
            ("network.transport", "tcp"),
        ] {
            assert_eq!(field(&seen, round, name), Some(value), "{name} of {round}");
        }
        for name in [
            "link",
            "error.type",
            "mcp.resource.uri",
            "gen_ai.prompt.name",
        ] {
            assert_eq!(field(&seen, round, name), None, "{name}");
        }
        assert!(seen.spans[round].closed);
    }
    assert_eq!(
        field(&seen, 0, "refrain.flow.id"),
        field(&seen, 1, "refrain.flow.id")
    );
    assert_ne!(field(&seen, 0, "span_id"), field(&seen, 1, "span_id"));
    // Downstream calls get the logged span id with the flags of this round.
    let span = field(&seen, 1, "span_id").expect("the span has an id");
    assert_eq!(trace["traceparent"], format!("00-{TRACE}-{span}-00"));
    assert_eq!(trace["made"], false);
    // Events of the handler and of the server are in the round's span.
    let events: Vec<_> = seen.events_in("request").collect();
    assert_eq!(
        events,
        [
            "before the ask",
            "round ended",
            "before the ask",
            "after the ask",
            "round ended"
        ]
    );
}

#[tokio::test]
async fn flow_without_trace_gets_one_for_all_its_rounds() {
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    let trace = two_rounds(&[], &[]).await;
    two_rounds(&[], &[]).await;
    let seen = seen.take();
    assert_eq!(seen.spans.len(), 4);
    let traces: Vec<_> = (0..4).map(|n| field(&seen, n, "trace_id")).collect();
    assert_eq!(traces[0], traces[1]);
    assert_eq!(traces[2], traces[3]);
    assert_ne!(traces[0], traces[2]);
    // The trace id does not reveal the flow id.
    assert_ne!(traces[0], field(&seen, 0, "refrain.flow.id"));
    assert_eq!(field(&seen, 0, "parent_id"), field(&seen, 1, "parent_id"));
    let (trace_id, span) = (traces[1].unwrap(), field(&seen, 1, "span_id").unwrap());
    assert_eq!(trace["traceparent"], format!("00-{trace_id}-{span}-01"));
    assert_eq!(trace["made"], true);
}

#[tokio::test]
async fn first_trace_is_kept_and_later_one_is_linked() {
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    let state = ("tracestate", json!("vendor=1"));
    let trace = two_rounds(&[parent(FIRST)], &[parent(OTHER), state.clone()]).await;
    assert_eq!(trace["tracestate"], Value::Null);
    let silent = two_rounds(&[parent(FIRST), state.clone()], &[]).await;
    assert_eq!(silent["tracestate"], Value::Null);
    let late = two_rounds(&[], &[parent(OTHER), state]).await;
    assert_eq!(late["tracestate"], Value::Null);
    let seen = seen.take();
    let parent_of = |n| (field(&seen, n, "trace_id"), field(&seen, n, "parent_id"));
    for n in [0, 1, 2, 3] {
        assert_eq!(parent_of(n), (Some(TRACE), Some("b7ad6b7169203331")), "{n}");
    }
    assert_eq!(field(&seen, 0, "link"), None);
    assert_eq!(field(&seen, 1, "link"), Some(OTHER));
    assert_eq!(field(&seen, 3, "link"), None);
    // Without a new traceparent, the flags of the first round apply.
    assert!(silent["traceparent"].as_str().unwrap().ends_with("-01"));
    assert_eq!(parent_of(4), parent_of(5));
    assert_eq!(field(&seen, 5, "link"), Some(OTHER));
}

#[tokio::test]
async fn handler_sees_tracestate_and_baggage_of_its_round() {
    let both = [
        parent(SECOND),
        ("tracestate", json!("a=1,b=2")),
        ("baggage", json!("user=alice")),
    ];
    let trace = two_rounds(&[parent(FIRST)], &both).await;
    assert_eq!(trace["tracestate"], "a=1,b=2");
    assert_eq!(trace["baggage"], "user=alice");
    let trace = two_rounds(&both, &[parent(SECOND)]).await;
    assert_eq!(trace["tracestate"], Value::Null);
    assert_eq!(trace["baggage"], Value::Null);
}

#[tokio::test]
async fn token_contains_a_trace_only_if_the_client_sent_one() {
    let (one, _) = pair().await;
    let size =
        async |trace: &[(&str, Value)]| token(&one.send(&request(trace)).await.reply()).len();
    let plain = size(&[]).await;
    let traced = size(&[parent(FIRST), ("baggage", json!("user=alice"))]).await;
    // 16 bytes of trace id, 8 of span id and one of flags, in base64.
    assert!((33..=34).contains(&(traced - plain)), "{plain} {traced}");
}

#[tokio::test]
async fn malformed_trace_is_ignored() {
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    for malformed in [
        json!("not a trace"),
        json!(FIRST.to_uppercase()),
        json!(7),
        json!({"a": null}),
        Value::Null,
    ] {
        let trace = two_rounds(
            &[("traceparent", malformed.clone())],
            &[("traceparent", malformed)],
        )
        .await;
        assert_eq!(trace["made"], true);
    }
    let trace = two_rounds(&[parent(FIRST)], &[("traceparent", json!("nonsense"))]).await;
    assert_eq!(trace["made"], false);
    let seen = seen.take();
    assert_eq!(seen.spans.len(), 12);
    let ignored = seen
        .events
        .iter()
        .filter(|event| event.text.contains("ignored"));
    assert_eq!(ignored.count(), 11);
    assert_eq!(field(&seen, 11, "trace_id"), Some(TRACE));
}

#[tokio::test]
async fn span_has_the_outcome_of_its_round() {
    let (one, _) = pair().await;
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    let failed = one.send(&Request::tool("fail", json!({}))).await.reply();
    assert_eq!(text(&failed), "no such luck");
    one.send(&Request::tool("refuse", json!({})))
        .await
        .error(200, -32602);
    one.send(&Request::prompt("ask_for", json!({})))
        .await
        .reply();
    one.send(&Request::read("x://r")).await.reply();
    let seen = seen.take();
    let fields = |names: [&str; 4]| {
        let of = |n| names.map(|name| field(&seen, n, name).unwrap_or_default().to_owned());
        (0..4).map(of).collect::<Vec<_>>()
    };
    assert_eq!(
        fields([
            "error.type",
            "rpc.response.status_code",
            "otel.status_code",
            "otel.status_description"
        ]),
        [
            ["tool_error", "", "ERROR", ""],
            ["-32602", "-32602", "ERROR", ""],
            ["", "", "", ""],
            ["", "", "", ""],
        ]
    );
    assert_eq!(
        fields([
            "otel.name",
            "gen_ai.tool.name",
            "gen_ai.prompt.name",
            "mcp.resource.uri"
        ]),
        [
            ["tools/call fail", "fail", "", ""],
            ["tools/call refuse", "refuse", "", ""],
            ["prompts/get ask_for", "", "ask_for", ""],
            ["resources/read", "", "", "x://r"],
        ]
    );
}

/// Some of the arguments are invalid.
#[tokio::test]
async fn spans_and_events_contain_no_arguments() {
    const SECRET: &str = "told-in-confidence";
    #[derive(Deserialize, JsonSchema)]
    struct Args {
        #[expect(dead_code, reason = "only read from the wire")]
        number: u8,
    }
    #[derive(Deserialize, JsonSchema)]
    struct Name {
        name: String,
    }
    async fn count(_: Cx, _: Args) -> Result<&'static str> {
        Ok("counted")
    }
    async fn named(_: Cx, name: Name) -> Result<String> {
        Ok(name.name)
    }
    let one = start(
        Server::builder("traces", "1")
            .tool(Tool::new("count", count))
            // The schema accepts everything, but the struct does not.
            .tool(Tool::new("lax", count).input_schema(json!({"type": "object"})))
            .prompt(Prompt::new("count", count))
            .resource_template(ResourceTemplate::new("n://{name}", "named", named))
            .resource_template(ResourceTemplate::new("c://{number}", "counted", count)),
    )
    .await;
    let (seen, _guard) = watch(LevelFilter::TRACE);
    let arguments = json!({"number": SECRET});
    for tool in ["count", "lax"] {
        let invalid = one.send(&Request::tool(tool, arguments.clone())).await;
        assert!(text(&invalid.reply()).starts_with("Invalid arguments"));
    }
    let prompt = one.send(&Request::prompt("count", arguments)).await;
    let error = prompt.error(200, -32602);
    assert!(error.contains(SECRET), "the caller may see it: {error}");
    let read = |scheme: &str| Request::read(&format!("{scheme}://{SECRET}"));
    one.send(&read("n")).await.reply();
    one.send(&read("c")).await.error(200, -32602);
    one.send(&read("unknown")).await.error(200, -32602);
    let seen = seen.take();
    let uris: Vec<_> = (3..6)
        .map(|n| field(&seen, n, "mcp.resource.uri"))
        .collect();
    assert_eq!(uris, [Some("n://{name}"), Some("c://{number}"), None]);
    assert_eq!(field(&seen, 2, "error.type"), Some("-32602"));
    let all = format!("{seen:?}");
    assert!(!all.contains(SECRET), "{all}");
}

#[tokio::test]
async fn no_span_is_created_if_debug_is_disabled() {
    let one = start(builder(&keys())).await;
    {
        let (seen, _guard) = watch(LevelFilter::INFO);
        one.send(&Request::read("x://r")).await.reply();
        one.send(&request(&[parent(FIRST)])).await.reply();
        let seen = seen.take();
        assert!(seen.spans.is_empty());
        assert_eq!(seen.events.len(), 1, "{:?}", seen.events);
    }
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    one.send(&Request::read("x://r")).await.reply();
    assert_eq!(seen.take().spans.len(), 1);
}

#[tokio::test]
async fn http_header_is_used_if_meta_has_no_trace() {
    let (one, _) = pair().await;
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    let list = Request::rpc("tools/list", json!({}));
    one.send(&list.clone().header("traceparent", FIRST))
        .await
        .reply();
    one.send(&list.header("traceparent", "malformed"))
        .await
        .reply();
    let call = |request: Request| {
        request
            .header("traceparent", FIRST)
            .header("tracestate", "a=1")
    };
    one.send(&call(request(&[]))).await.reply();
    one.send(&call(request(&[parent(OTHER)]))).await.reply();
    let seen = seen.take();
    let traces: Vec<_> = (0..4).map(|n| field(&seen, n, "trace_id")).collect();
    let other = Some("4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(traces, [Some(TRACE), None, Some(TRACE), other]);
    for n in [0, 2] {
        assert_eq!(field(&seen, n, "parent_id"), Some("b7ad6b7169203331"));
    }
    assert_eq!(field(&seen, 0, "otel.name"), Some("tools/list"));
    assert_eq!(field(&seen, 0, "mcp.method.name"), Some("tools/list"));
}

#[tokio::test]
async fn rejected_requests_have_spans_without_names_of_the_client() {
    let (one, _) = pair().await;
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    one.send(&Request::tool("made_up", json!({})))
        .await
        .error(200, -32602);
    one.send(&Request::rpc("made/up", json!({})))
        .await
        .error(404, -32601);
    let seen = seen.take();
    for (n, name, code) in [(0, "tools/call", "-32602"), (1, "_OTHER", "-32601")] {
        assert_eq!(field(&seen, n, "otel.name"), Some(name));
        assert_eq!(field(&seen, n, "error.type"), Some(code));
        assert!(seen.spans[n].closed);
    }
    assert!(!format!("{seen:?}").contains("made"), "{seen:?}");
}

#[tokio::test]
async fn destructors_of_cancelled_handler_run_in_the_span() {
    struct LogOnDrop;
    impl Drop for LogOnDrop {
        fn drop(&mut self) {
            tracing::info!("dropped");
        }
    }
    async fn wait(_: Cx) -> Result<String> {
        let _guard = LogOnDrop;
        std::future::pending::<()>().await;
        Ok(String::new())
    }
    let server = Server::builder("traces", "1").tool(Tool::new("wait", wait));
    let server = server.build().unwrap();
    let (seen, _guard) = watch(LevelFilter::DEBUG);
    let message = Request::tool("wait", json!({})).message();
    let mut outgoing = server
        .handle(&message, refrain_core::Principal::anonymous())
        .await;
    let first = futures_util::poll!(std::pin::pin!(outgoing.next()));
    assert!(first.is_pending());
    drop(outgoing);
    let seen = seen.take();
    assert_eq!(
        seen.events_in("request").collect::<Vec<_>>(),
        ["dropped", "round ended"]
    );
    assert!(seen.spans[0].closed);
}
