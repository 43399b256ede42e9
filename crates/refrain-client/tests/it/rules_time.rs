//! Protocol rules for timeouts.

use crate::support::{FakeServer, until, within};
use refrain_client::{Client, ClientLimits, ErrorKind};
use refrain_testkit::net::Events;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(2);

/// The messages that the server sends on every stream.
#[derive(Clone, Copy)]
enum Traffic {
    Nothing,
    /// Endless progress.
    Progress,
    /// Comments for twice the silence limit, and then the result.
    Comments,
}

/// A server with endless streams, and the number of streams that the client closed.
async fn endless(traffic: Traffic) -> (String, Arc<AtomicUsize>) {
    let closed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&closed);
    let server = FakeServer::start(move |request| {
        let result = json!({"resultType": "complete", "content": [], "tools": []});
        let (response, count) = (request.result(&result), Arc::clone(&count));
        let (events, stream) = Events::new();
        tokio::spawn(async move {
            tokio::select! {
                () = write(traffic, &events, &response) => {}
                () = events.closed() => { count.fetch_add(1, Ordering::SeqCst); }
            }
        });
        stream
    })
    .await;
    (server.url, closed)
}

async fn write(traffic: Traffic, events: &Events, response: &Value) {
    let start = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        match traffic {
            Traffic::Nothing => std::future::pending().await,
            Traffic::Progress => {
                let method = "notifications/progress";
                let params = json!({"progress": 1});
                events.message(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
            }
            Traffic::Comments if start.elapsed() < 2 * SHORT => events.event(": keep-alive"),
            Traffic::Comments => events.message(response),
        }
    }
}

async fn connect(url: &str, limits: ClientLimits) -> Client {
    let client = Client::builder().limits(limits).connect(url).await;
    client.expect("a connection")
}

#[tokio::test]
async fn progress_does_not_extend_the_deadline() {
    let (url, closed) = endless(Traffic::Progress).await;
    let limits = ClientLimits {
        deadline: Some(SHORT),
        silence: LONG,
        ..ClientLimits::default()
    };
    let client = connect(&url, limits).await;
    let list = within("the list", client.tools()).await.unwrap_err();
    let call = within("the call", client.call_tool("t", json!({}))).await;
    let task = within("the task", client.task("t1")).await.unwrap_err();
    for error in [list, call.unwrap_err(), task] {
        assert_matches!(error.kind, ErrorKind::DeadlineExceeded(_));
    }
    until("all three streams are closed", || {
        closed.load(Ordering::SeqCst) == 3
    })
    .await;
}

#[tokio::test]
async fn silent_server_times_out_and_its_stream_is_closed() {
    let (url, closed) = endless(Traffic::Nothing).await;
    let limits = ClientLimits {
        deadline: None,
        silence: SHORT,
        ..ClientLimits::default()
    };
    let client = connect(&url, limits).await;
    let list = within("the list", client.tools()).await.unwrap_err();
    let call = within("the call", client.call_tool("t", json!({}))).await;
    for error in [list, call.unwrap_err()] {
        assert_matches!(error.kind, ErrorKind::Timeout(_));
    }
    until("both streams are closed", || {
        closed.load(Ordering::SeqCst) == 2
    })
    .await;
}

#[tokio::test]
async fn comments_keep_a_stream_alive() {
    let (url, _) = endless(Traffic::Comments).await;
    let limits = ClientLimits {
        silence: SHORT,
        ..ClientLimits::default()
    };
    let client = connect(&url, limits).await;
    let call = within("the call", client.call_tool("t", json!({}))).await;
    call.unwrap();
}
