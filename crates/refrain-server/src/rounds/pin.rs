//! Pinned calls: the caller or a handle in the arguments determines the instance that must run them.

use super::admit::{AdmittedCall, invalid_arguments};
use super::{Home, RoundRejection};
use crate::catalog::Pin;
use crate::handles::HandleError;
use crate::relay::{RelayDestination, RelayPurpose};
use refrain_wire::{Reply, ToolResult};
use serde_json::Value;

/// The result of a tool whose state is lost with its instance.
pub(crate) fn state_lost() -> Reply {
    Reply::of_tool(ToolResult::error(HandleError::Lost.to_string()))
}

impl AdmittedCall<'_> {
    /// The other instance that must run the call. `None`: this instance may run it.
    #[inline]
    pub(super) fn relay_destination(
        &self,
    ) -> Result<Option<(RelayDestination, RelayPurpose)>, RoundRejection> {
        let (rounds, principal) = (self.rounds, &self.request.caller.principal);
        // Calls of a legacy session stay on the instance that holds the session.
        let can_relay = self.request.can_relay && matches!(self.request.home, Home::Client);
        match &self.target.entry().pin {
            None => Ok(None),
            Some(Pin::Caller) if !can_relay => Ok(None),
            Some(Pin::Caller) => {
                // The peers that rank before this instance for the caller. The first gets the call, the others if it fails.
                let mut peers = rounds.relay.peers_before_own(principal).into_iter();
                let first = peers.next().map(RelayDestination::Peer);
                Ok(first.map(|first| (first, RelayPurpose::Caller(peers.collect()))))
            }
            Some(Pin::Handle(argument)) => {
                let handle = self.arguments.get(argument).and_then(Value::as_str);
                let Some(handle) = handle else {
                    return Ok(None);
                };
                let opened = rounds.services.open_handle(principal, handle);
                let opened = opened.map_err(|error| self.invalid_handle(argument, &error))?;
                let holder = opened.holder;
                if rounds.relay.is_own(&holder) {
                    return Ok(None);
                }
                if can_relay && rounds.relay.can_reach(&holder) {
                    return Ok(Some((holder.into(), RelayPurpose::Handle)));
                }
                Err(RoundRejection::Reply(state_lost()))
            }
        }
    }

    fn invalid_handle(&self, argument: &str, error: &HandleError) -> RoundRejection {
        let reason = format!("{argument}: {error}");
        let result = ToolResult::error(invalid_arguments(&self.request.call.target, reason));
        RoundRejection::Reply(Reply::of_tool(result))
    }
}
