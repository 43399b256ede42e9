//! A legacy client and three processes without sticky balancing: each request goes to another process.
//!
//! The processes are this test binary with [`ADDRESS`] set, so that they have tools that log, ask and change a resource.

use crate::relay::free_addresses;
use crate::support::{Files, Process, within};
use refrain::server::{AllowedHosts, KeyRing, Resource, Server, ServerLimits, Tool, serve};
use refrain::{Cx, Elicit, Result, State};
use refrain_testkit::net::legacy::initialize;
use refrain_testkit::net::{Connection, Request, Response, http};
use refrain_wire::LogLevel;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

const ADDRESS: &str = "LEGACY_FLEET_ADDRESS";
const KEYS: &str = "LEGACY_FLEET_KEYS";
const LISTENING: &str = "the instance listens";
const NOTE: &str = "notes://today";

#[derive(Debug, Deserialize, Elicit)]
struct Login {
    name: String,
}

async fn greet(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(format!("Hello, {}!", login.name))
}

async fn logs(cx: Cx) -> Result<String> {
    cx.log(LogLevel::Info, "news");
    Ok("logged".into())
}

async fn touch(_: Cx, server: State<Server>) -> Result<String> {
    server.resource_updated(NOTE);
    Ok("touched".into())
}

async fn note(_: Cx) -> Result<String> {
    Ok("a note".into())
}

/// Runs an instance if this process was started as one. Otherwise it tests nothing.
#[tokio::test]
async fn instance() {
    let (Ok(address), Ok(keys)) = (std::env::var(ADDRESS), std::env::var(KEYS)) else {
        return;
    };
    let keys = std::fs::read_to_string(keys).expect("the keys are readable");
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        drain_time: Duration::from_secs(5),
        ..ServerLimits::default()
    };
    let server = Server::builder("fleet", "1")
        .keys(keys.parse::<KeyRing>().expect("keys"))
        .limits(limits)
        .advertise(format!("http://{address}/mcp"))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("logs", logs))
        .tool(Tool::new("touch", touch))
        .resource(Resource::new(NOTE, "today", note));
    let server = server.build().expect("the server is valid");
    let listener = TcpListener::bind(&address).await.expect("the port");
    eprintln!("{LISTENING}");
    let mut stop = signal(SignalKind::terminate()).expect("a signal handler");
    let stop = async move {
        let _ = stop.recv().await;
    };
    let served = serve(listener, server, AllowedHosts::local(), stop).await;
    served.expect("serving succeeds");
}

/// A process of the fleet.
struct Member {
    process: Process,
    address: SocketAddr,
}

impl Member {
    async fn start(keys: &Path, address: SocketAddr) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", "legacy_fleet::instance", "--nocapture"])
            .env(ADDRESS, address.to_string())
            .env(KEYS, keys);
        Self {
            process: Process::start(command, LISTENING, None).await.0,
            address,
        }
    }
}

/// Three processes that share their keys, and a session whose holder is the first.
struct Fleet {
    _files: Files,
    keys: PathBuf,
    processes: Vec<Member>,
    turn: AtomicUsize,
    session: String,
}

impl Fleet {
    async fn new() -> Self {
        let files = Files::new();
        let keys = files.keys("fleet.keys");
        let mut fleet = Self {
            _files: files,
            keys: keys.clone(),
            processes: Vec::new(),
            turn: AtomicUsize::new(0),
            session: String::new(),
        };
        for address in free_addresses::<3>() {
            fleet.processes.push(Member::start(&keys, address).await);
        }
        let hello = initialize("2025-11-25", &json!({"elicitation": {}}));
        let opened = fleet.post(&hello).await;
        let session = opened.header("mcp-session-id");
        fleet.session = session.expect("a session").to_owned();
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(fleet.post(&ready).await.status, 202);
        fleet
    }

    /// The next running process.
    fn next(&self) -> SocketAddr {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.processes[turn % self.processes.len()].address
    }

    fn request(&self, verb: &'static str, last: Option<&str>, body: &str) -> Request {
        let mut request = Request::plain(verb, "/mcp", body)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if !self.session.is_empty() {
            request = request.header("mcp-session-id", &self.session);
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        request
    }

    async fn send(&self, request: &Request) -> Response {
        http::send(self.next(), request).await
    }

    async fn post(&self, message: &Value) -> Response {
        self.send(&self.request("POST", None, &message.to_string()))
            .await
    }

    /// The event stream of a response.
    async fn stream(&self, request: &Request) -> Events {
        let begun = within("a response", http::try_begin(self.next(), request)).await;
        let (connection, head) = begun.expect("a response");
        assert_eq!(head.status, 200);
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        Events {
            connection,
            last: String::new(),
        }
    }

    /// The status and the error of a response.
    async fn status(&self, message: &Value) -> (u16, String) {
        let response = self.post(message).await;
        (response.status, response.text())
    }

    /// The result of a request without an event stream.
    async fn result(&self, message: &Value) -> Value {
        let (status, body) = self.status(message).await;
        assert_eq!(status, 200, "{body}");
        let reply: Value = serde_json::from_str(&body).expect("valid JSON");
        reply["result"].clone()
    }

    /// Makes a call with an event stream.
    async fn call(&self, id: u32, tool: &str) -> Events {
        let call = request(id, "tools/call", &json!({"name": tool, "arguments": {}}));
        let request = self.request("POST", None, &call.to_string());
        self.stream(&request).await
    }

    async fn get(&self, last: Option<&str>) -> Events {
        self.stream(&self.request("GET", last, "")).await
    }

    /// Makes a call that asks, and returns the ask.
    async fn greet_until_ask(&self, id: u32) -> (Events, Value) {
        let mut events = self.call(id, "greet").await;
        let ask = events.next().await.expect("an ask");
        assert_eq!(ask["method"], "elicitation/create", "{ask}");
        (events, ask)
    }

    /// Restarts the process with this index.
    async fn restart(&mut self, at: usize) {
        let address = self.processes[at].address;
        self.processes[at] = Member::start(&self.keys, address).await;
    }
}

fn request(id: u32, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn answer(ask: &Value) -> Value {
    let result = json!({"action": "accept", "content": {"name": "Ann"}});
    json!({"jsonrpc": "2.0", "id": ask["id"], "result": result})
}

fn cancel(id: u32) -> Value {
    let params = json!({"requestId": id});
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
}

/// A stream of events.
struct Events {
    connection: Connection,
    /// The id of the last event.
    last: String,
}

impl Events {
    /// The next message, or none at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        loop {
            let event = within("more of the stream", self.connection.try_block()).await;
            let event = event.ok()??;
            let line = |name| event.lines().find_map(|line| line.strip_prefix(name));
            if let Some(last) = line("id: ") {
                self.last = last.to_owned();
            }
            let message = line("data: ").and_then(|data| serde_json::from_str(data).ok());
            if message.is_some() {
                return message;
            }
        }
    }

    /// The text of the reply.
    async fn text(&mut self) -> String {
        let reply = self.next().await.expect("the server replies");
        let text = reply["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text in {reply}"))
            .to_owned()
    }
}

#[tokio::test]
async fn every_request_goes_to_another_instance() {
    let fleet = Fleet::new().await;
    // Asks are answered.
    for id in 1..=3 {
        let (mut events, ask) = fleet.greet_until_ask(id).await;
        let (status, body) = fleet.status(&answer(&ask)).await;
        assert_eq!((status, body.as_str()), (202, ""));
        assert_eq!(events.text().await, "Hello, Ann!");
        assert_eq!(events.next().await, None);
    }
    // A call is cancelled.
    let (mut events, _) = fleet.greet_until_ask(4).await;
    assert_eq!(fleet.status(&cancel(4)).await.0, 202);
    assert_eq!(events.next().await, None);
    // Broken streams of a call and of the session are resumed.
    let (events, ask) = fleet.greet_until_ask(5).await;
    let last = events.last.clone();
    drop(events);
    assert_eq!(fleet.status(&answer(&ask)).await.0, 202);
    assert_eq!(fleet.get(Some(&last)).await.text().await, "Hello, Ann!");
    let mut news = fleet.get(None).await;
    let subscribe = request(6, "resources/subscribe", &json!({"uri": NOTE}));
    assert_eq!(fleet.result(&subscribe).await, json!({}));
    let touch = request(7, "tools/call", &json!({"name": "touch", "arguments": {}}));
    fleet.result(&touch).await;
    let notification = news.next().await.expect("a notification");
    assert_eq!(
        notification["params"],
        json!({"uri": NOTE}),
        "{notification}"
    );
    let last = news.last.clone();
    drop(news);
    fleet.result(&touch).await;
    let notification = fleet.get(Some(&last)).await.next().await;
    assert_eq!(
        notification.expect("a notification")["params"],
        json!({"uri": NOTE})
    );
    // Any instance can set the log level of the session.
    let mut logged = fleet.call(8, "logs").await;
    assert_eq!(
        logged.next().await.expect("a log")["params"]["data"],
        "news"
    );
    let set = request(9, "logging/setLevel", &json!({"level": "error"}));
    assert_eq!(fleet.result(&set).await, json!({}));
    let logs = request(10, "tools/call", &json!({"name": "logs", "arguments": {}}));
    for _ in 0..3 {
        let result = fleet.result(&logs).await;
        assert_eq!(result["content"][0]["text"], "logged");
    }
    // The session ends on all instances.
    assert_eq!(
        fleet.send(&fleet.request("DELETE", None, "")).await.status,
        204
    );
    for _ in 0..3 {
        assert_eq!(fleet.status(&logs).await.0, 404);
    }
}

#[tokio::test]
async fn killed_holder_is_reported_and_the_session_continues() {
    let mut fleet = Fleet::new().await;
    // The first call is relayed, since the first two requests went to the first two processes.
    let (mut events, ask) = fleet.greet_until_ask(1).await;
    let last = events.last.clone();
    let mut holder = fleet.processes.remove(0);
    holder.process.kill().await;
    let began = Instant::now();
    let reply = events.next().await.expect("the reply");
    assert_eq!(reply["id"], 1, "{reply}");
    let lost = |error: &str| assert!(error.contains("the call was lost"), "{error}");
    lost(&reply.to_string());
    let (status, error) = fleet.status(&answer(&ask)).await;
    assert_eq!(status, 400, "{error}");
    lost(&error);
    let (status, error) = fleet.status(&cancel(1)).await;
    assert_eq!(status, 400, "{error}");
    lost(&error);
    let reply = fleet
        .get(Some(&last))
        .await
        .next()
        .await
        .expect("the server replies");
    lost(&reply.to_string());
    assert!(began.elapsed() < Duration::from_secs(2), "{began:?}");
    // The session continues on each instance.
    for id in 2..=5 {
        let list = request(id, "tools/list", &json!({}));
        assert_eq!(fleet.result(&list).await["tools"][0]["name"], "greet");
    }
    for id in 6..=7 {
        let (mut events, ask) = fleet.greet_until_ask(id).await;
        let (status, error) = fleet.status(&answer(&ask)).await;
        assert_eq!(status, 202, "{error}");
        assert_eq!(events.text().await, "Hello, Ann!");
    }
}

#[tokio::test]
async fn drained_holder_ends_its_calls_and_the_session_continues() {
    let mut fleet = Fleet::new().await;
    let (mut events, ask) = fleet.greet_until_ask(1).await;
    let holder = &mut fleet.processes[0].process;
    holder.signal(Signal::TERM);
    holder.ended().await;
    // The ask is withdrawn before the reply.
    let withdrawn = events.next().await.expect("a notification");
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    let reply = events.next().await.expect("the reply");
    assert!(reply.get("error").is_some(), "{reply}");
    // Another process at the same URL does not hold the session, but serves it.
    fleet.restart(0).await;
    for _ in 0..3 {
        let (status, error) = fleet.status(&answer(&ask)).await;
        assert_eq!(status, 400, "{error}");
        assert!(error.contains("the call was lost"), "{error}");
        let list = request(2, "tools/list", &json!({}));
        assert_eq!(fleet.result(&list).await["tools"][0]["name"], "greet");
    }
}

#[tokio::test]
async fn session_of_a_foreign_fleet_is_rejected() {
    let (ours, theirs) = (Fleet::new().await, Fleet::new().await);
    let mut forged = ours;
    let own = std::mem::replace(&mut forged.session, theirs.session.clone());
    let list = request(1, "tools/list", &json!({}));
    // The id contains the URL of a running process, but is sealed with another key.
    for _ in 0..3 {
        assert_eq!(forged.status(&list).await.0, 404);
    }
    // A changed id is rejected, too.
    for at in [own.len() / 2, own.len() - 4] {
        let mut changed = own.clone();
        let other = if &own[at..=at] == "A" { "B" } else { "A" };
        changed.replace_range(at..=at, other);
        forged.session = changed;
        assert_eq!(forged.status(&list).await.0, 404);
    }
    forged.session = own;
    assert_eq!(forged.status(&list).await.0, 200);
}
