//! A round of a call whose handler is parked, here or at another instance.

use super::begin::wishes;
use super::target::Target;
use super::{Round, Stage, span};
use crate::auth::Caller;
use crate::dispatch::Begin;
use crate::live::{Attached, Missed, Relay, elsewhere, gone};
use crate::load::Place;
use crate::metrics::LiveCount;
use crate::server::Server;
use refrain_core::{Binding, LiveToken, Snapshot, Start, Stats};
use refrain_wire::{Call, RpcError};

/// What is known of such a round.
pub(super) struct Resumed<'a> {
    pub(super) target: &'a Target,
    pub(super) binding: Binding,
    pub(super) place: Place,
    pub(super) at: Snapshot,
}

impl Resumed<'_> {
    /// Goes on with the call that a token names, where it is held.
    pub(super) fn resume(
        self,
        server: &Server,
        call: &Call<'_>,
        held: LiveToken,
        caller: Caller,
    ) -> Result<Box<Round>, Begin> {
        let metrics = &server.0.metrics;
        if held.holder != server.0.live.name() {
            let Some(peer) = server.0.remotes.get(&held.holder) else {
                metrics.live(LiveCount::Elsewhere);
                return Err(elsewhere().into());
            };
            return Err(Begin::Relay(Box::new(Relay {
                _place: self.place,
                peer: peer.clone(),
                holder: held.holder,
                caller,
            })));
        }
        let answers = call.answers.as_ref();
        match server.0.live.attach(held.flow, held.round, answers) {
            Ok(attached) => Ok(self.attach(server, call, attached)),
            Err(Missed::Gone) => {
                metrics.live(LiveCount::Gone);
                Err(gone().into())
            }
            Err(Missed::Error(error)) => Err(RpcError::into(error)),
        }
    }

    /// The round of a request that waits for a handler which is parked here.
    pub(super) fn attach(self, server: &Server, call: &Call<'_>, attached: Attached) -> Box<Round> {
        let mut start = Start::first(self.at, None);
        if let Some(trace) = &call.meta.trace {
            start.receive_trace(trace);
        }
        let span = span::open(server, call, self.target.uri(), &mut start);
        Box::new(Round {
            server: server.clone(),
            flow: None,
            live: None,
            parks: None,
            stage: Stage::Attached(Box::new(attached.with(wishes(call)))),
            binding: self.binding,
            kind: call.kind,
            version: "".into(),
            output: None,
            number: start.round(),
            progress_token: call.meta.progress_token.map(ToOwned::to_owned),
            single_use: None,
            timer: None,
            seed: None,
            stats: Stats::default(),
            handed_on: false,
            tally: None,
            span,
            place: Some(self.place),
        })
    }
}
