//! Flows of legacy sessions, which send asks during the round.

use super::round::HomeEvent;
use super::{Rounds, reply_of};
use crate::live::{LiveEvent, LiveFlow};
use crate::metrics::LiveCallEvent;
use refrain_wire::{CallKind, Reply};
use std::task::{Context, Poll, ready};

impl LiveFlow {
    /// Polls a flow of a legacy session.
    pub(super) fn poll_session(
        &mut self,
        rounds: &Rounds,
        kind: CallKind,
        cx: &mut Context<'_>,
    ) -> Poll<HomeEvent> {
        loop {
            let event = match ready!(self.poll(cx)) {
                LiveEvent::Notes(notes) => HomeEvent::Notes(notes),
                LiveEvent::Asks { asks, withdrawn } => {
                    for (_, ask) in &asks {
                        rounds.services.metrics.asks.add(ask.kind());
                    }
                    HomeEvent::Asks { asks, withdrawn }
                }
                LiveEvent::Idle => continue,
                LiveEvent::Detach => unreachable!("a flow of a legacy session cannot detach"),
                LiveEvent::Ended(end) => HomeEvent::Reply(reply_of(*end, kind, self.output())),
                LiveEvent::Crashed => HomeEvent::Crashed,
                LiveEvent::Cancelled(error) => {
                    rounds.services.metrics.live(LiveCallEvent::GivenUp);
                    HomeEvent::Reply(Reply::Error(error))
                }
            };
            return Poll::Ready(event);
        }
    }
}
