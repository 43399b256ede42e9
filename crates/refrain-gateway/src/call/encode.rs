//! Results of backends, encoded for the caller.
//!
//! Large results are encoded one at a time, so that they occupy at most one core of the gateway.

use refrain::runtime::core::Outcome;
use refrain::runtime::server::{IntoReply, ReadCall, ReplyTo, ToolCall};
use refrain::runtime::wire::CallKind;
use refrain::server::RawResult;
use refrain::{Error, Result};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

/// The size of a large result, in bytes. Encoding it takes about a millisecond.
pub(super) const LARGE: usize = 256 * 1024;

/// The size from which a result is encoded on a blocking thread. Encoding a deeply nested one takes a few milliseconds.
const BLOCKING: usize = 32 * 1024;

/// The permit to encode a large result.
pub(super) static ENCODING: Semaphore = Semaphore::const_new(1);

/// Encodes or decodes a result of this many bytes. From [`BLOCKING`] bytes on, `work` runs on a blocking thread, from
/// [`LARGE`] bytes on with the permit.
///
/// A separate task waits for the permit. The permit would otherwise be assigned to a call that is not polled, and no other
/// result could be encoded.
async fn convert<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if bytes < BLOCKING {
        return work();
    }
    // Aborts the task if the call is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let permit = match bytes < LARGE {
            true => None,
            false => ENCODING.acquire().await.ok(),
        };
        let converting = spawn_blocking(move || {
            let converted = work();
            drop(permit);
            converted
        });
        converting.await.map_err(Error::internal)?
    });
    let converted = tasks.join_next().await.expect("the set has one task");
    converted.map_err(Error::internal)?
}

/// The size of a value as JSON in bytes, about, at most [`LARGE`].
fn size(value: &Value) -> usize {
    let mut left = LARGE;
    has_size(value, &mut left);
    LARGE - left
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

/// Encodes a result as the value of a step, which can then be written and read without the permit.
pub(super) async fn to_json(result: Value) -> Result<Box<RawValue>> {
    let bytes = size(&result);
    convert(bytes, move || {
        to_raw_value(&result).map_err(Error::internal)
    })
    .await
}

/// The result of a backend.
pub(super) enum BackendResult {
    Parsed(Value),
    Json(Box<RawValue>),
}

impl BackendResult {
    /// Encodes the result for the caller.
    pub(super) async fn encode(self, backend: &str, kind: CallKind) -> Result<Outcome> {
        let bytes = match &self {
            Self::Parsed(result) => size(result),
            Self::Json(json) => json.get().len(),
        };
        let backend = backend.to_owned();
        let encode = move || {
            let result = match self {
                Self::Parsed(result) => result,
                Self::Json(json) => serde_json::from_str(json.get())?,
            };
            let Value::Object(members) = result else {
                return Err(Error::msg(format!(
                    "backend {backend} returned an invalid result: expected an object"
                )));
            };
            let (result, to) = (RawResult(members), ReplyTo::default());
            match kind {
                CallKind::Resource => IntoReply::<ReadCall>::into_reply(result, &to),
                CallKind::Tool | CallKind::Prompt => IntoReply::<ToolCall>::into_reply(result, &to),
            }
        };
        convert(bytes, encode).await
    }
}
