//! A round of a call whose handler is parked on this instance.

use super::Rounds;
use super::admitted::Admitted;
use super::running::{FlowHome, Round, State};
use super::span;
use crate::limits::Permit;
use crate::live::{Attached, Subscribed};
use refrain_core::{Snapshot, Start};
use refrain_wire::Call;
use std::sync::Arc;

/// A request that waits for the reply of a parked handler.
pub(super) struct AttachedCall<'a> {
    rounds: &'a Arc<Rounds>,
    call: &'a Call<'a>,
    permit: Permit,
    attached: Attached,
    span: tracing::Span,
    number: u32,
}

impl<'a> Admitted<'a> {
    /// Makes the request wait for the reply. `at` names the flow and its round.
    pub(super) fn attach(self, attached: Attached, at: Snapshot) -> AttachedCall<'a> {
        let mut start = Start::first(at, None);
        if let Some(trace) = &self.call.meta.trace {
            start.receive_trace(trace);
        }
        AttachedCall {
            rounds: self.rounds,
            call: self.call,
            permit: self.permit,
            attached: attached.with(Subscribed::by(self.call)),
            span: span::open(self.rounds, self.call, self.target.uri(), &mut start),
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
        round.state = State::Running(home);
        round
    }
}
