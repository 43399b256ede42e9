//! A flow of a legacy session: what it asks goes out while the round goes on.

use super::running::Step;
use super::{Rounds, reply_of};
use crate::live::{LiveEvent, LiveFlow};
use crate::metrics::LiveCount;
use refrain_wire::{CallKind, Reply};
use std::task::{Context, Poll, ready};

pub(super) struct SessionFlow {
    pub(super) live: LiveFlow,
}

impl SessionFlow {
    pub(super) fn poll(
        &mut self,
        rounds: &Rounds,
        kind: CallKind,
        cx: &mut Context<'_>,
    ) -> Poll<Step> {
        loop {
            let step = match ready!(self.live.poll(cx)) {
                LiveEvent::Notes(notes) => Step::Notes(notes),
                LiveEvent::Asks { asks, withdrawn } => {
                    for (_, ask) in &asks {
                        rounds.services.metrics.asks.add(ask.kind());
                    }
                    Step::Asks { asks, withdrawn }
                }
                LiveEvent::Rests => continue,
                LiveEvent::Over(end) => Step::Reply(reply_of(*end, kind, self.live.output())),
                LiveEvent::Crashed => Step::Crashed,
                LiveEvent::GivenUp(error) => {
                    rounds.services.metrics.live(LiveCount::GivenUp);
                    Step::Reply(Reply::Error(error))
                }
            };
            return Poll::Ready(step);
        }
    }
}
