//! Spans of steps and asks, of level debug.
//!
//! The span of an ask has no duration: the user may need days. The next round is linked to the round that asked.

use crate::flow::Shared;
use crate::journal::EntryKey;
use refrain_wire::otel;
use tracing::Span;
use tracing::field::Empty;

/// Opens the span of a step that starts to run.
pub(crate) fn open_step(shared: &Shared, key: &EntryKey) -> Option<Box<Span>> {
    let span = tracing::debug_span!(
        "step",
        otel.name = &*format!("step {}", key.name),
        otel.status_code = Empty,
        refrain.step.name = &*key.name,
        refrain.step.kind = key.kind.as_str(),
        "error.type" = Empty,
    );
    attach_to_round(&span, shared);
    (!span.is_disabled()).then(|| Box::new(span))
}

pub(crate) fn record_failure(span: &Span) {
    span.record("error.type", "step_error");
    span.record("otel.status_code", "ERROR");
}

/// Records that an ask was made.
pub(crate) fn record_ask(shared: &Shared, key: &EntryKey) {
    let span = tracing::debug_span!(
        "ask",
        otel.name = &*format!("ask {}", key.name),
        refrain.ask.name = &*key.name,
        refrain.ask.kind = key.kind.as_str(),
    );
    attach_to_round(&span, shared);
}

/// Makes the round's span the parent of a span that was created outside of it, such as in a spawned Tokio task.
fn attach_to_round(span: &Span, shared: &Shared) {
    if let Some(round) = shared.trace.exported()
        && !span.is_disabled()
        && otel::context(&Span::current()).is_none()
    {
        otel::set_parent(span, round, None);
    }
}
