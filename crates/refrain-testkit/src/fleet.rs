//! Instances that share nothing but a key.

use crate::call::Call;
use crate::clock::Clock;
use refrain::auth::Caller;
use refrain::server::{KeyRing, Server, ServerBuilder};
use serde_json::{Value, json};
use std::sync::Arc;

type Build = Box<dyn Fn() -> ServerBuilder + Send + Sync>;

/// A fleet of servers in one process: every request is served by an instance that was built for it and is thrown
/// away afterwards.
///
/// The instances share keys and a [`Clock`]. Whatever else they share is what the closure hands to each of them, as in
/// `.state(tracker.clone())` or `.replay_log(log.clone())`.
///
/// ```
/// use refrain::prelude::*;
/// use refrain_testkit::{Fleet, Script};
/// use serde_json::json;
///
/// #[derive(Deserialize, Elicit)]
/// struct Login {
///     name: String,
/// }
///
/// /// Greets the user by name.
/// #[tool]
/// async fn greet(cx: Cx) -> Result<String> {
///     let login: Login = cx.elicit("login", "Who are you?").await?;
///     Ok(format!("Hello, {}!", login.name))
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let fleet = Fleet::new(|| Server::builder("greeter", "1.0").tool(greet()));
/// let script = Script::new().answer("login", json!({"name": "octocat"}));
/// let outcome = fleet.call("greet", json!({})).script(script).run().await;
/// assert_eq!(outcome.text(), "Hello, octocat!");
/// assert_eq!(outcome.rounds().len(), 2);
/// # });
/// ```
pub struct Fleet {
    builds: Vec<Build>,
    keys: KeyRing,
    clock: Clock,
}

impl Fleet {
    /// A fleet of servers that this closure builds.
    ///
    /// # Panics
    ///
    /// If what it builds is not a usable server.
    pub fn new(build: impl Fn() -> ServerBuilder + Send + Sync + 'static) -> Self {
        let clock = Clock::new(0);
        let keys = KeyRing::generate(&clock);
        let fleet = Self {
            builds: Vec::new(),
            keys,
            clock,
        };
        fleet.and(build)
    }

    /// Adds servers of another version, as during a rolling upgrade. The versions take turns, request by request.
    ///
    /// # Panics
    ///
    /// If what the closure builds is not a usable server.
    pub fn and(mut self, build: impl Fn() -> ServerBuilder + Send + Sync + 'static) -> Self {
        self.builds.push(Box::new(build));
        self.instance(self.builds.len() - 1);
        self
    }

    /// Puts another clock in place of the fleet's own.
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// The clock of all instances.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A call of this tool.
    pub fn call(&self, tool: impl Into<String>, arguments: impl Into<Value>) -> Call<'_> {
        let params = json!({"name": tool.into(), "arguments": arguments.into()});
        Call::new(self, "tools/call", params)
    }

    /// A call for this prompt.
    pub fn prompt(&self, prompt: impl Into<String>, arguments: impl Into<Value>) -> Call<'_> {
        let params = json!({"name": prompt.into(), "arguments": arguments.into()});
        Call::new(self, "prompts/get", params)
    }

    /// A call to read this resource.
    pub fn resource(&self, uri: impl Into<String>) -> Call<'_> {
        Call::new(self, "resources/read", json!({"uri": uri.into()}))
    }

    /// Sends one message to a fresh instance of the first version, and gives the messages that come back. For what a
    /// well-behaved client does not send.
    pub async fn send(&self, message: &[u8], caller: impl Into<Caller>) -> Vec<Value> {
        let mut replies = Vec::new();
        let mut response = self.instance(0).handle(message, caller.into()).await;
        while let Some(reply) = response.next().await {
            replies.push(read(&reply));
        }
        replies
    }

    pub(crate) fn versions(&self) -> usize {
        self.builds.len()
    }

    /// A fresh instance of a version.
    pub(crate) fn instance(&self, version: usize) -> Server {
        let built = self.builds[version]()
            .keys(self.keys.clone())
            .source(Arc::new(self.clock.clone()))
            .build();
        match built {
            Ok(server) => server,
            Err(error) => panic!("the fleet has no usable server: {error}"),
        }
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("versions", &self.builds.len())
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// Reads a message of the server, which is always JSON.
pub(crate) fn read(message: &[u8]) -> Value {
    serde_json::from_slice(message).unwrap_or_else(|error| {
        let text = String::from_utf8_lossy(message);
        panic!("the server sent what is not JSON: {error}: {text}")
    })
}
