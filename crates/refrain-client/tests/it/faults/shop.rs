//! Two server instances with a shared key and store, and their recorded effects.

use refrain::prelude::*;
use refrain::runtime::SystemSource;
use refrain::server::KeyRing;
use refrain::store::MemoryStore;
use refrain::task::TaskOptions;
use refrain_testkit::Effects;
use refrain_testkit::net::{Instance, start};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The effects of a call, one per round.
pub(crate) const EFFECTS: [&str; 3] = ["reserve", "hold", "charge"];

/// The poll interval of the instances and of the client.
const POLL: Duration = Duration::from_millis(50);

#[derive(Deserialize, Elicit)]
struct Amount {
    amount: i64,
}

#[derive(Deserialize, Elicit)]
struct Sure {
    sure: bool,
}

/// A sale in three rounds. `execute` executes one effect.
async fn sell<F>(cx: &Cx, execute: impl Fn(&'static str) -> F + Send) -> Result<String>
where
    F: Future<Output = Result<usize>> + Send,
{
    cx.progress(1.0, Some(3.0), "reserving");
    execute(EFFECTS[0]).await?;
    let Amount { amount } = cx.elicit("amount", "How much?").await?;
    cx.progress(2.0, Some(3.0), "holding");
    execute(EFFECTS[1]).await?;
    let Sure { sure } = cx.elicit("sure", "Are you sure?").await?;
    cx.progress(3.0, Some(3.0), "charging");
    execute(EFFECTS[2]).await?;
    Ok(format!("{amount} paid, sure: {sure}"))
}

/// Uses a provider with idempotency keys.
#[tool]
async fn keyed(cx: Cx, effects: State<Effects>) -> Result<String> {
    let effects = &effects;
    let work = |name| {
        let work = move |key: String| async move { ok(effects.record(format!("{name} {key}"))) };
        cx.step_with_key(name, work)
    };
    sell(&cx, work).await
}

/// Uses `cx.once`, which never starts work twice.
#[tool(once)]
async fn once(cx: Cx, effects: State<Effects>) -> Result<String> {
    let effects = &effects;
    let work = |name| cx.once(name, async move { ok(effects.record(name)) });
    sell(&cx, work).await
}

/// Uses single-use tokens.
#[tool(single_use)]
async fn single_use(cx: Cx, effects: State<Effects>) -> Result<String> {
    let effects = &effects;
    let work = |name| cx.step(name, async move { ok(effects.record(name)) });
    sell(&cx, work).await
}

/// Becomes a task after the first answer.
#[tool]
async fn detached(cx: Cx, effects: State<Effects>) -> Result<String> {
    let work = |name: &'static str| {
        let effects = &effects;
        let work = move |key: String| async move { ok(effects.record(format!("{name} {key}"))) };
        cx.step_with_key(name, work)
    };
    work(EFFECTS[0]).await?;
    let Amount { amount } = cx.elicit("amount", "How much?").await?;
    cx.detach().await?;
    work(EFFECTS[1]).await?;
    let Sure { sure } = cx.elicit("sure", "Are you sure?").await?;
    work(EFFECTS[2]).await?;
    Ok(format!("{amount} paid, sure: {sure}"))
}

/// The running instances. Dropping it stops them.
pub(crate) struct Shop {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) effects: Effects,
    _instances: Vec<Instance>,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let effects = Effects::new();
        let keys = KeyRing::generate(&SystemSource::new());
        let store = Arc::new(MemoryStore::new());
        let options = TaskOptions {
            store_poll: POLL,
            ..TaskOptions::default()
        };
        let mut instances = Vec::new();
        for _ in 0..2 {
            let builder = Server::builder("shop", "1")
                .state(effects.clone())
                .keys(keys.clone())
                .store(store.clone())
                .task_options(options.clone())
                .tool(keyed())
                .tool(once())
                .tool(single_use())
                .tool(detached().poll_interval(POLL));
            instances.push(start(builder).await);
        }
        Self {
            addresses: instances.iter().map(|one| one.address).collect(),
            effects,
            _instances: instances,
        }
    }

    /// The number of effects per name. Repetitions with the same idempotency key count once.
    pub(crate) fn effect_counts(&self) -> [usize; 3] {
        let keys = self.effects.keys();
        let is = |name: &str, key: &String| key.split(' ').next() == Some(name);
        EFFECTS.map(|name| {
            let matching = keys.iter().filter(|key| is(name, key));
            matching
                .map(|key| if key == name { self.effects.of(key) } else { 1 })
                .sum()
        })
    }
}
