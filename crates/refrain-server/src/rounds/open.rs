//! Third stage of a round: opens the token or determines the holder of a live call.

use super::admit::AdmittedCall;
use super::{Round, RoundRejection, TokenSource};
use crate::live::{call_gone, held_elsewhere};
use crate::metrics::LiveCallEvent;
use crate::relay::{Holder, PendingRelay, RelayDestination, RelayPurpose};
use refrain_core::{OpenError, Sealer, Snapshot, Start, limited_event};
use refrain_wire::{Capability, RpcError};
use std::sync::Arc;
use tracing::Span;

/// A call after its token was opened.
pub(super) enum OpenedCall {
    /// This instance runs the flow, or has parked it.
    Round(Box<Round>),
    /// Another instance holds the flow or must run it.
    Relay(Box<PendingRelay>),
}

impl AdmittedCall<'_> {
    #[inline]
    pub(super) fn open(self) -> Result<OpenedCall, RoundRejection> {
        let state = self.request.call.state.as_deref();
        // The token of a live call names its holder.
        if let Some(token) = state.filter(|token| Sealer::is_live_token(token)) {
            return self.open_live(token);
        }
        if let Some((to, purpose)) = self.relay_destination()? {
            return Ok(self.relay(to, purpose));
        }
        match state {
            None => self.open_first(),
            Some(token) => self.open_token(token),
        }
    }

    fn relay(self, to: RelayDestination, purpose: RelayPurpose) -> OpenedCall {
        OpenedCall::Relay(Box::new(PendingRelay {
            permit: Some(self.permit),
            to,
            purpose,
            caller: self.request.caller.clone(),
            span: Span::none(),
        }))
    }

    /// A first request, or its repetition under the same call id.
    fn open_first(self) -> Result<OpenedCall, RoundRejection> {
        let (rounds, call_id) = (self.rounds, self.request.call.meta.call_id.as_deref());
        let first = rounds.services.sealer.first(&self.binding, call_id);
        if call_id.is_some()
            && self.is_live()
            && let Some(attached) = rounds.live.attach_repeated(first.flow())?
        {
            return Ok(OpenedCall::Round(self.attach(attached, first)));
        }
        let counts = self.target.counts().map(Arc::as_ref);
        rounds.services.metrics.call(self.request.call.kind, counts);
        let start = Start::first(first, self.request.call.answers.as_ref());
        let round = self.run(match call_id {
            Some(_) => start,
            None => start.unrepeatable(),
        });
        round.map(OpenedCall::Round)
    }

    /// A later round with the journal in its token.
    fn open_token(self, token: &str) -> Result<OpenedCall, RoundRejection> {
        let sealer = &self.rounds.services.sealer;
        let opened = match self.request.token {
            TokenSource::Request => sealer.open(&self.binding, token),
            TokenSource::Store => sealer.open_any_length(&self.binding, token),
        };
        let snapshot = opened.map_err(|reason| self.invalid_token(reason))?;
        let start = Start::resumed(snapshot, self.request.call.answers.as_ref())
            .map_err(|error| RpcError::invalid_params(error.to_string()))?;
        self.run(start).map(OpenedCall::Round)
    }

    /// A later round of a parked call.
    fn open_live(self, token: &str) -> Result<OpenedCall, RoundRejection> {
        let rounds = self.rounds;
        let opened = rounds.services.sealer.open_live(&self.binding, token);
        let token = opened.map_err(|reason| self.invalid_token(reason))?;
        match Holder::parse(&token.holder) {
            Some(holder) if rounds.relay.is_own(&holder) => {}
            Some(holder) if rounds.relay.can_reach(&holder) => {
                return Ok(self.relay(holder.into(), RelayPurpose::Held));
            }
            // Only this instance's own URL is not reachable: an earlier process with the same URL held the call.
            Some(holder) if holder.url.is_some() => {
                rounds.services.metrics.live(LiveCallEvent::Gone);
                return Err(call_gone().into());
            }
            _ => {
                rounds.services.metrics.live(LiveCallEvent::Elsewhere);
                return Err(held_elsewhere().into());
            }
        }
        let answers = self.request.call.answers.as_ref();
        let can_be_task = self.request.call.meta.capabilities.has(Capability::Tasks);
        let (flow, round) = (token.flow, token.round);
        let attached = rounds.live.attach(flow, round, answers, can_be_task)?;
        let snapshot = Snapshot::first(flow, token.deadline).at_round(round);
        Ok(OpenedCall::Round(self.attach(attached, snapshot)))
    }

    /// Logs and counts an invalid token. The client gets the same error for every reason.
    fn invalid_token(&self, reason: OpenError) -> RpcError {
        let target = self.target.counts().map_or("", |counts| &*counts.name);
        limited_event!(WARN, %reason, target, "token rejected");
        self.rounds.services.metrics.token_rejected(reason);
        RpcError::invalid_params(
            "requestState is not valid for this request; send the call again without requestState",
        )
    }
}
