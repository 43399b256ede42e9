//! A later request of a live call whose handler is parked on this instance.

use super::admit::AdmittedCall;
use super::round::Round;
use crate::live::{AttachedRequest, Subscribed};
use crate::request_span;
use refrain_core::{Snapshot, Start};

impl AdmittedCall<'_> {
    /// A round that waits for the next reply of a parked handler.
    pub(super) fn attach(self, attached: AttachedRequest, snapshot: Snapshot) -> Box<Round> {
        let (call, span) = (self.request.call, self.request.span);
        let mut start = Start::first(snapshot, None);
        if let Some(trace) = &call.meta.trace {
            start.receive_trace(trace);
        }
        request_span::set_flow(span, &mut start, self.target.uri(), "live");
        let mut round = Round::new(self.rounds, call, start.round(), span.clone(), None);
        round.attach(attached, Subscribed::by(call), self.permit);
        round
    }
}
