//! The builder of a server.

mod build;
mod error;

pub use error::BuildError;
pub(crate) use error::debug_as_display;

use crate::auth::{AccessRules, Authenticator};
use crate::catalog::{Caches, Changes, Listing, Prompt, Resource, ResourceTemplate, Tool};
use crate::handler::StateMap;
use crate::http::ServerCard;
use crate::limits::ServerLimits;
use crate::metrics::Metrics;
use crate::server::Server;
use crate::skills::Skill;
use crate::tasks::{TaskOptions, Webhook};
use refrain_core::{
    KeyRing, MemoryReplayLog, ReplayLog, Retention, SealerOptions, Source, SystemSource,
};
use refrain_store::{Store, TaskStore};
use refrain_wire::{Cache, Icon, Implementation};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// Builds a [`Server`].
#[derive(Clone)]
pub struct ServerBuilder {
    info: Implementation,
    instructions: Option<String>,
    extensions: Map<String, Value>,
    instance: Option<String>,
    registered: Changes,
    caches: Caches,
    states: StateMap,
    keys: Option<KeyRing>,
    pub(crate) sealing: SealerOptions,
    limits: ServerLimits,
    source: Arc<dyn Source>,
    replay_log: Option<Arc<dyn ReplayLog>>,
    authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) access: AccessRules,
    client_address_header: Option<String>,
    task_store: Option<Arc<dyn TaskStore>>,
    task_options: TaskOptions,
    pub(crate) task_namespace: String,
    webhooks: Vec<Webhook>,
    server_card: Option<ServerCard>,
    skills: Vec<Skill>,
    pub(crate) advertise: Option<String>,
    peers: Vec<String>,
    metrics: Option<Arc<Metrics>>,
    #[cfg(feature = "metrics")]
    registries: Vec<Arc<prometheus_client::registry::Registry>>,
}

impl ServerBuilder {
    /// The maximum of [`clock_skew`](Self::clock_skew).
    pub const MAX_CLOCK_SKEW: Duration = Retention::MAX_SKEW;

    pub(crate) fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            sealing: SealerOptions {
                audience: name.clone(),
                ..SealerOptions::default()
            },
            info: Implementation {
                name,
                version: version.into(),
                ..Implementation::default()
            },
            instructions: None,
            extensions: Map::new(),
            instance: None,
            registered: Changes::new(),
            caches: Caches::default(),
            states: StateMap::default(),
            keys: None,
            limits: ServerLimits::default(),
            source: Arc::new(SystemSource::new()),
            replay_log: None,
            authenticator: None,
            access: AccessRules::default(),
            client_address_header: None,
            task_store: None,
            task_options: TaskOptions::default(),
            task_namespace: String::new(),
            webhooks: Vec::new(),
            server_card: None,
            skills: Vec::new(),
            advertise: None,
            peers: Vec::new(),
            metrics: None,
            #[cfg(feature = "metrics")]
            registries: Vec::new(),
        }
    }

    /// The version set in [`Server::builder`].
    pub fn version(&self) -> &str {
        &self.info.version
    }

    /// Registers a tool.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.registered = self.registered.tool(tool);
        self
    }

    /// Registers a prompt.
    pub fn prompt(mut self, prompt: Prompt) -> Self {
        self.registered = self.registered.prompt(prompt);
        self
    }

    /// Registers a resource.
    pub fn resource(mut self, resource: Resource) -> Self {
        self.registered = self.registered.resource(resource);
        self
    }

    /// Registers a resource template.
    pub fn resource_template(mut self, template: ResourceTemplate) -> Self {
        self.registered = self.registered.resource_template(template);
        self
    }

    /// Publishes a skill: registers its files as resources, lists it in `skills/list`, and declares the Skills extension. The
    /// cache of [`Listing::Resources`] applies to this list, too.
    pub fn skill(mut self, skill: Skill) -> Self {
        for resource in skill.resources() {
            self.registered = self.registered.resource(resource);
        }
        self.skills.push(skill);
        self
    }

    /// Registers the added entries of `changes`.
    pub fn register(mut self, changes: Changes) -> Self {
        self.registered = self.registered.and(changes);
        self
    }

    /// Adds application state for handlers that take a `State<T>`. There is one value per type; a later value replaces an
    /// earlier one.
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.insert(state);
        self
    }

    /// Sets the title of the server.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.info.title = Some(title.into());
        self
    }

    /// Sets a short description of the server.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.info.description = Some(description.into());
        self
    }

    /// Sets the URL of a page about the server.
    pub fn website(mut self, url: impl Into<String>) -> Self {
        self.info.website_url = Some(url.into());
        self
    }

    /// Adds an icon.
    pub fn icon(mut self, icon: Icon) -> Self {
        self.info.icons.push(icon);
        self
    }

    /// Publishes the server's metadata without authentication, at the path of the endpoint followed by `/server-card`.
    pub fn server_card(mut self, card: ServerCard) -> Self {
        self.server_card = Some(card);
        self
    }

    /// Declares an extension that the server supports, with its settings.
    ///
    /// ```
    /// # use refrain::server::Server;
    /// use serde_json::Map;
    ///
    /// let server = Server::builder("docs", "1.0")
    ///     .extension("com.example/plain", Map::new())
    ///     .extension("com.example/tuned", Map::from_iter([("depth".to_owned(), 3.into())]))
    ///     .build()?;
    /// # Ok::<(), refrain::server::BuildError>(())
    /// ```
    pub fn extension(mut self, name: impl Into<String>, settings: Map<String, Value>) -> Self {
        self.extensions.insert(name.into(), Value::Object(settings));
        self
    }

    /// Sets how long clients may cache a list and whether they may share it. Default: no caching.
    pub fn cache(mut self, listing: Listing, cache: Cache) -> Self {
        self.caches.lists[listing as usize] = cache;
        self
    }

    /// Sets how long clients may cache the reply to `server/discover` and whether they may share it. Default: no caching.
    pub fn cache_discover(mut self, cache: Cache) -> Self {
        self.caches.discover = cache;
        self
    }

    /// Sets instructions for models that use this server.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// Names this instance, and adds a `refrain-round` header with this name and data about the round to the reply of each
    /// call that is one JSON object. For debugging a fleet: it reveals to callers which instance served them.
    pub fn explain_as(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// Sets the keys that seal tokens. All instances of a fleet must share them. Default: a random key for this instance.
    pub fn keys(mut self, keys: KeyRing) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Sets the audience that tokens are bound to. All instances of a fleet must share it. Default: the name of the server.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.sealing.audience = audience.into();
        self
    }

    /// Sets how long a token is accepted. Default one hour.
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.sealing.ttl = ttl;
        self
    }

    /// Sets the maximum lifetime of a flow over all its rounds. Default 24 hours.
    pub fn flow_ttl(mut self, ttl: Duration) -> Self {
        self.sealing.flow_ttl = ttl;
        self
    }

    /// Sets the tolerated difference between the clocks of two instances, at most [`MAX_CLOCK_SKEW`](Self::MAX_CLOCK_SKEW).
    /// Default 30 seconds.
    pub fn clock_skew(mut self, skew: Duration) -> Self {
        self.sealing.skew = skew;
        self
    }

    /// Sets the maximum length of a token, in characters. Default 65536.
    pub fn max_token(mut self, characters: usize) -> Self {
        self.sealing.max_token = characters;
        self
    }

    /// Sets the limits of the server.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the source of time and randomness. For tests.
    pub fn source(mut self, source: Arc<dyn Source>) -> Self {
        self.source = source;
        self
    }

    /// Sets the store, and declares the tasks extension. The store keeps tasks, tokens that are too large to send, and the
    /// replay log, which `once` and single-use tokens need. All instances of a fleet must share it.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = refrain::store::open("memory:").await?; // or sqlite:FILE, postgres://…
    /// let server = Server::builder("docs", "1.0").store(store).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.task_store = Some(store.clone());
        self.replay_log(store)
    }

    /// Sets how tasks are run and stored.
    pub fn task_options(mut self, options: TaskOptions) -> Self {
        self.task_options = options;
        self
    }

    /// Sets a replay log other than the [store](Self::store).
    pub fn replay_log(mut self, log: Arc<dyn ReplayLog>) -> Self {
        self.replay_log = Some(log);
        self
    }

    /// Sets the task store and the replay log, unless they are already set. For tests.
    #[cfg(feature = "testing")]
    pub fn default_store(mut self, store: Arc<dyn Store>) -> Self {
        self.task_store.get_or_insert_with(|| store.clone());
        self.replay_log.get_or_insert(store);
        self
    }

    /// Declares that no other instance accepts the same tokens, so that a replay log in memory suffices.
    pub fn single_instance(self) -> Self {
        self.replay_log(Arc::new(MemoryReplayLog::new()))
    }

    /// Sets the authenticator of HTTP requests. Without one, every caller is anonymous and has no scopes.
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> Self {
        self.authenticator = Some(Arc::new(authenticator));
        self
    }

    /// Takes the client's address from the last entry of this header, such as `x-forwarded-for`, instead of the connection.
    /// Anonymous clients are limited by their address. Only for servers behind a proxy that sets the header.
    pub fn client_address_header(mut self, name: impl Into<String>) -> Self {
        self.client_address_header = Some(name.into());
        self
    }

    /// Sets a task store that is not the replay log, and the task options. To use one store for both, call
    /// [`store`](Self::store) and [`task_options`](Self::task_options).
    pub fn tasks(mut self, store: Arc<dyn TaskStore>, options: TaskOptions) -> Self {
        self.task_store = Some(store);
        self.task_options(options)
    }

    /// Sets the namespace of this server's tools in the task store. Servers with different tools of the same names can then
    /// share a store. Clients do not see the tasks of other namespaces.
    pub fn task_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.task_namespace = namespace.into();
        self
    }

    /// Adds an endpoint that is notified when a task has ended. It applies to tasks that this server creates from now on. All
    /// instances of a fleet must have the same webhooks.
    pub fn webhook(mut self, webhook: Webhook) -> Self {
        self.webhooks.push(webhook);
        self
    }

    /// Sets the URL at which other instances reach this instance's endpoint. Tokens of live calls and ids of legacy sessions
    /// contain it sealed, and other instances relay requests for them to this URL. All instances must share their keys.
    ///
    /// ```
    /// # use refrain::server::{KeyRing, Server};
    /// # let keys = KeyRing::generate(&refrain::runtime::SystemSource::new());
    /// let builder = Server::builder("docs", "1.0").keys(keys);
    /// let server = builder.advertise("http://10.0.0.8:8080/mcp").build()?;
    /// # Ok::<(), refrain::server::BuildError>(())
    /// ```
    pub fn advertise(mut self, url: impl Into<String>) -> Self {
        self.advertise = Some(url.into());
        self
    }

    /// Sets the advertised URLs of all instances, including this one, for entries that are
    /// [pinned to their caller](crate::Tool::pin_to_caller). All instances must have the same list.
    ///
    /// ```
    /// # use refrain::server::{KeyRing, Server};
    /// # let keys = KeyRing::generate(&refrain::runtime::SystemSource::new());
    /// let server = Server::builder("docs", "1.0")
    ///     .keys(keys)
    ///     .advertise("http://10.0.0.8:8080/mcp")
    ///     .peers(["http://10.0.0.8:8080/mcp", "http://10.0.0.9:8080/mcp"])
    ///     .build()?;
    /// # Ok::<(), refrain::server::BuildError>(())
    /// ```
    pub fn peers<S: Into<String>>(mut self, urls: impl IntoIterator<Item = S>) -> Self {
        self.peers = urls.into_iter().map(Into::into).collect();
        self
    }

    /// Shares the metrics of another server.
    pub fn share_metrics_with(mut self, other: &Server) -> Self {
        self.metrics = Some(other.0.services.metrics.clone());
        self
    }

    /// Adds metrics of the program to the text of [`Server::metrics_text`] and of `/metrics`, after those of the server. Their
    /// names must not be names of the server's metrics, which begin with `refrain_`.
    ///
    /// ```
    /// # use refrain::server::Server;
    /// use refrain::runtime::server::prometheus_client::metrics::counter::Counter;
    /// use refrain::runtime::server::prometheus_client::registry::Registry;
    ///
    /// let orders = Counter::<u64>::default();
    /// let mut registry = Registry::default();
    /// registry.register("orders", "Orders placed", orders.clone());
    /// let server = Server::builder("docs", "1.0").register_metrics(registry).build()?;
    /// orders.inc();
    /// assert!(server.metrics_text().contains("orders_total 1\n"));
    /// # Ok::<(), refrain::server::BuildError>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn register_metrics(mut self, registry: prometheus_client::registry::Registry) -> Self {
        self.registries.push(Arc::new(registry));
        self
    }
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("name", &self.info.name)
            .field("registered", &self.registered)
            .finish_non_exhaustive()
    }
}
