//! Errors of tasks that their handlers did not cause.

use refrain_core::Snapshot;
use refrain_wire::RpcError;
use std::time::Duration;

pub(super) fn too_old(ttl: Duration, open: &[&str], last: Option<&str>) -> RpcError {
    let mut message = format!("the task was not finished within its time to live of {ttl:?}");
    if !open.is_empty() {
        message.push_str("; it was waiting for answers to: ");
        message.push_str(&open.join(", "));
    }
    if let Some(last) = last {
        message.push_str("; the last attempt failed: ");
        message.push_str(last);
    }
    RpcError::internal(message)
}

pub(super) fn too_often(attempts: u32, last: Option<&str>) -> RpcError {
    let last = last.unwrap_or("its worker was lost");
    RpcError::internal(format!(
        "the task was tried {attempts} times and did not get on; the last time: {last}"
    ))
}

pub(super) fn too_large(snapshot: &Snapshot, size: usize, limit: usize) -> RpcError {
    let largest = snapshot
        .largest_part()
        .map_or_else(String::new, |(name, size)| {
            format!("; the largest entry is {name} with {size} bytes")
        });
    RpcError::internal(format!(
        "the journal of the task has {size} bytes and the limit is {limit}{largest}"
    ))
}
