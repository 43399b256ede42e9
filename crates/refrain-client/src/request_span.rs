//! Spans of requests and calls, following OpenTelemetry's semantic conventions for MCP.
//!
//! The spans have level debug. A request carries the context of its span in `_meta` if the span is exported.

use crate::client::ClientInner;
use crate::error::ErrorKind;
use crate::large_message;
use crate::legacy::LegacySession;
use crate::protocol::RequestPlan;
use crate::random::hex;
use crate::transport::{LinkError, LinkResponse, LinkResult};
use aws_lc_rs::digest::{SHA256, digest};
use refrain_wire::client::Request;
use refrain_wire::{CallKind, PROTOCOL_VERSION, TraceContext, Traceparent, otel};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::mem;
use std::time::Duration;
use tracing::Span;
use tracing::field::{Empty, display};
use url::Url;

/// An attempt of a request that has ended, for [`ClientBuilder::on_request`](crate::ClientBuilder::on_request).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RequestReport<'a> {
    /// The method of the request.
    pub method: &'static str,
    /// The tool or prompt of the request.
    pub target: Option<&'a str>,
    /// The kind of failure, as in OpenTelemetry's attribute `error.type`: a JSON-RPC code, an HTTP status, `tool_error`,
    /// `timeout` and others.
    pub error_type: Option<Cow<'static, str>>,
    /// The time from sending the request to its response.
    pub elapsed: Duration,
}

impl ClientInner {
    /// Opens the span of a request. Its parent is the current span, unless `_meta` of the request names another trace.
    pub(crate) fn open_span(
        &self,
        request: &Request,
        meta: Option<&Map<String, Value>>,
        id: u64,
        session: Option<&LegacySession>,
    ) -> Span {
        let tool = target_of(request, CallKind::Tool);
        let prompt = target_of(request, CallKind::Prompt);
        let link = &self.connection.link;
        let url = || Url::parse(link.address()).ok();
        let is_http = link.http().is_some();
        let span = tracing::debug_span!(
            "request",
            otel.name = &*span_name(request.method, tool.or(prompt)),
            otel.kind = "client",
            otel.status_code = Empty,
            mcp.method.name = request.method,
            mcp.protocol.version = version(self, session),
            mcp.session.id = session.and_then(session_digest),
            gen_ai.operation.name = tool.map(|_| "execute_tool"),
            gen_ai.tool.name = tool,
            gen_ai.prompt.name = prompt,
            jsonrpc.request.id = &*id.to_string(),
            rpc.response.status_code = Empty,
            "error.type" = Empty,
            network.transport = if is_http { "tcp" } else { "pipe" },
            network.protocol.name = is_http.then_some("http"),
            server.address = Empty,
            server.port = Empty,
        );
        if !span.is_disabled() {
            if let Some(url) = is_http.then(url).flatten() {
                span.record("server.address", url.host_str());
                span.record("server.port", url.port_or_known_default().map(i64::from));
            }
            adopt_trace_context(&span, meta);
        }
        span
    }

    /// Opens the span of a call, the parent of its requests.
    pub(crate) fn open_call_span(
        &self,
        kind: CallKind,
        target: &str,
        meta: &Map<String, Value>,
    ) -> Span {
        let target = match kind {
            CallKind::Tool | CallKind::Prompt => target,
            CallKind::Resource => kind.method(),
        };
        let span = tracing::debug_span!("call", otel.name = &*span_name("call", Some(target)));
        adopt_trace_context(&span, Some(meta));
        span
    }

    fn reports_requests(&self, span: &Span) -> bool {
        !span.is_disabled() || self.setup.on_request.is_some()
    }

    /// Whether a response is the result of a failed tool. False if neither a span nor the host needs to know.
    pub(crate) async fn is_tool_error(
        &self,
        plan: &RequestPlan<'_>,
        span: &Span,
        response: &mut LinkResult<LinkResponse>,
    ) -> bool {
        let is_tool = plan.request.call_kind() == Some(CallKind::Tool);
        let Ok(LinkResponse {
            outcome: Ok(result),
            ..
        }) = response
        else {
            return false;
        };
        if !is_tool || !self.reports_requests(span) {
            return false;
        }
        let raw = mem::take(result);
        let (raw, is_error) = large_message::parse(raw.get().len(), move || {
            let is_error = is_error(raw.get());
            (raw, is_error)
        })
        .await;
        *result = raw;
        is_error
    }

    /// Records the response to a request, and reports it to the host.
    pub(crate) fn end_request(
        &self,
        plan: &RequestPlan<'_>,
        span: &Span,
        elapsed: Duration,
        response: Result<&LinkResponse, &LinkError>,
        is_tool_error: bool,
    ) {
        if !self.reports_requests(span) {
            return;
        }
        let request = &plan.request;
        let error_type = match response {
            Ok(LinkResponse {
                outcome: Err(failure),
                ..
            }) => {
                span.record("rpc.response.status_code", display(failure.code));
                Some(failure.code.to_string().into())
            }
            Ok(_) => is_tool_error.then_some("tool_error".into()),
            Err(error) => Some(error_type(error.kind())),
        };
        if let Some(error_type) = &error_type {
            span.record("error.type", &**error_type);
            span.record("otel.status_code", "ERROR");
        }
        if let Some(report) = &self.setup.on_request {
            let target = target_of(request, CallKind::Tool);
            report(&RequestReport {
                method: request.method,
                target: target.or_else(|| target_of(request, CallKind::Prompt)),
                error_type,
                elapsed,
            });
        }
    }
}

/// Adds the context of an exported span to `_meta`, and removes that of another span.
pub(crate) fn add_context(meta: &mut Map<String, Value>, span: &Span) {
    let Some(context) = otel::context(span) else {
        return;
    };
    let parent = context.parent.map(|parent| parent.to_string());
    let values = [
        ("traceparent", parent),
        ("tracestate", context.state.map(Cow::into_owned)),
    ];
    for (key, value) in values {
        match value {
            Some(value) => meta.insert(key.to_owned(), value.into()),
            None => meta.remove(key),
        };
    }
}

/// Makes the trace context in `_meta` the parent of a span, unless the current span is already part of that trace.
fn adopt_trace_context(span: &Span, meta: Option<&Map<String, Value>>) {
    let text = |key| meta?.get(key)?.as_str();
    let Some(parent) = text("traceparent").and_then(Traceparent::parse) else {
        return;
    };
    let current = otel::context(&Span::current());
    let is_same = |TraceContext {
                       parent: current, ..
                   }: &TraceContext<'_>| {
        current.is_some_and(|current| current.trace_id == parent.trace_id)
    };
    if !current.as_ref().is_some_and(is_same) {
        otel::set_parent(span, parent, text("tracestate"));
    }
}

fn target_of(request: &Request, kind: CallKind) -> Option<&str> {
    (request.call_kind() == Some(kind))
        .then(|| request.subject())
        .flatten()
}

fn span_name<'a>(method: &'a str, target: Option<&str>) -> Cow<'a, str> {
    match target {
        Some(target) => format!("{method} {target}").into(),
        None => method.into(),
    }
}

fn version<'a>(inner: &'a ClientInner, session: Option<&'a LegacySession>) -> Option<&'a str> {
    match session {
        Some(session) => session.version.to_str().ok(),
        None => match &*inner.connection.server().version {
            // Not negotiated yet.
            "" => Some(PROTOCOL_VERSION),
            version => Some(version),
        },
    }
}

/// A digest of the session's id, which is a secret.
fn session_digest(session: &LegacySession) -> Option<String> {
    let id = session.id.as_ref()?;
    Some(hex(&digest(&SHA256, id.as_bytes()).as_ref()[..16]))
}

fn is_error(result: &str) -> bool {
    #[derive(Deserialize)]
    struct ToolOutcome {
        #[serde(rename = "isError", default)]
        is_error: bool,
    }
    serde_json::from_str::<ToolOutcome>(result).is_ok_and(|outcome| outcome.is_error)
}

fn error_type(error: &ErrorKind) -> Cow<'static, str> {
    match error {
        ErrorKind::Rpc(failure) => failure.code.to_string().into(),
        ErrorKind::HttpStatus { status, .. } => status.to_string().into(),
        ErrorKind::Timeout(_) => "timeout".into(),
        ErrorKind::ConnectionLost(_) => "connection_lost".into(),
        ErrorKind::Unreachable { .. } => "unreachable".into(),
        ErrorKind::Exited { .. } => "exited".into(),
        ErrorKind::InvalidResponse(_) => "invalid_response".into(),
        ErrorKind::Auth(_) => "unauthorized".into(),
        _ => "_OTHER".into(),
    }
}
