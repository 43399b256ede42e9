//! Log events that callers cause are limited.

use crate::support::watch::{LoggedEvent, watch};
use crate::support::{Request, echo, start};
use refrain_core::{Cx, Result};
use refrain_server::{Changes, Resource, Server, Tool};
use serde_json::json;
use tracing::level_filters::LevelFilter;

const REQUESTS: usize = 1000;

async fn word(_: Cx) -> Result<&'static str> {
    Ok("word")
}

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

/// A gateway registers entries that another server chooses.
#[tokio::test]
async fn log_events_of_odd_entries_are_limited() {
    let (recorder, _guard) = watch(LevelFilter::INFO);
    let server = Server::builder("floods", "1").build().expect("a server");
    let changes = (0..REQUESTS).fold(Changes::new(), |changes, number| {
        let name = format!("odd {number} {}", "long".repeat(1000));
        changes
            .tool(Tool::new(&name, echo))
            .resource(Resource::new(&name, "invalid", word))
    });
    server.change(changes.skip_invalid()).expect("the change");
    let events = recorder.take().events;
    for fault in [
        "some clients reject this tool name",
        "invalid entry skipped",
    ] {
        let is_fault = |event: &&LoggedEvent| event.text.starts_with(fault);
        let logged: Vec<_> = events.iter().filter(is_fault).collect();
        assert!(
            (1..=REQUESTS / 2).contains(&logged.len()),
            "{}",
            logged.len()
        );
        let longest = logged.iter().flat_map(|event| event.fields.values());
        let longest = longest.map(String::len).max().unwrap_or_default();
        assert!(longest < 1000, "{longest}");
    }
}
