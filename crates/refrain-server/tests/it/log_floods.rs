//! Log events that callers cause are limited.

use crate::support::watch::{LoggedEvent, watch};
use crate::support::{Request, echo, start};
use refrain_server::{Server, Tool};
use serde_json::json;
use tracing::level_filters::LevelFilter;

const REQUESTS: usize = 1000;

/// All servers of the process share the limit, so the event must be one that no other test expects.
#[tokio::test]
async fn log_events_of_rejected_requests_are_limited() {
    let (recorder, _guard) = watch(LevelFilter::INFO);
    let builder = Server::builder("floods", "1").tool(Tool::new("echo", echo));
    let instance = start(builder).await;
    let request = Request::tool("echo", json!({})).header("Refrain-Relay", "nonsense");
    let mut connection = instance.connect().await;
    for _ in 0..REQUESTS {
        connection.exchange(&request).await.error(403, -32600);
    }
    let events = recorder.take().events;
    let is_rejection = |event: &&LoggedEvent| event.text == "relayed request rejected";
    let logged = events.iter().filter(is_rejection).count();
    // More than 100 only if the requests take more than ten seconds.
    assert!((1..=REQUESTS / 2).contains(&logged), "{logged}");
}
