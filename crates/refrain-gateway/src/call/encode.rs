//! Results of backends, encoded for the caller.
//!
//! Large results are encoded one at a time, so that they occupy at most one core of the gateway.

use refrain::runtime::core::Outcome;
use refrain::runtime::server::{IntoReply, ReadCall, ReplyTo, ToolCall};
use refrain::runtime::wire::CallKind;
use refrain::server::RawResult;
use refrain::{Error, Result};
use refrain_http::run_blocking;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Semaphore;

/// The size of a large result, in bytes. Encoding one usually takes about a millisecond.
pub(super) const LARGE: usize = 256 * 1024;

/// The size from which a result is encoded on a blocking thread: a deeply nested one may take a few milliseconds.
const BLOCKING: usize = 32 * 1024;

/// The permit to encode or decode a large result.
pub(super) static ENCODING: Semaphore = Semaphore::const_new(1);

/// Encodes or decodes a result of this many bytes. From [`BLOCKING`] bytes on, `work` runs on a blocking thread, from
/// [`LARGE`] bytes on with the permit.
async fn convert<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if bytes < BLOCKING {
        return work();
    }
    let permit = async move {
        match bytes < LARGE {
            true => None,
            false => ENCODING.acquire().await.ok(),
        }
    };
    run_blocking(permit, work).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;
    use serde_json::json;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Poll;
    use std::thread;
    use std::time::Duration;
    use tokio::runtime::Builder;
    use tokio::task::{JoinSet, spawn_blocking, yield_now};

    /// A result of almost this many bytes.
    fn result(bytes: usize) -> Value {
        json!({"content": ["x".repeat(bytes - 100)]})
    }

    async fn encode(result: BackendResult) -> bool {
        let encoded = result.encode("tested", CallKind::Tool).await;
        matches!(encoded, Ok(Outcome::Complete(_)))
    }

    /// Runs a test on a runtime whose blocking operations run one after the other.
    fn with_one_blocking_thread(test: impl Future<Output = ()>) {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build();
        runtime.expect("a runtime").block_on(test);
    }

    /// Runs the other tasks until they wait.
    async fn run_tasks() {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn large_results_are_converted_one_at_a_time() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let overlaps = || {
            let running = RUNNING.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2));
            RUNNING.fetch_sub(1, Ordering::SeqCst);
            Ok(running > 0)
        };
        let converting: JoinSet<_> = (0..8).map(|_| convert(LARGE, overlaps)).collect();
        for overlaps in converting.join_all().await {
            assert!(!overlaps.expect("a value"));
        }
    }

    #[test]
    fn large_results_wait_for_the_permit() {
        with_one_blocking_thread(async {
            let texts = json!({"content": vec!["x".repeat(1024); 256]});
            let values = json!({"structuredContent": vec![0; LARGE]});
            let names = json!({"x".repeat(LARGE): 0});
            let json = to_raw_value(&texts).expect("JSON");
            let held = ENCODING.acquire().await;
            let large = [texts.clone(), values, names].map(BackendResult::Parsed);
            let large = large.into_iter().chain([BackendResult::Json(json)]);
            let mut large: JoinSet<bool> = large.map(encode).collect();
            large.spawn(async { to_json(texts).await.is_ok() });
            run_tasks().await;
            // The blocking thread would encode the large results first if they did not wait.
            assert!(encode(BackendResult::Parsed(result(LARGE))).await);
            run_tasks().await;
            assert!(large.try_join_next().is_none());
            drop(held);
            assert_eq!(large.join_all().await, [true; 5]);
        });
    }

    #[test]
    fn only_results_from_the_threshold_are_encoded_on_a_blocking_thread() {
        with_one_blocking_thread(async {
            let (release, released) = mpsc::channel::<()>();
            spawn_blocking(move || released.recv());
            let mut small = pin!(encode(BackendResult::Parsed(result(BLOCKING))));
            assert_eq!(poll!(&mut small), Poll::Ready(true));
            let above = BackendResult::Parsed(result(BLOCKING + 100));
            let above = tokio::spawn(encode(above));
            run_tasks().await;
            assert!(!above.is_finished());
            drop(release);
            assert!(above.await.expect("it does not panic"));
        });
    }

    #[tokio::test]
    async fn result_that_is_no_object_is_invalid() {
        let list = BackendResult::Parsed(json!([]));
        let invalid = list.encode("tested", CallKind::Tool).await;
        let why = invalid.expect_err("a list").to_string();
        assert_eq!(
            why,
            "backend tested returned an invalid result: expected an object"
        );
    }
}
