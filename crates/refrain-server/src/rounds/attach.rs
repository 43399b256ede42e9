//! A later request of a live call whose handler is parked on this instance.

use super::Rounds;
use super::admit::AdmittedCall;
use super::round::{FlowHome, Round, RoundState};
use crate::limits::Permit;
use crate::live::{AttachedRequest, Subscribed};
use crate::request_span;
use refrain_core::{Snapshot, Start};
use refrain_wire::Call;
use std::sync::Arc;

/// A request that waits for the next reply of a parked handler.
pub(super) struct AttachedCall<'a> {
    rounds: &'a Arc<Rounds>,
    call: &'a Call<'a>,
    permit: Permit,
    attached: AttachedRequest,
    span: tracing::Span,
    number: u32,
}

impl<'a> AdmittedCall<'a> {
    pub(super) fn attach(self, attached: AttachedRequest, snapshot: Snapshot) -> AttachedCall<'a> {
        let mut start = Start::first(snapshot, None);
        if let Some(trace) = &self.call.meta.trace {
            start.receive_trace(trace);
        }
        request_span::set_flow(&self.span, &mut start, self.target.uri(), "live");
        AttachedCall {
            rounds: self.rounds,
            call: self.call,
            permit: self.permit,
            attached: attached.with_subscribed(Subscribed::by(self.call)),
            span: self.span,
            number: start.round(),
        }
    }
}

impl AttachedCall<'_> {
    pub(super) fn run(self) -> Box<Round> {
        let home = FlowHome::Parked {
            attached: Box::new(self.attached),
            _permit: self.permit,
        };
        let mut round = Round::new(self.rounds, self.call, self.number, self.span, None);
        round.state = RoundState::Running(home);
        round
    }
}
