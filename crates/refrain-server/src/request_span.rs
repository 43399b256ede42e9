//! Spans of requests, runs of tasks and runs of live calls, following OpenTelemetry's semantic conventions for MCP.
//!
//! The spans have level debug. Their fields are computed only if that level is enabled. The sender's
//! span is the one in `_meta`, or else in the HTTP header `traceparent`.
//!
//! | span | kind | parent | links |
//! | --- | --- | --- | --- |
//! | request | server | the span in `_meta`, otherwise in the HTTP header `traceparent` | the span in the header if `_meta` has another |
//! | request of a flow | server | the sender's span if it is in the flow's trace, otherwise the round before | the round before; the sender's span if it is in another trace |
//! | run of a task | consumer | the call that created the task | the same call |
//! | run of a live call | internal | the first request of the call | |

use crate::dispatch::{Context, ParsedRequest, SessionContext};
use crate::legacy::Lifetime;
use crate::metrics::{Label, NonCall};
use http::{HeaderMap, HeaderName};
use refrain_core::{FlowId, Start, Trace};
use refrain_store::TaskId;
use refrain_wire::legacy::read_trace;
use refrain_wire::{CallKind, ErrorCode, Id, Meta, Reply, TraceContext, Traceparent, otel};
use serde_json::value::RawValue;
use tracing::field::{Empty, display};
use tracing::{Level, Span};

/// The method name in spans of unknown methods. Clients choose those names, so their number is not limited.
const OTHER_METHOD: &str = "_OTHER";

/// The properties of a request that its span records.
struct SpanRequest<'a> {
    id: Option<Id<'a>>,
    method: &'static str,
    version: &'a str,
    trace: Option<&'a TraceContext<'a>>,
}

impl<'a> ParsedRequest<'a> {
    /// Takes the trace context from the HTTP headers if `_meta` has none.
    pub(crate) fn read_trace(&mut self, headers: Option<&HeaderMap>) {
        let has_trace = |trace: &TraceContext<'_>| trace.parent.is_some();
        if let Some(headers) = headers
            && !self.meta().trace.as_deref().is_some_and(has_trace)
            && let Some(trace) = trace_from_headers(headers)
        {
            self.meta_mut().trace = Some(trace);
        }
    }

    fn meta_mut(&mut self) -> &mut Meta<'a> {
        match self {
            Self::Call(call) => &mut call.meta,
            Self::Discover(meta) => meta,
            Self::List(_, params) | Self::ListSkills(params) => &mut params.meta,
            Self::GetSkill(params) => &mut params.meta,
            Self::Complete(params) => &mut params.meta,
            Self::Listen(params) => &mut params.meta,
            Self::Task(params) => &mut params.meta,
        }
    }

    /// Opens the span of the request.
    pub(crate) fn open_span(&self, id: Id<'_>, context: &Context<'_>) -> Span {
        let meta = self.meta();
        let request = SpanRequest {
            id: Some(id),
            method: self.method(),
            version: &meta.protocol_version,
            trace: meta.trace.as_deref(),
        };
        open_request(&request, context)
    }
}

/// Opens the span of a request of a legacy client.
pub(crate) fn legacy_span(
    id: Id<'_>,
    method: &str,
    params: Option<&RawValue>,
    context: &Context<'_>,
) -> Span {
    if !tracing::span_enabled!(Level::DEBUG) {
        return Span::none();
    }
    let trace = read_trace(params);
    let trace = trace.or_else(|| trace_from_headers(context.http?));
    let request = SpanRequest {
        id: Some(id),
        method: known_method(method),
        version: "",
        trace: trace.as_deref(),
    };
    open_request(&request, context)
}

/// Opens the span of a rejected request: malformed, or with wrong headers or an unsupported revision.
pub(crate) fn rejected_span(id: Option<Id<'_>>, method: &str, context: &Context<'_>) -> Span {
    let request = SpanRequest {
        id,
        method: known_method(method),
        version: "",
        trace: None,
    };
    open_request(&request, context)
}

/// The method for the span of a legacy or rejected request: `_OTHER` if this server does not know it.
fn known_method(method: &str) -> &'static str {
    let call = CallKind::from_method(method).map(CallKind::method);
    call.or_else(|| NonCall::of(method).map(Label::name))
        .unwrap_or(OTHER_METHOD)
}

/// Opens the span of a request. If it is a call, [`set_target`] and [`set_flow`] add further fields.
fn open_request(request: &SpanRequest<'_>, context: &Context<'_>) -> Span {
    let span = tracing::debug_span!(
        "request",
        otel.name = request.method,
        otel.kind = "server",
        otel.status_code = Empty,
        otel.status_description = Empty,
        mcp.method.name = request.method,
        mcp.protocol.version = version(request, context),
        mcp.session.id = session_key(context),
        mcp.resource.uri = Empty,
        gen_ai.operation.name = Empty,
        gen_ai.tool.name = Empty,
        gen_ai.prompt.name = Empty,
        jsonrpc.request.id = request.id.as_ref().map(|id| id.as_json().trim_matches('"')),
        rpc.response.status_code = Empty,
        "error.type" = Empty,
        network.transport = transport(context),
        network.protocol.name = context.http.map(|_| "http"),
        client.address = context.caller.address.map(display),
        refrain.flow.id = Empty,
        refrain.round = Empty,
        refrain.home = Empty,
        trace_id = Empty,
        span_id = Empty,
        parent_id = Empty,
        link = Empty,
    );
    if !span.is_disabled() {
        let parent = request.trace.and_then(|trace| trace.parent);
        if let Some(parent) = parent {
            let state = request.trace.and_then(|trace| trace.state.as_deref());
            otel::set_parent(&span, parent, state);
            span.record("trace_id", display(parent.trace_id));
            span.record("parent_id", display(parent.span_id));
        }
        let header = context.http.and_then(traceparent);
        if let Some(header) = header.filter(|header| Some(*header) != parent) {
            otel::add_link(&span, header);
        }
    }
    span
}

/// Adds the registered target of a call. URIs and unknown names are left out, because span names must have low
/// cardinality.
pub(crate) fn set_target(span: &Span, kind: CallKind, target: &str) {
    if span.is_disabled() || kind == CallKind::Resource {
        return;
    }
    span.record("otel.name", &*format!("{} {target}", kind.method()));
    if kind == CallKind::Prompt {
        span.record("gen_ai.prompt.name", target);
    } else {
        span.record("gen_ai.tool.name", target);
        span.record("gen_ai.operation.name", "execute_tool");
    }
}

fn version<'a>(request: &SpanRequest<'a>, context: &Context<'a>) -> Option<&'a str> {
    match context.sessions {
        SessionContext::Open(session) => Some(session.revision.as_str()),
        _ => Some(request.version).filter(|version| !version.is_empty()),
    }
}

/// The key of a legacy session, because its id is a secret.
fn session_key<'a>(context: &Context<'a>) -> Option<&'a str> {
    match context.sessions {
        SessionContext::Open(session) => Some(&session.key),
        _ => None,
    }
}

fn transport(context: &Context<'_>) -> Option<&'static str> {
    let lifetime = match context.sessions {
        SessionContext::Open(session) => session.lifetime(),
        SessionContext::NotOpen(lifetime) => lifetime,
        SessionContext::None => return None,
    };
    Some(match lifetime {
        Lifetime::Limited => "tcp",
        Lifetime::Process => "pipe",
    })
}

fn traceparent(headers: &HeaderMap) -> Option<Traceparent> {
    // The lookup of a static name is much faster than that of a string.
    static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
    Traceparent::parse(headers.get(&TRACEPARENT)?.to_str().ok()?)
}

/// The trace context in HTTP headers, for requests without one in `_meta`.
pub(crate) fn trace_from_headers(headers: &HeaderMap) -> Option<Box<TraceContext<'static>>> {
    let parent = traceparent(headers)?;
    let text = |name| Some(headers.get(name)?.to_str().ok()?.to_owned());
    let context = TraceContext::new(parent, text("tracestate"), text("baggage"));
    Some(Box::new(context))
}

/// Adds the flow to the span of a round. `uri` is the registered URI, because the one in the request may contain arguments.
pub(crate) fn set_flow(span: &Span, start: &mut Start, uri: Option<&str>, home: &'static str) {
    if span.is_disabled() {
        return;
    }
    span.record("refrain.flow.id", display(start.flow()));
    // OpenTelemetry has no unsigned integers.
    span.record("refrain.round", i64::from(start.round()));
    span.record("refrain.home", home);
    if let Some(uri) = uri {
        span.record("mcp.resource.uri", uri);
    }
    let trace = start.trace();
    let parent = trace.parent();
    // The parent of a generated trace does not exist: the exported span starts a trace, so that the sampler decides.
    if !trace.is_generated() {
        otel::set_parent(span, parent, trace.tracestate());
    }
    if let Some(previous) = trace.previous().filter(|previous| *previous != parent) {
        otel::add_link(span, previous);
    }
    if let Some(sender) = trace.link() {
        if !trace.is_generated() {
            otel::add_link(span, sender);
        }
        span.record("link", display(sender));
    }
    record_ids(span, trace);
}

/// Records the ids of the span for log lines. If the span is exported, it becomes the parent of the handler's spans.
fn record_ids(span: &Span, trace: &mut Trace) {
    if let Some(exported) = otel::context(span).and_then(|context| context.parent) {
        trace.set_exported(exported);
    }
    let own = trace.traceparent();
    span.record("trace_id", display(own.trace_id));
    span.record("span_id", display(own.span_id));
    let parent = trace.parent();
    if parent.trace_id == own.trace_id {
        span.record("parent_id", display(parent.span_id));
    }
}

pub(crate) fn record_reply(span: &Span, reply: &Reply) {
    if span.is_disabled() {
        return;
    }
    match reply {
        Reply::Error(error) | Reply::Busy { error, .. } => {
            let code = error.code.as_i32();
            span.record("rpc.response.status_code", display(code));
            span.record("error.type", display(code));
            span.record("otel.status_code", "ERROR");
            // Messages with other codes may quote the request or an error of the handler.
            if error.code == ErrorCode::MissingCapability {
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

/// Opens the span of one run of a task on this instance. `call` is the span of the call that created the task.
pub(crate) fn open_task(
    task: &TaskId,
    tool: &str,
    flow: FlowId,
    call: Option<Traceparent>,
) -> Span {
    let span = tracing::debug_span!(
        // The span of a call must not stay open until its task ends.
        parent: None,
        "task",
        otel.name = &*format!("task {tool}"),
        otel.kind = "consumer",
        gen_ai.tool.name = tool,
        refrain.task.id = ?task,
        refrain.flow.id = %flow,
        refrain.home = "store",
    );
    if let Some(call) = call {
        otel::set_parent(&span, call, None);
        otel::add_link(&span, call);
    }
    span
}

/// Opens the span of one run of a live call: from a request or an answer until the handler waits for an answer. `first` is
/// the span of the call's first request.
pub(crate) fn open_live(flow: FlowId, target: &str, first: Option<Traceparent>) -> Span {
    let span = tracing::debug_span!(
        parent: None,
        "live",
        otel.name = &*format!("live {target}"),
        refrain.flow.id = %flow,
        refrain.home = "live",
    );
    if let Some(first) = first {
        otel::set_parent(&span, first, None);
    }
    span
}
