//! What the tests share: a served instance, a client that sends what it is told, and a few handlers.

mod client;
mod handlers;
pub(crate) mod issuer;
pub(crate) mod legacy;
mod request;
mod scrape;
pub(crate) mod tasks;
pub(crate) mod watch;

pub(crate) use client::{Connection, Response};
pub(crate) use handlers::{Guard, Login, Signals, Word, echo, greet, polled_again, signals};
pub(crate) use request::{CAPABILITIES, CLIENT_INFO, LOG_LEVEL, Request, VERSION};
pub(crate) use scrape::{MetricsPort, Scrape};

use refrain_core::{Source, SystemSource};
use refrain_server::{AllowedHosts, Server, ServerBuilder, serve};
use serde_json::Value;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here takes, and short enough to wait for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits, but not for ever.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// An instance that is being served.
pub(crate) struct Instance {
    pub(crate) address: SocketAddr,
    pub(crate) server: Server,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<()>>,
}

/// Serves what is built, for this machine only.
pub(crate) async fn start(builder: ServerBuilder) -> Instance {
    start_for(builder, AllowedHosts::local()).await
}

/// Serves what is built, for these hosts.
pub(crate) async fn start_for(builder: ServerBuilder, hosts: AllowedHosts) -> Instance {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    start_on(listener, builder, hosts)
}

/// Serves what is built, and advertises the URL of its endpoint. It needs keys.
pub(crate) async fn start_advertised(builder: ServerBuilder) -> Instance {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = url_of(&listener);
    start_on(listener, builder.advertise(url), AllowedHosts::local())
}

/// The URL of the endpoint at this port.
pub(crate) fn url_of(listener: &TcpListener) -> String {
    format!("http://{}/mcp", listener.local_addr().expect("an address"))
}

/// Serves what is built at a place that was chosen before.
pub(crate) fn start_on(
    listener: TcpListener,
    builder: ServerBuilder,
    hosts: AllowedHosts,
) -> Instance {
    let server = builder.build().expect("a usable server");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel();
    let shutdown = async move {
        // Dropped or sent: either way it is time to stop.
        let _ = stopped.await;
    };
    let serving = tokio::spawn(serve(listener, server.clone(), hosts, shutdown));
    Instance {
        address,
        server,
        stop: Some(stop),
        serving,
    }
}

impl Instance {
    /// Sends one request on a connection of its own.
    pub(crate) async fn send(&self, request: &Request) -> Response {
        let mut connection = self.connect().await;
        connection.exchange(request).await
    }

    /// Sends bytes as they are, on a connection of their own.
    pub(crate) async fn send_bytes(&self, bytes: &[u8]) -> Response {
        let mut connection = self.connect().await;
        connection.write(bytes).await;
        connection.response().await
    }

    /// Gets a path.
    pub(crate) async fn get(&self, path: &str) -> Response {
        let host = self.address;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        self.send_bytes(request.as_bytes()).await
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(self.address).await
    }

    /// Tells the instance to stop.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    /// Has it stopped?
    pub(crate) fn has_stopped(&self) -> bool {
        self.serving.is_finished()
    }

    /// Waits until it has stopped.
    pub(crate) async fn stopped(self) {
        let ended = within("the instance to stop", self.serving).await;
        ended
            .expect("serving does not panic")
            .expect("no I/O error");
    }

    /// Has it stop, and waits until it has.
    pub(crate) async fn stopped_now(mut self) {
        self.stop();
        self.stopped().await;
    }

    /// Waits until no call is running any more.
    pub(crate) async fn at_rest(&self) {
        let rest = async {
            while self.server.running() > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within("the calls to end", rest).await;
    }
}

/// A clock that stands still until it is put forward.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_800_000_000)))
    }

    pub(crate) fn forward(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Source for Clock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn fill(&self, bytes: &mut [u8]) {
        SystemSource::new().fill(bytes);
    }
}

/// The result of a reply that has one.
#[track_caller]
pub(crate) fn result(reply: &Value) -> &Value {
    reply
        .get("result")
        .unwrap_or_else(|| panic!("no result in {reply}"))
}

/// The first text of a tool's finished result.
#[track_caller]
pub(crate) fn text(reply: &Value) -> &str {
    let result = result(reply);
    assert_eq!(result["resultType"], "complete", "{reply}");
    result["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {reply}"))
}

/// The token of a round that is not the last.
#[track_caller]
pub(crate) fn token(reply: &Value) -> String {
    let result = result(reply);
    assert_eq!(result["resultType"], "input_required", "{reply}");
    let token = result["requestState"].as_str();
    token
        .unwrap_or_else(|| panic!("no requestState in {reply}"))
        .to_owned()
}

/// The names of what a round asks, sorted.
#[track_caller]
pub(crate) fn asked(reply: &Value) -> Vec<&str> {
    let requests = result(reply)["inputRequests"].as_object();
    let requests = requests.unwrap_or_else(|| panic!("nothing is asked in {reply}"));
    let mut names: Vec<&str> = requests.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Has the message all these words in it?
#[track_caller]
pub(crate) fn names(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}
