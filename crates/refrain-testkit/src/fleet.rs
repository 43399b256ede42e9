//! Instances that share their keys.

use crate::Closure;
use crate::call::TestCall;
use crate::clock::Clock;
use parking_lot::Mutex;
use refrain::auth::Caller;
use refrain::server::{KeyRing, Server, ServerBuilder};
use refrain::store::MemoryStore;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

type Build = Box<dyn Fn() -> ServerBuilder + Send + Sync>;

/// A fleet of servers in one process: every request is served by a new instance, which is dropped afterwards.
///
/// The instances share keys, a [`Clock`], and a store in memory. If the closure sets a store or a
/// replay log, they use that one. They also share the values that the closure gives to each of
/// them, as in `.state(tracker.clone())`.
///
/// ```
/// use refrain::prelude::*;
/// use refrain_testkit::Fleet;
/// use serde_json::json;
///
/// let ping = || Tool::new("ping", |_: Cx| async { ok("pong") });
/// let fleet = Fleet::new(move || Server::builder("pinger", "1.0").tool(ping()));
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// assert_eq!(fleet.call("ping", json!({})).run().await.text(), "pong");
/// # });
/// ```
pub struct Fleet {
    builds: Vec<Closure<Build>>,
    keys: KeyRing,
    clock: Clock,
    store: Arc<MemoryStore>,
    /// The instances that run tasks.
    pub(crate) running: Mutex<Vec<Server>>,
}

impl Fleet {
    /// A fleet of servers built by this closure.
    ///
    /// # Panics
    ///
    /// If the server cannot be built.
    pub fn new(build: impl Fn() -> ServerBuilder + Send + Sync + 'static) -> Self {
        let clock = Clock::new(0);
        let keys = KeyRing::generate(&clock);
        let fleet = Self {
            builds: Vec::new(),
            keys,
            store: new_store(&clock),
            clock,
            running: Mutex::default(),
        };
        fleet.and(build)
    }

    /// Adds servers of another version, as during a rolling upgrade. The versions take turns, request by request.
    ///
    /// # Panics
    ///
    /// If the server cannot be built.
    pub fn and(mut self, build: impl Fn() -> ServerBuilder + Send + Sync + 'static) -> Self {
        self.builds.push(Closure(Box::new(build)));
        self.instance(self.builds.len() - 1);
        self
    }

    /// Replaces the clock, and the store in memory.
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self.store = new_store(clock);
        self
    }

    /// The clock of all instances.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A call of this tool.
    pub fn call(&self, tool: impl Into<String>, arguments: impl Into<Value>) -> TestCall<'_> {
        let params = json!({"name": tool.into(), "arguments": arguments.into()});
        TestCall::new(self, "tools/call", params)
    }

    /// A call for this prompt.
    pub fn prompt(&self, prompt: impl Into<String>, arguments: impl Into<Value>) -> TestCall<'_> {
        let params = json!({"name": prompt.into(), "arguments": arguments.into()});
        TestCall::new(self, "prompts/get", params)
    }

    /// A call to read this resource.
    pub fn resource(&self, uri: impl Into<String>) -> TestCall<'_> {
        TestCall::new(self, "resources/read", json!({"uri": uri.into()}))
    }

    /// Sends one message, valid or not, to a new instance of the first version, and returns the messages it sends back.
    pub async fn send(&self, message: &[u8], caller: impl Into<Caller>) -> Vec<Value> {
        let mut replies = Vec::new();
        let mut response = self.instance(0).handle(message, caller.into()).await;
        while let Some(reply) = response.next().await {
            replies.push(parse(&reply));
        }
        replies
    }

    pub(crate) fn versions(&self) -> usize {
        self.builds.len()
    }

    /// A new instance of a version.
    pub(crate) fn instance(&self, version: usize) -> Server {
        let Closure(build) = &self.builds[version];
        let built = build()
            .keys(self.keys.clone())
            .source(Arc::new(self.clock.clone()))
            .default_store(self.store.clone())
            .build();
        match built {
            Ok(server) => server,
            Err(error) => panic!("could not build the server: {error}"),
        }
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fleet = f.debug_struct("Fleet");
        fleet.field("versions", &self.versions());
        fleet.field("clock", &self.clock).finish_non_exhaustive()
    }
}

fn new_store(clock: &Clock) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::with_source(Arc::new(clock.clone())))
}

/// Parses a message of the server.
pub(crate) fn parse(message: &[u8]) -> Value {
    serde_json::from_slice(message).unwrap_or_else(|error| {
        let text = String::from_utf8_lossy(message);
        panic!("the server sent invalid JSON: {error}: {text}")
    })
}
