//! A server cannot ask outside of a call: only a call has a `Cx`.

use refrain::{Cx, ask::SamplingParams, server::Server};
use std::time::Duration;

async fn background_task(server: Server) {
    loop {
        tokio::time::sleep(Duration::from_secs(60)).await;
        server.sample("idea", SamplingParams::new(100).user("Any news?")).await;
        server.elicit("name", "Who are you?").await;
        let cx: Cx = Default::default();
    }
}

fn main() {}
