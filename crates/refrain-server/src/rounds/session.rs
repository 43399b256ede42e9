//! A flow of a legacy session: what it asks goes out while the round goes on.

use super::outcome_of;
use super::running::Step;
use crate::live::{LiveEvent, LiveFlow};
use crate::metrics::LiveCount;
use crate::server::Server;
use refrain_core::Event;
use refrain_wire::{CallKind, Reply};
use std::task::{Context, Poll, ready};

pub(super) struct SessionFlow {
    pub(super) live: LiveFlow,
}

impl SessionFlow {
    pub(super) fn poll(
        &mut self,
        server: &Server,
        kind: CallKind,
        cx: &mut Context<'_>,
    ) -> Poll<Step> {
        loop {
            let step = match ready!(self.live.poll(cx)) {
                LiveEvent::Notes(notes) => Step::Notes(notes),
                LiveEvent::Asks { asks, withdrawn } => {
                    for (_, ask) in &asks {
                        server.0.metrics.asks(ask.kind());
                    }
                    Step::Asks { asks, withdrawn }
                }
                LiveEvent::Rests => continue,
                LiveEvent::Over(event) => match *event {
                    Event::Crashed => Step::Crashed,
                    event => Step::Reply(outcome_of(event, kind, self.live.output())),
                },
                LiveEvent::GivenUp(error) => {
                    server.0.metrics.live(LiveCount::GivenUp);
                    Step::Reply(Reply::Error(error))
                }
            };
            return Poll::Ready(step);
        }
    }
}
