//! Errors of tasks that their handlers did not cause.

use refrain_core::Snapshot;
use refrain_wire::RpcError;
use serde_json::json;
use std::time::Duration;

pub(super) fn expired(ttl: Duration, open: &[&str], last_error: Option<&str>) -> RpcError {
    let mut message = format!("the task did not finish within its time to live of {ttl:?}");
    if !open.is_empty() {
        message.push_str("; unanswered asks: ");
        message.push_str(&open.join(", "));
    }
    if let Some(error) = last_error {
        message.push_str("; the last attempt failed: ");
        message.push_str(error);
    }
    RpcError::internal(message)
}

/// The error of a task whose handler was in the memory of an instance that is gone.
pub(super) fn outcome_unknown() -> RpcError {
    RpcError::internal(
        "outcome unknown: the instance that ran this call was lost; its effects may have happened; it was not repeated",
    )
    .with_data(&json!({"outcomeUnknown": true}))
}

/// The error of a live tool in the explicit style, whose handler would have to run again.
pub(super) fn incomplete_live() -> RpcError {
    RpcError::internal(
        "the handler of a live tool returned Incomplete in a task: await the ask instead, or remove `live`",
    )
}

pub(super) fn too_many_attempts(attempts: u32, last_error: Option<&str>) -> RpcError {
    let error = last_error.unwrap_or("its worker stopped responding");
    let plural = if attempts == 1 { "" } else { "s" };
    RpcError::internal(format!(
        "the task made no progress in {attempts} attempt{plural}; the last attempt failed: {error}"
    ))
}

pub(super) fn journal_too_large(snapshot: &Snapshot, size: usize, limit: usize) -> RpcError {
    let largest = snapshot
        .largest_part()
        .map_or_else(String::new, |(name, size)| {
            format!("; the largest entry is {name} with {size} bytes")
        });
    RpcError::internal(format!(
        "the task's journal has {size} bytes, but the limit is {limit}{largest}"
    ))
}
