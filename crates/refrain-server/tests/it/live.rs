//! Live tools. A ledger of effects shows that each runs once.

mod claims;
mod lifetime;
mod limits;
mod relay;
mod repeated;
mod rounds;
mod stdio;
mod tasks;

use crate::support::legacy::{Session, call, filled_in};
use crate::support::{
    CAPABILITIES_KEY, Clock, Connection, Instance, Login, Request, Signals, accept, asked,
    assert_contains, cancel, expect_signal, forwarded_for, keys, result, signals, start,
    start_advertised, start_on, tampered, text, token, until, url_of, within,
};
use refrain_core::{Cx, Elicit, Incomplete, KeyRing, Result, SystemSource, ok};
use refrain_server::{
    AllowedHosts, BearerTokens, BuildError, Reply, Server, ServerBuilder, ServerLimits, State,
    Tool, TrustedProxy,
};
use refrain_testkit::net::{Balancer, http};
use refrain_wire::SamplingParams;
use refrain_wire::drafts::Draft;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The effects of all instances, in order.
#[derive(Debug, Default)]
struct Ledger(Mutex<Vec<String>>);

impl Ledger {
    fn write(&self, line: impl Into<String>) {
        self.0
            .lock()
            .expect("no panic while locked")
            .push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic while locked").clone()
    }

    fn clear(&self) {
        self.0.lock().expect("no panic while locked").clear();
    }

    /// Waits until this line is written.
    async fn wait_for(&self, line: &str) {
        until(line, || self.lines().iter().any(|written| written == line)).await;
    }
}

type LedgerState = State<Arc<Ledger>>;

/// Plain async code without steps.
async fn inline(cx: Cx, ledger: LedgerState) -> Result<String> {
    ledger.write("mutation 1");
    let name: Login = cx.elicit("name", "Who are you?").await?;
    ledger.write("mutation 2");
    Ok(format!("Done for {}.", name.name))
}

/// The same with steps.
async fn wrapped(cx: Cx, ledger: LedgerState) -> Result<String> {
    cx.step("one", async {
        ledger.write("mutation 1");
        ok(())
    })
    .await?;
    let name: Login = cx.elicit("name", "Who are you?").await?;
    cx.step("two", async {
        ledger.write("mutation 2");
        ok(())
    })
    .await?;
    Ok(format!("Done for {}.", name.name))
}

/// Asks in two rounds and reports progress.
async fn twice(cx: Cx, ledger: LedgerState) -> Result<String> {
    cx.progress(1.0, Some(3.0), "started");
    let first: Login = cx.elicit("first", "First?").await?;
    ledger.write(format!("first {}", first.name));
    cx.progress(2.0, Some(3.0), "half");
    let (second, third) = tokio::try_join!(
        cx.elicit::<Login>("second", "Second?"),
        cx.elicit::<Login>("third", "Third?"),
    )?;
    ledger.write(format!("others {} {}", second.name, third.name));
    Ok(format!("{}{}{}", first.name, second.name, third.name))
}

/// Writes "dropped" when it is dropped.
struct DropGuard(Arc<Ledger>);

impl Drop for DropGuard {
    fn drop(&mut self) {
        self.0.write("dropped");
    }
}

/// Asks, and records when it is dropped.
async fn waits(cx: Cx, ledger: LedgerState) -> Result<String> {
    let _dropped = DropGuard(Arc::clone(&ledger));
    ledger.write("started");
    let name: Login = cx.elicit("name", "?").await?;
    Ok(name.name)
}

/// Runs until it is dropped.
async fn works(_: Cx, ledger: LedgerState) -> Result<String> {
    let _dropped = DropGuard(Arc::clone(&ledger));
    ledger.write("started");
    std::future::pending().await
}

/// The explicit style: returns the missing asks.
async fn explicit(cx: Cx, ledger: LedgerState) -> Result<Reply<String>> {
    ledger.write("run");
    let answer = |name: &str| cx.answer(name).map(|answer| answer.get().to_owned());
    let (Some(first), Some(second)) = (answer("first"), answer("second")) else {
        let form = <Login as Elicit>::form();
        let asks = Incomplete::new().form("first", "?", form);
        return Ok(Reply::Incomplete(asks.form("second", "?", form)));
    };
    Ok(Reply::Complete(format!("{first} {second}")))
}

/// Spawns a task that asks after the call ended.
async fn keeps(cx: Cx, ledger: LedgerState) -> Result<String> {
    let (kept, ledger) = (cx.clone(), Arc::clone(&ledger));
    tokio::spawn(async move {
        kept.cancelled().await;
        let asked = kept.elicit::<Login>("late", "?").await;
        ledger.write(asked.expect_err("the call ended").to_string());
        let sampled = kept.sample("idea", SamplingParams::new(10).user("?")).await;
        ledger.write(sampled.expect_err("the call ended").to_string());
    });
    Ok("kept".into())
}

/// Waits at the gate.
async fn gated(_: Cx, ledger: LedgerState, signals: State<Arc<Signals>>) -> Result<String> {
    ledger.write("started");
    signals.pass().await;
    ledger.write("ended");
    Ok("done".into())
}

/// Continues without the answer when the ledger contains "enough".
async fn impatient(cx: Cx, ledger: LedgerState) -> Result<String> {
    let source = tokio::select! {
        name = cx.elicit::<Login>("name", "?") => name?.name,
        () = ledger.wait_for("enough") => "timeout".into(),
    };
    ledger.write(format!("from {source}"));
    Ok(source)
}

fn builder(ledger: &Arc<Ledger>, keys: &KeyRing) -> ServerBuilder {
    Server::builder("live", "1")
        .tool(Tool::new("inline", inline).live())
        .tool(Tool::new("wrapped", wrapped))
        .tool(Tool::new("twice", twice).live())
        .tool(Tool::new("waits", waits).live())
        .tool(Tool::new("works", works).live())
        .tool(Tool::new("impatient", impatient).live())
        .tool(Tool::new("explicit", explicit).live())
        .tool(Tool::new("keeps", keeps))
        .tool(Tool::new("keeps_live", keeps).live())
        .state(ledger.clone())
        .keys(keys.clone())
}

fn first_round(tool: &str) -> Request {
    Request::tool(tool, json!({}))
}

/// A first request with a call id.
fn identified(tool: &str) -> Request {
    first_round(tool).meta("refrain/callId", json!("c-1"))
}

fn second_round(tool: &str, token: &str) -> Request {
    first_round(tool).again(token, json!({"name": accept("Ada")}))
}

/// Sends a call of the second draft.
async fn call_draft(address: SocketAddr, params: Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let (path, body) = (Draft::Second.path(), body.to_string());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = Connection::open(address).await;
    connection.write((head + &body).as_bytes()).await;
    connection.response().await.reply()
}

/// A listener on a free port.
async fn bind() -> TcpListener {
    let bound = TcpListener::bind("127.0.0.1:0").await;
    bound.expect("a free port exists")
}

/// Starts instances. If `advertise`, each advertises its URL.
async fn fleet(count: usize, build: impl Fn() -> ServerBuilder, advertise: bool) -> Vec<Instance> {
    let mut instances = Vec::new();
    for _ in 0..count {
        instances.push(match advertise {
            true => start_advertised(build()).await,
            false => start(build()).await,
        });
    }
    instances
}

/// A round-robin balancer for these instances.
async fn balancer(instances: &[Instance]) -> Balancer {
    Balancer::start(instances.iter().map(|instance| instance.address)).await
}

async fn send(balancer: &Balancer, request: &Request) -> Value {
    http::send(balancer.address, request).await.reply()
}
