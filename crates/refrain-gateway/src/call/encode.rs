//! Results of backends, encoded for the caller.
//!
//! Large results are encoded one at a time, so that they occupy at most one core of the gateway.

use crate::backend::Backend;
use refrain::runtime::core::Outcome;
use refrain::runtime::server::{IntoReply, ReadCall, ReplyTo, ToolCall};
use refrain::runtime::wire::CallKind;
use refrain::server::RawResult;
use refrain::{Error, Result};
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The size of a large result, in bytes. Encoding it takes about a millisecond.
const LARGE: usize = 256 * 1024;

/// The size above which a result is encoded on a blocking thread. Encoding a deeply nested one takes a few milliseconds.
const BLOCKING: usize = 32 * 1024;

static ENCODING: Semaphore = Semaphore::const_new(1);

/// How long a result waits for the permit. A call can hold it for long while a slow store writes the value of its step.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The permit to encode a large result. `None`: the result is small, or waited too long.
pub(super) type EncodePermit = Option<SemaphorePermit<'static>>;

/// Waits for the permit to encode a result.
pub(super) async fn permit(result: &Value) -> EncodePermit {
    match has_size(result, &mut { LARGE }) {
        true => timeout(MAX_WAIT, ENCODING.acquire()).await.ok()?.ok(),
        false => None,
    }
}

/// Whether a value has about this many bytes as JSON, or more. Subtracts its bytes.
fn has_size(value: &Value, left: &mut usize) -> bool {
    let own = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.len(),
        Value::Object(members) => members.keys().map(|name| name.len() + 4).sum(),
        _ => 1,
    };
    *left = left.saturating_sub(own);
    *left == 0
        || match value {
            Value::Array(items) => items.iter().any(|item| has_size(item, left)),
            Value::Object(members) => members.values().any(|member| has_size(member, left)),
            _ => false,
        }
}

/// The result object of a backend.
pub(super) struct BackendResult {
    members: Map<String, Value>,
    permit: EncodePermit,
}

impl BackendResult {
    pub(super) fn new(backend: &Backend, result: Value, permit: EncodePermit) -> Result<Self> {
        match result {
            Value::Object(members) => Ok(Self { members, permit }),
            _ => Err(Error::msg(format!(
                "backend {} returned an invalid result: expected an object",
                backend.spec.name
            ))),
        }
    }

    pub(super) async fn encode(self, kind: CallKind) -> Result<Outcome> {
        let Self { members, permit } = self;
        let mut left = BLOCKING;
        let is_blocking =
            permit.is_some() || members.values().any(|value| has_size(value, &mut left));
        let encode = move || {
            let (result, to) = (RawResult(members), ReplyTo::default());
            let outcome = match kind {
                CallKind::Resource => IntoReply::<ReadCall>::into_reply(result, &to),
                CallKind::Tool | CallKind::Prompt => IntoReply::<ToolCall>::into_reply(result, &to),
            };
            drop(permit);
            outcome
        };
        match is_blocking {
            true => spawn_blocking(encode).await.map_err(Error::internal)?,
            false => encode(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn large_results_are_encoded_one_at_a_time_unless_one_takes_too_long() {
        let texts = json!({"content": vec!["x".repeat(1024); 256]});
        let values = json!({"structuredContent": vec![0; LARGE]});
        let names = json!({"x".repeat(LARGE): 0});
        for large in [&texts, &values, &names] {
            let held = permit(large).await;
            assert!(held.is_some() && ENCODING.available_permits() == 0);
            // Waits for the permit, which is held, until its time is over.
            assert!(permit(large).await.is_none());
        }
        for small in [json!({}), json!({"content": ["x".repeat(LARGE - 100)]})] {
            assert!(permit(&small).await.is_none());
        }
        assert_eq!(ENCODING.available_permits(), 1);
    }
}
