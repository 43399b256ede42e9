//! Third stage of a round: the token is opened, or the holder of a live call is known.

use super::admitted::Admitted;
use super::attach::AttachedCall;
use super::start::OpenedFlow;
use super::{Rejection, Token};
use crate::live::{elsewhere, gone};
use crate::metrics::LiveCount;
use crate::relay::{Holder, PendingRelay};
use refrain_core::{OpenError, Sealer, Snapshot, Start};
use refrain_wire::RpcError;

/// A call whose token is opened.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one; boxing it costs an allocation per request"
)]
pub(super) enum Opened<'a> {
    /// The flow runs in this round.
    Flow(OpenedFlow<'a>),
    /// The flow is parked on this instance.
    Attached(AttachedCall<'a>),
    /// The flow is parked on another instance.
    Relay(Box<PendingRelay>),
}

impl<'a> Admitted<'a> {
    #[inline]
    pub(super) fn open(self) -> Result<Opened<'a>, Rejection> {
        match self.call.state.as_deref() {
            None => self.open_first(),
            Some(token) if Sealer::looks_live(token) => self.open_live(token),
            Some(token) => self.open_token(token),
        }
    }

    /// A first round, or a first request that is repeated by its call id.
    fn open_first(self) -> Result<Opened<'a>, Rejection> {
        let (rounds, call_id) = (self.rounds, self.call.meta.call_id.as_deref());
        let first = rounds.services.sealer.first(&self.binding, call_id);
        if call_id.is_some()
            && self.is_live()
            && let Some(attached) = rounds.live.again(first.flow())?
        {
            return Ok(Opened::Attached(self.attach(attached, first)));
        }
        let counts = self.target.counts();
        rounds
            .services
            .metrics
            .call(self.call.kind, counts.map(|c| &**c));
        let start = Start::first(first, self.call.answers.as_ref());
        Ok(Opened::Flow(OpenedFlow {
            admitted: self,
            start,
        }))
    }

    /// A later round whose journal is in the token.
    fn open_token(self, token: &str) -> Result<Opened<'a>, Rejection> {
        let sealer = &self.rounds.services.sealer;
        let opened = match self.token {
            Token::Sent => sealer.open(&self.binding, token),
            Token::Fetched => sealer.open_of_any_length(&self.binding, token),
        };
        let snapshot = opened.map_err(|reason| self.invalid_token(reason))?;
        let start = Start::resumed(snapshot, self.call.answers.as_ref())
            .map_err(|error| RpcError::invalid_params(error.to_string()))?;
        Ok(Opened::Flow(OpenedFlow {
            admitted: self,
            start,
        }))
    }

    /// A later round of a parked call.
    fn open_live(self, token: &str) -> Result<Opened<'a>, Rejection> {
        let rounds = self.rounds;
        let opened = rounds.services.sealer.open_live(&self.binding, token);
        let held = opened.map_err(|reason| self.invalid_token(reason))?;
        match Holder::parse(&held.holder) {
            Some(holder) if rounds.relay.is_own(&holder) => {}
            Some(holder) if rounds.relay.can_reach(&holder) => {
                return Ok(Opened::Relay(Box::new(PendingRelay {
                    _permit: Some(self.permit),
                    holder,
                    caller: self.caller,
                })));
            }
            // This instance before it was restarted.
            Some(holder) if holder.url.is_some() => {
                rounds.services.metrics.live(LiveCount::Gone);
                return Err(gone().into());
            }
            _ => {
                rounds.services.metrics.live(LiveCount::Elsewhere);
                return Err(elsewhere().into());
            }
        }
        let answers = self.call.answers.as_ref();
        let attached = rounds.live.attach(held.flow, held.round, answers)?;
        let at = Snapshot::first(held.flow, held.deadline).at_round(held.round);
        Ok(Opened::Attached(self.attach(attached, at)))
    }

    /// Counts a token that does not open. The client gets the same error for every reason.
    fn invalid_token(&self, reason: OpenError) -> RpcError {
        let target = self.target.counts().map_or("", |counts| &*counts.name);
        tracing::warn!(%reason, target, "a token was refused");
        self.rounds.services.metrics.token_refused(reason);
        RpcError::invalid_params(
            "requestState is not valid for this request; send the call again without requestState",
        )
    }
}
