//! Errors of requests for calls that are not held here.

use crate::relay::{Holder, RelayError};
use refrain_wire::RpcError;

/// The error when the holder does not answer.
pub(crate) fn unreachable(holder: &Holder, error: &RelayError) -> RpcError {
    tracing::warn!(%holder, %error, "relay failed");
    let known = match error.is_gone() {
        true => "nothing was done by this request",
        false => "whether it took this request in is not known",
    };
    let what = match error {
        RelayError::OtherInstance(_) | RelayError::Unexpected(_) => "does not take it",
        _ => "does not answer: it may have stopped",
    };
    RpcError::internal(format!(
        "this call is held by another instance, which {what}. What the call did before it \
         asked is done; {known}. Send the request again in a moment, or call anew. Tools whose work is wrapped in steps do \
         not depend on one instance"
    ))
}

/// The error when the holder advertises no URL, or the request was relayed already.
pub(crate) fn elsewhere() -> RpcError {
    RpcError::internal(
        "this call is held by another instance, or by this one before it was restarted, and cannot be relayed to it. Nothing was \
         done by this request. Send it to the instance where the call began, or call anew. The operator of the server: start every \
         instance with --advertise URL (ServerBuilder::advertise), or wrap the tool's work in steps and drop `live`",
    )
}

/// The error when the call was held here, or its holder was restarted.
pub(crate) fn gone() -> RpcError {
    RpcError::call_over(
        "this call is not held any more: it may have been finished, it was given up after its time, or the instance was \
         restarted. Nothing was done by this request, but what the call did so far is done, and that may be all of it: look \
         before you call anew. Tools whose work is wrapped in steps do not depend on one instance",
    )
}
