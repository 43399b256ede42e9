//! Log events that callers cause are limited.

use crate::support::watch::watch;
use crate::support::{Request, Word, start, token};
use refrain_core::{Cx, Error, Result};
use refrain_server::{Server, Tool};
use serde_json::json;
use tracing::level_filters::LevelFilter;

const REQUESTS: usize = 100;

async fn fail(_: Cx, _: Word) -> Result<String> {
    Err(Error::internal("broken"))
}

#[tokio::test]
async fn log_events_that_callers_cause_are_limited() {
    let (recorder, _guard) = watch(LevelFilter::INFO);
    let builder = Server::builder("floods", "1")
        .tool(Tool::new("greet", crate::support::greet))
        .tool(Tool::new("fail", fail));
    let instance = start(builder).await;
    let greet = || Request::tool("greet", json!({}));
    let good = token(&instance.send(&greet()).await.reply());
    recorder.take();
    for (request, event) in [
        (
            greet().header("Refrain-Relay", "nonsense"),
            "relayed request rejected",
        ),
        (greet().again(&good[1..], json!({})), "token rejected"),
        (
            Request::tool("fail", json!({"text": "x"})),
            "handler failed",
        ),
    ] {
        let mut connection = instance.connect().await;
        for _ in 0..REQUESTS {
            connection.exchange(&request).await;
        }
        let events = recorder.take().events;
        let logged = events.iter().filter(|logged| logged.text == event).count();
        // More than ten only if the requests take more than ten seconds.
        assert!((1..=REQUESTS / 2).contains(&logged), "{event}: {logged}");
    }
}
