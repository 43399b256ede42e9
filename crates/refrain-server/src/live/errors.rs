//! Errors for requests whose live call is not parked on this instance.

use crate::relay::{RelayDestination, RelayError};
use refrain_core::limited_event;
use refrain_wire::RpcError;

/// The error when the instance that must run a request does not respond, or rejects the relayed request.
pub(crate) fn receiver_unreachable(receiver: &RelayDestination, error: &RelayError) -> RpcError {
    limited_event!(WARN, %receiver, %error, "relay failed");
    let effect = match error.is_gone() {
        true => "this request had no effect",
        false => "it is unknown whether this request had an effect",
    };
    let failure = match error {
        RelayError::OtherInstance(_) | RelayError::Unexpected(_) => "rejected the relayed request",
        _ => "does not respond and may have stopped",
    };
    RpcError::internal(format!(
        "another instance holds this call and {failure}. The call's effects so far remain; {effect}. Retry the request in a \
         moment, or start a new call. Tools whose work is wrapped in steps do not depend on one instance"
    ))
}

/// The error when the holder advertises no URL, or when the request was already relayed.
pub(crate) fn held_elsewhere() -> RpcError {
    RpcError::internal(
        "another instance, or this one before a restart, holds this call, and the request cannot be relayed. This request \
         had no effect. Send it to the instance where the call started, or start a new call. For the server's operator: start \
         every instance with --advertise URL (ServerBuilder::advertise), or wrap the tool's work in steps and remove `live`",
    )
}

/// The error when the holder no longer has the call in memory.
pub(crate) fn call_gone() -> RpcError {
    RpcError::call_over(
        "this call is no longer in memory: it finished, timed out, or its instance was restarted. This request had no effect, \
         but the call's effects so far remain and may be complete: check them before you start a new call. Tools whose work is \
         wrapped in steps do not depend on one instance",
    )
}
