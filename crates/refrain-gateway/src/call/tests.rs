//! Calls with large results.

use super::encode::{ENCODING, LARGE};
use crate::{BackendTable, Gateway, GatewayConfig};
use refrain::client::{Client, ClientLimits};
use refrain::runtime::core::{
    LogFuture, LogKey, MemoryReplayLog, Principal, RecordState, ReplayLog, Retention,
};
use refrain::server::ServerBuilder;
use refrain_testkit::net::instance::{Instance, start};
use refrain_testkit::net::wait::success;
use refrain_testkit::net::{FakeServer, Received, Respond, until};
use serde_json::json;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// The response of a server with two tools.
fn respond(request: &Received) -> Respond {
    let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
    let tools = ["large", "small"].map(tool);
    match (request.method(), request.tool()) {
        ("tools/list", _) => Respond::Result(json!({"resultType": "complete", "tools": tools})),
        (_, "large") => Respond::text(&"x".repeat(LARGE)),
        _ => Respond::text("small"),
    }
}

async fn start_gateway(
    backend: BackendTable,
    configure: impl FnOnce(ServerBuilder) -> ServerBuilder,
) -> (Arc<Gateway>, Instance, Client) {
    let config = GatewayConfig::single("tested", backend);
    let gateway = Gateway::new(config.check().expect("a valid configuration"));
    let builder = success("connecting", gateway.connect(true)).await;
    let instance = start(configure(builder)).await;
    gateway.start(&instance.server);
    let client = Client::builder().limits(ClientLimits {
        retries: 0,
        ..ClientLimits::default()
    });
    let client = success("connecting a client", client.connect(&instance.url())).await;
    (gateway, instance, client)
}

fn at(server: &FakeServer) -> BackendTable {
    BackendTable {
        url: Some(server.url.parse().expect("a URL")),
        ..BackendTable::default()
    }
}

#[tokio::test]
async fn call_returns_its_connection_before_its_result_is_encoded() {
    let server = FakeServer::legacy(|request, _| respond(request)).await;
    let backend = BackendTable {
        exclusive: true,
        connections: 1,
        queue_seconds: 3,
        ..at(&server)
    };
    let (gateway, _instance, client) = start_gateway(backend, |builder| builder).await;
    let encoding = ENCODING.acquire().await;
    let calling = client.clone();
    let large = tokio::spawn(async move { calling.call_tool("large", json!({})).await });
    until("the large call", || server.count("tools/call") == 1).await;
    success("the small call", client.call_tool("small", json!({}))).await;
    assert!(!large.is_finished());
    drop(encoding);
    let large = large.await.expect("it does not panic");
    assert!(!large.expect("a result").is_error);
    gateway.stop().await;
}

/// A replay log whose outcomes are written when there are permits.
struct SlowLog {
    log: MemoryReplayLog,
    writing: watch::Sender<bool>,
    permits: Semaphore,
}

impl ReplayLog for SlowLog {
    fn begin<'a>(
        &'a self,
        key: &'a LogKey,
        account: &'a Principal,
        retention: Retention,
    ) -> LogFuture<'a, RecordState> {
        self.log.begin(key, account, retention)
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.writing.send_replace(true);
            let _permit = self.permits.acquire().await;
            self.log.finish(key, value).await
        })
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        self.log.forget(key)
    }
}

#[tokio::test]
async fn slow_write_of_a_large_result_does_not_delay_other_large_results() {
    let server = FakeServer::start(respond).await;
    let log = Arc::new(SlowLog {
        log: MemoryReplayLog::new(),
        writing: watch::Sender::default(),
        permits: Semaphore::new(0),
    });
    let replay_log = log.clone();
    let with_log = |builder: ServerBuilder| builder.replay_log(replay_log);
    let (gateway, _instance, client) = start_gateway(at(&server), with_log).await;
    let large = tokio::spawn(async move { client.call_tool("large", json!({})).await });
    let mut writing = log.writing.subscribe();
    let writing = writing.wait_for(|writing| *writing);
    success("the write", writing).await;
    until("the permit", || ENCODING.available_permits() == 1).await;
    log.permits.add_permits(1);
    let large = large.await.expect("it does not panic");
    assert!(!large.expect("a result").is_error);
    gateway.stop().await;
}
