//! Live tools: the handler waits in memory, and a ledger shows that nothing is done twice.

mod claims;
mod ends;
mod limits;
mod relay;
mod repeated;
mod rounds;
mod stdio;

use crate::support::legacy::{Session, call, filled_in};
use crate::support::{
    Clock, Connection, Instance, Request, Signals, asked, names, result, signals, start,
    start_advertised, start_on, text, token, url_of, within,
};
use refrain_core::{Cx, Elicit, Incomplete, KeyRing, Result, SystemSource, ok};
use refrain_server::{
    AllowedHosts, BearerTokens, BuildError, Reply, Server, ServerBuilder, ServerLimits, State,
    Tool, TrustedProxy,
};
use refrain_testkit::net::{Balancer, http};
use refrain_wire::SamplingParams;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What was done, in the order in which it was done, whichever instance did it.
#[derive(Debug, Default)]
struct Ledger(Mutex<Vec<String>>);

impl Ledger {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().expect("a ledger").push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("a ledger").clone()
    }

    fn clear(&self) {
        self.0.lock().expect("a ledger").clear();
    }

    /// Waits until something is written.
    async fn has(&self, line: &str) {
        let written = async {
            while !self.lines().iter().any(|known| known == line) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(line, written).await;
    }
}

type Books = State<Arc<Ledger>>;

/// The old style, as it is.
async fn inline(cx: Cx, ledger: Books) -> Result<String> {
    ledger.write("mutation 1");
    let name: crate::support::Login = cx.elicit("name", "Who are you?").await?;
    ledger.write("mutation 2");
    Ok(format!("Done for {}.", name.name))
}

/// The same, wrapped in steps.
async fn wrapped(cx: Cx, ledger: Books) -> Result<String> {
    cx.step("one", async {
        ledger.write("mutation 1");
        ok(())
    })
    .await?;
    let name: crate::support::Login = cx.elicit("name", "Who are you?").await?;
    cx.step("two", async {
        ledger.write("mutation 2");
        ok(())
    })
    .await?;
    Ok(format!("Done for {}.", name.name))
}

/// Asks twice, and says how it goes.
async fn twice(cx: Cx, ledger: Books) -> Result<String> {
    cx.progress(1.0, Some(3.0), "begun");
    let first: crate::support::Login = cx.elicit("first", "First?").await?;
    ledger.write(format!("first {}", first.name));
    cx.progress(2.0, Some(3.0), "half");
    let (second, third) = tokio::try_join!(
        cx.elicit::<crate::support::Login>("second", "Second?"),
        cx.elicit::<crate::support::Login>("third", "Third?"),
    )?;
    ledger.write(format!("others {} {}", second.name, third.name));
    Ok(format!("{}{}{}", first.name, second.name, third.name))
}

/// Writes down that it was dropped.
struct Dropped(Arc<Ledger>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.write("dropped");
    }
}

/// Asks, and is seen to end.
async fn waits(cx: Cx, ledger: Books) -> Result<String> {
    let _dropped = Dropped(Arc::clone(&ledger));
    ledger.write("begun");
    let name: crate::support::Login = cx.elicit("name", "?").await?;
    Ok(name.name)
}

/// Works until it is dropped.
async fn works(_: Cx, ledger: Books) -> Result<String> {
    let _dropped = Dropped(Arc::clone(&ledger));
    ledger.write("begun");
    std::future::pending().await
}

/// The explicit style: what is missing is said by the reply.
async fn explicit(cx: Cx, ledger: Books) -> Result<Reply<String>> {
    ledger.write("run");
    let said = |name: &str| cx.answer(name).map(|answer| answer.get().to_owned());
    let (Some(first), Some(second)) = (said("first"), said("second")) else {
        let form = <crate::support::Login as Elicit>::form();
        let asks = Incomplete::new().form("first", "?", form);
        return Ok(Reply::Incomplete(asks.form("second", "?", form)));
    };
    Ok(Reply::Complete(format!("{first} {second}")))
}

/// Has a task live on that asks when the call is over.
async fn keeps(cx: Cx, ledger: Books) -> Result<String> {
    let (kept, ledger) = (cx.clone(), Arc::clone(&ledger));
    tokio::spawn(async move {
        kept.cancelled().await;
        let asked = kept.elicit::<crate::support::Login>("late", "?").await;
        ledger.write(asked.expect_err("the call is over").to_string());
        let sampled = kept.sample("idea", SamplingParams::new(10).user("?")).await;
        ledger.write(sampled.expect_err("the call is over").to_string());
    });
    Ok("kept".into())
}

/// Goes on when it is let through.
async fn gated(_: Cx, ledger: Books, signals: State<Arc<Signals>>) -> Result<String> {
    ledger.write("begun");
    signals.pass().await;
    ledger.write("ended");
    Ok("done".into())
}

/// Does without the answer when it was told that it is enough.
async fn impatient(cx: Cx, ledger: Books) -> Result<String> {
    let said = tokio::select! {
        name = cx.elicit::<crate::support::Login>("name", "?") => name?.name,
        () = ledger.has("enough") => "nobody".into(),
    };
    ledger.write(format!("said by {said}"));
    Ok(said)
}

fn keys() -> KeyRing {
    KeyRing::generate(&SystemSource::new())
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

fn login(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

fn first(tool: &str) -> Request {
    Request::tool(tool, json!({}))
}

fn second(tool: &str, token: &str) -> Request {
    first(tool).again(token, json!({"name": login("Ada")}))
}

/// Instances that share their keys, and whether each advertises its URL.
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

/// Sends requests to these instances in turn.
async fn balancer(instances: &[Instance]) -> Balancer {
    Balancer::start(instances.iter().map(|instance| instance.address)).await
}

async fn send(balancer: &Balancer, request: &Request) -> Value {
    http::send(balancer.address, request).await.reply()
}
