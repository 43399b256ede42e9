//! The span of a round, following OpenTelemetry's semantic conventions for MCP.
//!
//! The span has level debug. Its fields are computed only if that level is enabled.

use super::Rounds;
use refrain_core::{Start, Trace};
use refrain_wire::{Call, CallKind, ErrorCode, Id, Reply};
use std::borrow::Cow;
use std::sync::Arc;
use tracing::Span;
use tracing::field::{Empty, display};

/// Called with the span of every round.
pub(crate) type RoundHook = Arc<dyn Fn(&Span, &mut Trace) + Send + Sync>;

/// Creates the span of a round. `uri` is the registered URI: the one in the request may contain arguments.
pub(super) fn open(rounds: &Rounds, call: &Call<'_>, uri: Option<&str>, start: &mut Start) -> Span {
    let (flow, round) = (start.flow(), start.round());
    let trace = start.trace();
    let target = |kind| (call.kind == kind).then_some(&*call.target);
    let tool = target(CallKind::Tool);
    let prompt = target(CallKind::Prompt);
    let span = tracing::debug_span!(
        "round",
        otel.name = &*name(call),
        otel.kind = "server",
        otel.status_code = Empty,
        otel.status_description = Empty,
        mcp.method.name = call.kind.method(),
        mcp.protocol.version = &*call.meta.protocol_version,
        mcp.resource.uri = uri,
        gen_ai.operation.name = tool.map(|_| "execute_tool"),
        gen_ai.tool.name = tool,
        gen_ai.prompt.name = prompt,
        jsonrpc.request.id = Empty,
        rpc.response.status_code = Empty,
        "error.type" = Empty,
        trace_id = %trace.parent().trace_id,
        span_id = Empty,
        parent_id = %trace.parent().span_id,
        link = trace.link().map(display),
        flow = %flow,
        // OpenTelemetry has no unsigned integers.
        round = i64::from(round),
    );
    if !span.is_disabled() {
        rounds.flows.observe(&span, trace);
        span.record("span_id", display(trace.traceparent().span_id));
    }
    span
}

/// The method and its target. URIs are left out, because span names must have low cardinality.
fn name<'a>(call: &'a Call<'_>) -> Cow<'a, str> {
    let method = call.kind.method();
    match call.kind {
        CallKind::Tool | CallKind::Prompt => format!("{method} {}", call.target).into(),
        CallKind::Resource => method.into(),
    }
}

pub(super) fn record_id(span: &Span, id: &Id<'_>) {
    if !span.is_disabled() {
        span.record("jsonrpc.request.id", id.as_json().trim_matches('"'));
    }
}

pub(super) fn record_reply(span: &Span, reply: &Reply) {
    if span.is_disabled() {
        return;
    }
    match reply {
        Reply::Error(error) | Reply::Busy { error, .. } => {
            let code = error.code.as_i32();
            span.record("rpc.response.status_code", display(code));
            span.record("error.type", display(code));
            span.record("otel.status_code", "ERROR");
            // Other messages of this server do not quote the caller's parameters.
            if !matches!(error.code, ErrorCode::InvalidParams | ErrorCode::Other(_)) {
                span.record("otel.status_description", &*error.message);
            }
        }
        Reply::Complete(body) if body.is_error() => {
            span.record("error.type", "tool_error");
            span.record("otel.status_code", "ERROR");
        }
        Reply::Complete(_) | Reply::Incomplete(_) | Reply::Task(_) | Reply::Recorded(_) => {}
    }
}
