//! The trace of a flow, which is the same in all its rounds.
//!
//! | traceparent of the first request | of a later request | trace | parent of the later round's span |
//! | --- | --- | --- | --- |
//! | present | same trace | of the first request | the span that sent the later request |
//! | present | another trace | of the first request | the span that sent the first request; the other is a link |
//! | present | absent | of the first request | the span that sent the first request |
//! | absent | present | derived from the flow id | derived from the flow id; the other is a link |
//! | absent | absent | derived from the flow id | derived from the flow id |
//!
//! The token contains the traceparent of the first request. If the round's span is exported to OpenTelemetry, the token
//! contains the span of that round instead, in the same trace, so that the next round can be linked to it.

use crate::journal::FlowId;
use aws_lc_rs::digest::{Context, SHA256};
use refrain_wire::{SpanId, TraceContext, TraceId, Traceparent};
use std::fmt;

/// The trace context of a round.
#[derive(Clone)]
pub struct Trace {
    flow: FlowId,
    round: u32,
    /// The span of the round before, if it was exported; otherwise the traceparent of the flow's first round.
    pub(crate) origin: Option<Traceparent>,
    /// The trace context of this round's request. Boxed, since most requests have none.
    received: Option<Box<RequestTrace>>,
    /// The span of this round, if it is exported.
    exported: Option<Box<Traceparent>>,
}

#[derive(Clone)]
struct RequestTrace {
    parent: Option<Traceparent>,
    tracestate: Option<Box<str>>,
    baggage: Option<Box<str>>,
}

impl Trace {
    pub(crate) fn new(flow: FlowId, round: u32, origin: Option<Traceparent>) -> Self {
        Self {
            flow,
            round,
            origin,
            received: None,
            exported: None,
        }
    }

    /// Sets the trace context of the round's request.
    pub(crate) fn receive(&mut self, context: &TraceContext<'_>) {
        if self.round == 1 {
            self.origin = context.parent;
        }
        self.received = Some(Box::new(RequestTrace {
            parent: context.parent,
            tracestate: context.state.as_deref().map(Into::into),
            baggage: context.baggage.as_deref().map(Into::into),
        }));
    }

    /// Returns the `traceparent` for requests to other services: the flow's trace with a span of this round.
    pub fn traceparent(&self) -> Traceparent {
        self.exported().unwrap_or_else(|| Traceparent {
            span_id: self.derived().1,
            ..self.parent()
        })
    }

    /// Returns the parent of this round's span: the span that sent the request if it is in the flow's trace, otherwise the
    /// span that sent the first request. If the first request had no trace, the parent is derived from the flow id and
    /// was never recorded; see [`is_generated`](Self::is_generated).
    pub fn parent(&self) -> Traceparent {
        let sender = self.same_trace().or(self.origin);
        sender.unwrap_or_else(|| self.derived().0)
    }

    /// Returns the span of the round before this one, if it was exported; otherwise that of the first request.
    pub fn previous(&self) -> Option<Traceparent> {
        self.origin.filter(|_| self.round > 1)
    }

    /// Returns the span that sent this round's request, if it is in another trace than the flow.
    pub fn link(&self) -> Option<Traceparent> {
        let received = self.received.as_ref()?.parent;
        received.filter(|_| self.same_trace().is_none())
    }

    /// Returns the request's `tracestate`, to be sent with [`traceparent`](Self::traceparent). `None` if the request is
    /// in another trace than the flow.
    pub fn tracestate(&self) -> Option<&str> {
        self.same_trace()?;
        self.received.as_ref()?.tracestate.as_deref()
    }

    /// Returns the request's W3C Baggage, which is not authenticated.
    pub fn baggage(&self) -> Option<&str> {
        self.received.as_ref()?.baggage.as_deref()
    }

    /// Returns whether neither the request nor an earlier round had a trace.
    pub fn is_generated(&self) -> bool {
        self.origin.is_none()
    }

    /// Sets the span of the round that is exported to OpenTelemetry.
    pub fn set_exported(&mut self, span: Traceparent) {
        self.exported = Some(Box::new(span));
    }

    /// Returns the span of the round, if it is exported.
    pub fn exported(&self) -> Option<Traceparent> {
        self.exported.as_deref().copied()
    }

    /// The origin of the next round.
    pub(crate) fn next_origin(&self) -> Option<Traceparent> {
        self.exported().or(self.origin)
    }

    /// The request's traceparent, if it is in the flow's trace.
    fn same_trace(&self) -> Option<Traceparent> {
        let origin = self.origin?;
        let received = self.received.as_ref()?.parent;
        received.filter(|received| received.trace_id == origin.trace_id)
    }

    /// Derives the parent of all rounds and the span of this round from the flow id, so that all instances agree. A hash,
    /// since trace ids are public and the flow id is secret: it determines idempotency keys.
    fn derived(&self) -> (Traceparent, SpanId) {
        let mut hash = Context::new(&SHA256);
        hash.update(b"refrain trace");
        hash.update(self.flow.as_bytes());
        let digest = hash.finish();
        let (mut trace, mut root, mut round) = ([0; 16], [0; 8], [0; 8]);
        trace.copy_from_slice(&digest.as_ref()[..16]);
        root.copy_from_slice(&digest.as_ref()[16..24]);
        round.copy_from_slice(&digest.as_ref()[24..]);
        let parent = Traceparent {
            trace_id: TraceId(trace),
            span_id: SpanId(root),
            // Sampled, so that the trace is recorded.
            flags: 1,
        };
        let round = u64::from_be_bytes(round) ^ u64::from(self.round);
        (parent, SpanId(round.to_be_bytes()))
    }
}

/// Omits state and baggage, which may be private.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("traceparent", &self.traceparent())
            .field("parent", &self.parent())
            .field("link", &self.link())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(parent: &str) -> TraceContext<'_> {
        TraceContext {
            parent: Traceparent::parse(parent),
            state: Some("a=1".into()),
            ..TraceContext::default()
        }
    }

    /// Instances of all versions must derive the same ids.
    #[test]
    fn trace_ids_are_derived_from_the_flow_id() {
        let trace = |flow, round| Trace::new(FlowId::from_bytes([flow; 16]), round, None);
        let first = trace(9, 1);
        assert!(first.is_generated());
        assert_eq!(first.parent().to_string(), PARENT);
        assert_eq!(first.traceparent().to_string(), FIRST);
        let second = trace(9, 2);
        assert_eq!(second.parent(), first.parent());
        assert_eq!(second.traceparent().trace_id, first.parent().trace_id);
        assert_ne!(second.traceparent().span_id, first.traceparent().span_id);
        assert_ne!(trace(8, 1).parent().trace_id, first.parent().trace_id);
    }

    const PARENT: &str = "00-76fe9ba2ac06951da0a3ead9aaf81942-3e99a75d20cfdb48-01";
    const FIRST: &str = "00-76fe9ba2ac06951da0a3ead9aaf81942-3378d7f861ce3324-01";

    #[test]
    fn exported_span_is_propagated() {
        let sent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let mut trace = Trace::new(FlowId::from_bytes([9; 16]), 1, None);
        trace.receive(&context(sent));
        assert_eq!(trace.parent().to_string(), sent);
        assert_eq!((trace.link(), trace.tracestate()), (None, Some("a=1")));
        assert_eq!(trace.next_origin(), trace.origin);
        let exported =
            Traceparent::parse("00-0af7651916cd43dd8448eb211c80319c-0707070707070707-00");
        trace.set_exported(exported.expect("a traceparent"));
        assert_eq!(Some(trace.traceparent()), exported);
        assert_eq!(trace.parent().to_string(), sent);
        // The next round is linked to this one.
        assert_eq!((trace.previous(), trace.next_origin()), (None, exported));
        let next = Trace::new(FlowId::from_bytes([9; 16]), 2, trace.next_origin());
        assert_eq!((next.previous(), Some(next.parent())), (exported, exported));
    }
}
