//! The bridge from `tracing` spans to OpenTelemetry.
//!
//! A span is *exported* if the feature `otel` is enabled and the program has installed an OpenTelemetry layer that accepts
//! the span. For other spans these functions do nothing.

use crate::{TraceContext, Traceparent};
use tracing::Span;

/// Makes `parent` the parent of an exported span. Without effect after the span was entered or its context was read.
pub fn set_parent(span: &Span, parent: Traceparent, state: Option<&str>) {
    bridge::set_parent(span, parent, state);
}

/// Adds a link from an exported span to `linked`.
pub fn add_link(span: &Span, linked: Traceparent) {
    bridge::add_link(span, linked);
}

/// The context of an exported span: its trace, its id and its `tracestate`.
pub fn context(span: &Span) -> Option<TraceContext<'static>> {
    bridge::context(span)
}

#[cfg(feature = "otel")]
mod bridge {
    use super::{Span, TraceContext, Traceparent};
    use crate::{SpanId, TraceId};
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags, TraceState};
    use std::str::FromStr;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    fn to_otel(parent: Traceparent, state: Option<&str>) -> SpanContext {
        let state = state.and_then(|state| TraceState::from_str(state).ok());
        SpanContext::new(
            opentelemetry::TraceId::from_bytes(parent.trace_id.0),
            opentelemetry::SpanId::from_bytes(parent.span_id.0),
            TraceFlags::new(parent.flags),
            true,
            state.unwrap_or_default(),
        )
    }

    pub(super) fn set_parent(span: &Span, parent: Traceparent, state: Option<&str>) {
        let parent = Context::new().with_remote_span_context(to_otel(parent, state));
        // Fails if the span is not exported, or was entered or read before.
        let _ = span.set_parent(parent);
    }

    pub(super) fn add_link(span: &Span, linked: Traceparent) {
        span.add_link(to_otel(linked, None));
    }

    pub(super) fn context(span: &Span) -> Option<TraceContext<'static>> {
        if span.is_disabled() {
            return None;
        }
        let context = span.context();
        let span = context.span();
        let exported = span.span_context();
        let state = exported.trace_state().header();
        exported.is_valid().then(|| TraceContext {
            parent: Some(Traceparent {
                trace_id: TraceId(exported.trace_id().to_bytes()),
                span_id: SpanId(exported.span_id().to_bytes()),
                flags: exported.trace_flags().to_u8(),
            }),
            state: (!state.is_empty()).then(|| state.into()),
            ..TraceContext::default()
        })
    }
}

#[cfg(not(feature = "otel"))]
mod bridge {
    use super::{Span, TraceContext, Traceparent};

    pub(super) fn set_parent(_: &Span, _: Traceparent, _: Option<&str>) {}

    pub(super) fn add_link(_: &Span, _: Traceparent) {}

    pub(super) fn context(_: &Span) -> Option<TraceContext<'static>> {
        None
    }
}
