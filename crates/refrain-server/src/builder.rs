//! Puts a server together, and says why it cannot be.

use crate::auth::{AccessRules, Authenticator};
use crate::catalog::{Caches, Catalog, Listing, Rules};
use crate::changes::Changes;
use crate::handler::States;
use crate::legacy::LegacySessions;
use crate::limits::ServerLimits;
use crate::listen::Hub;
use crate::live::{LiveCalls, LivePlaces, PeerRules, Peers, Remotes};
use crate::load::Load;
use crate::metrics::{Metrics, Seen};
use crate::prompt::Prompt;
use crate::resource::{Resource, ResourceTemplate};
use crate::rounds::RoundHook;
use crate::server::{Inner, Server};
use crate::tasks::{Space, TaskOptions, Tasks};
use crate::template::TemplateError;
use crate::tool::Tool;
use parking_lot::RwLock;
use refrain_core::{
    KeyRing, MemoryReplayLog, ReplayLog, Sealer, SealerOptions, Source, SystemSource, Trace,
};
use refrain_store::{SessionStore, TaskStore};
use refrain_wire::{CALL_ID_KEY, Cache, Icon, Implementation, ParamHeaderError, TASKS_EXTENSION};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// Why a server cannot be built, or not changed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two things of one kind have one name.
    #[error("{kind} {name:?} is registered twice")]
    Duplicate {
        /// "the tool", "the prompt", "the resource" or "the resource template".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A handler takes a `State<T>` that was not handed in.
    #[error("{handler:?} takes State<{state}>: hand it in with .state(..)")]
    MissingState {
        /// The tool, prompt or resource.
        handler: String,
        /// The type of the state.
        state: &'static str,
    },
    /// A tool wants its work or its tokens used once, and nothing could tell.
    #[error(
        "the tool {tool:?} needs a replay log that the fleet shares: hand one in with .replay_log(..), \
         or declare with .single_instance() that there is only one instance"
    )]
    NeedsReplayLog {
        /// The tool.
        tool: String,
    },
    /// A tool's calls must be tasks, and there is nowhere to keep them.
    #[error("the tool {tool:?} needs a task store: hand one in with .tasks(..)")]
    NeedsTaskStore {
        /// The tool.
        tool: String,
    },
    /// A tool is to be live and a task, and has only one home.
    #[error("the tool {tool:?} is live and cannot become a task: leave one of the two out")]
    LiveTask {
        /// The tool.
        tool: String,
    },
    /// An instance cannot be known by this name, or reached at this URL.
    #[error("the peer {peer:?} cannot be used: {reason}")]
    Peer {
        /// The name of the instance.
        peer: String,
        /// What is wrong with it, or with its URL.
        reason: &'static str,
    },
    /// Peers would not believe each other.
    #[error("peers must share their keys: hand them in with .keys(..)")]
    PeersNeedKeys,
    /// What tasks hold is to be sealed with a key that nobody has after a restart.
    #[error("what tasks hold cannot be sealed without keys: hand them in with .keys(..)")]
    SealingNeedsKeys,
    /// A tool's schema is not a JSON schema.
    #[error("the {which} schema of {tool:?} is not usable: {reason}")]
    Schema {
        /// The tool.
        tool: String,
        /// "input" or "output".
        which: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A tool has no name.
    #[error("a tool needs a name")]
    EmptyName,
    /// A resource's URI is none.
    #[error("the resource {uri:?} has no usable URI: {reason}")]
    Uri {
        /// The URI.
        uri: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An argument of a tool cannot be repeated in a header.
    #[error(
        "the tool {tool:?} has an x-mcp-header that clients would refuse: {reason}{}",
        header_hint(reason)
    )]
    ParamHeader {
        /// The tool.
        tool: String,
        /// The argument, and what is wrong with its header.
        reason: ParamHeaderError,
    },
    /// Something completes an argument that is not there.
    #[error("{of} has no argument {argument:?} to complete; it has: {known}")]
    NothingToComplete {
        /// The prompt or the resource template.
        of: String,
        /// The argument.
        argument: String,
        /// Those that it has.
        known: String,
    },
    /// An extension's name has no prefix, or odd characters in it.
    #[error("the extension {name:?} needs a name with a prefix, as in \"com.example/name\"")]
    ExtensionName {
        /// The name.
        name: String,
    },
    /// An extension that the server declares by itself.
    #[error(
        "the extension {name:?} is one that the server declares by itself: that of tasks with .tasks(..), that of call ids always"
    )]
    OwnExtension {
        /// The name.
        name: &'static str,
    },
    /// A space for tasks that could be taken for another.
    #[error("the task space {space:?} must have no colon in it")]
    TaskSpace {
        /// The space.
        space: String,
    },
    /// A limit is zero that cannot be.
    #[error("the limit {limit} must be at least 1")]
    Limit {
        /// The limit.
        limit: &'static str,
    },
    /// A scope that callers cannot be asked for.
    #[error("{owner} cannot need the scope {scope:?}: {reason}")]
    Scope {
        /// What needs it: the tool, prompt or resource, or the server itself.
        owner: String,
        /// The scope.
        scope: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The resource metadata would lead clients nowhere.
    #[error("the resource metadata cannot name {url:?}: {reason}")]
    Metadata {
        /// The URL that is at fault.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A resource template cannot be matched against URIs.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// How to write a header's mark with schemars so that clients accept it.
fn header_hint(error: &ParamHeaderError) -> &'static str {
    match error {
        ParamHeaderError::Type(_) => {
            "; an Option<String> takes #[serde(default)] and #[schemars(with = \"String\")]"
        }
        ParamHeaderError::Unreachable(_) => {
            "; #[schemars(inline)] on a type puts its fields where clients look"
        }
        _ => "",
    }
}

/// What `main` shows when it returns this error.
impl std::fmt::Debug for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Puts a [`Server`] together.
#[derive(Clone)]
pub struct ServerBuilder {
    info: Implementation,
    instructions: Option<String>,
    extensions: Map<String, Value>,
    instance: Option<String>,
    registered: Changes,
    caches: Caches,
    states: States,
    keys: Option<KeyRing>,
    pub(crate) sealing: SealerOptions,
    limits: ServerLimits,
    source: Arc<dyn Source>,
    replay_log: Option<Arc<dyn ReplayLog>>,
    authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) access: AccessRules,
    on_round: Option<RoundHook>,
    tasks: Option<(Arc<dyn TaskStore>, TaskOptions)>,
    pub(crate) task_space: String,
    sessions: Option<Arc<dyn SessionStore>>,
    peers: PeerRules,
    metrics: Option<Arc<Metrics>>,
}

impl Server {
    /// Begins a server of this name and version. The name is also the audience of its tokens, unless another is set.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> ServerBuilder {
        let name = name.into();
        ServerBuilder {
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
            states: States::default(),
            keys: None,
            limits: ServerLimits::default(),
            source: Arc::new(SystemSource::new()),
            replay_log: None,
            authenticator: None,
            access: AccessRules::default(),
            on_round: None,
            tasks: None,
            task_space: String::new(),
            sessions: None,
            peers: None,
            metrics: None,
        }
    }
}

impl ServerBuilder {
    /// The version that the server reports.
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

    /// Registers a family of resources.
    pub fn resource_template(mut self, template: ResourceTemplate) -> Self {
        self.registered = self.registered.resource_template(template);
        self
    }

    /// Hands in application state, for handlers that take a `State<T>`. One value for each type.
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.insert(state);
        self
    }

    /// A title for the server.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.info.title = Some(title.into());
        self
    }

    /// What the server is for, in a sentence.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.info.description = Some(description.into());
        self
    }

    /// Where a person reads more about the server.
    pub fn website(mut self, url: impl Into<String>) -> Self {
        self.info.website_url = Some(url.into());
        self
    }

    /// A picture to show for the server.
    pub fn icon(mut self, icon: Icon) -> Self {
        self.info.icons.push(icon);
        self
    }

    /// Declares an extension that the server speaks, with its settings; an empty map if it has none.
    ///
    /// ```
    /// # use refrain_server::Server;
    /// use serde_json::Map;
    ///
    /// let server = Server::builder("docs", "1.0")
    ///     .extension("com.example/plain", Map::new())
    ///     .extension("com.example/tuned", Map::from_iter([("depth".to_owned(), 3.into())]))
    ///     .build()?;
    /// # Ok::<(), refrain_server::BuildError>(())
    /// ```
    pub fn extension(mut self, name: impl Into<String>, settings: Map<String, Value>) -> Self {
        self.extensions.insert(name.into(), Value::Object(settings));
        self
    }

    /// How long clients may keep a list, and whether they may share it. Default: not at all.
    pub fn cache(mut self, listing: Listing, cache: Cache) -> Self {
        self.caches.lists[listing as usize] = cache;
        self
    }

    /// How long clients may keep what `server/discover` says, and whether they may share it. Default: not at all.
    pub fn cache_discover(mut self, cache: Cache) -> Self {
        self.caches.discover = cache;
        self
    }

    /// What a model should know about using this server.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// Names this instance, and has every reply say in a `refrain-round` header what the round did. For looking at
    /// how a fleet works; it tells callers which instance served them.
    pub fn explain_as(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// The keys that tokens are sealed with. All instances of a fleet share them; without any, a key is made that
    /// only this instance has.
    pub fn keys(mut self, keys: KeyRing) -> Self {
        self.keys = Some(keys);
        self
    }

    /// The name of the service that tokens are bound to. All instances of a fleet share it.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.sealing.audience = audience.into();
        self
    }

    /// How long a token is accepted.
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.sealing.ttl = ttl;
        self
    }

    /// How long a flow may live, all its rounds together.
    pub fn flow_ttl(mut self, ttl: Duration) -> Self {
        self.sealing.flow_ttl = ttl;
        self
    }

    /// How far the clocks of two instances may be apart.
    pub fn clock_skew(mut self, skew: Duration) -> Self {
        self.sealing.skew = skew;
        self
    }

    /// The largest token, in characters.
    pub fn max_token(mut self, characters: usize) -> Self {
        self.sealing.max_token = characters;
        self
    }

    /// The limits of the server.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Where time and randomness come from. For tests.
    pub fn source(mut self, source: Arc<dyn Source>) -> Self {
        self.source = source;
        self
    }

    /// The log that makes `once` and single-use tokens possible. All instances of a fleet must share it.
    pub fn replay_log(mut self, log: Arc<dyn ReplayLog>) -> Self {
        self.replay_log = Some(log);
        self
    }

    /// Declares that no other instance accepts the same tokens, so that a replay log in memory will do.
    pub fn single_instance(self) -> Self {
        self.replay_log(Arc::new(MemoryReplayLog::new()))
    }

    /// Finds out who is calling over HTTP. Without one, every caller is anonymous and has no scopes.
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> Self {
        self.authenticator = Some(Arc::new(authenticator));
        self
    }

    /// Where tasks live, and how they are run. All instances of a fleet share the store. Clients are told that the server
    /// speaks the extension for tasks.
    pub fn tasks(mut self, store: Arc<dyn TaskStore>, options: TaskOptions) -> Self {
        self.tasks = Some((store, options));
        self
    }

    /// The space that this server's tools have in the task store: with one of its own, it shares the store with servers
    /// that have other tools of the same names. The tasks of other spaces are not there for its clients.
    pub fn task_space(mut self, space: impl Into<String>) -> Self {
        self.task_space = space.into();
        self
    }

    /// Where the instances of a fleet note what they must know of the sessions of older clients, and carry answers to
    /// each other. All instances share it. Without one, what a session says later is known to the instance it says it to,
    /// an answer must come to the instance that has asked, and no session can be ended.
    pub fn sessions(mut self, store: Arc<dyn SessionStore>) -> Self {
        self.sessions = Some(store);
        self
    }

    /// The other instances of the fleet: a request for a live call that one of them holds is handed to it. They must share
    /// their keys.
    pub fn peers(mut self, peers: Peers) -> Self {
        self.peers = Some(peers);
        self
    }

    /// Has what this server does counted among the numbers of another, which tells of both.
    pub fn count_with(mut self, other: &Server) -> Self {
        self.metrics = Some(other.0.metrics.clone());
        self
    }

    /// Called with the span of each round that begins, before it is entered, and with the trace the round belongs to:
    /// the place to set a span's remote parent, which OpenTelemetry wants before anything else. Not called where spans
    /// of the level debug are switched off.
    pub fn on_round(
        mut self,
        hook: impl Fn(&tracing::Span, &mut Trace) + Send + Sync + 'static,
    ) -> Self {
        self.on_round = Some(Arc::new(hook));
        self
    }

    /// Checks everything that was registered and builds the server.
    pub fn build(mut self) -> Result<Server, BuildError> {
        if let Some(name) = self.extensions.keys().find(|name| !is_prefixed(name)) {
            return Err(BuildError::ExtensionName { name: name.clone() });
        }
        self.limits.check()?;
        for name in [TASKS_EXTENSION, CALL_ID_KEY] {
            if self.extensions.contains_key(name) {
                return Err(BuildError::OwnExtension { name });
            }
        }
        // A client that reads this may send a call again whose response was lost.
        let settings = Value::Object(Map::new());
        self.extensions.insert(CALL_ID_KEY.into(), settings);
        if let Some((_, options)) = &self.tasks {
            options.check()?;
            if options.seal && self.keys.is_none() {
                return Err(BuildError::SealingNeedsKeys);
            }
            let settings = Value::Object(Map::new());
            self.extensions.insert(TASKS_EXTENSION.into(), settings);
        }
        if self.peers.is_some() && self.keys.is_none() {
            return Err(BuildError::PeersNeedKeys);
        }
        let space = Space::named(self.task_space.clone());
        let space = space.ok_or(BuildError::TaskSpace {
            space: self.task_space,
        })?;
        let remotes = Remotes::new(self.peers)?;
        let live = LiveCalls::new(remotes.name.as_deref(), &*self.source);
        let load = Load::new(self.limits.concurrent_calls, self.limits.shed_above);
        let live_places = LivePlaces::new(self.limits.live_calls, self.limits.live_calls_each);
        let hub = Hub::new(self.limits.subscriptions, self.limits.subscriptions_each);
        let shared = self.metrics.take();
        let metrics = shared.unwrap_or_else(|| Metrics::new(&self.info.name, &self.info.version));
        let rules = Rules {
            states: self.states,
            once: self.replay_log.is_some(),
            tasks: self.tasks.is_some(),
            page_size: self.limits.page_size,
            caches: self.caches,
            metrics: metrics.clone(),
        };
        let (catalog, _) = Catalog::default().with(&self.registered, &rules)?;
        if self.authenticator.is_none() && catalog.needs_scopes() {
            tracing::warn!(
                "there are scopes that callers need and nothing that says who is calling: over HTTP nobody has \
                 them; hand in an .authenticator(..)"
            );
        }
        metrics.watch(Seen {
            load: load.clone(),
            live_places: live_places.clone(),
            hub: hub.clone(),
        });
        let keys = self.keys.unwrap_or_else(|| {
            tracing::warn!(
                "no keys are configured: using one made just now, which no other instance has; \
                 a fleet must share keys"
            );
            KeyRing::generate(&*self.source)
        });
        let info = to_raw_value(&self.info).expect("a name and a version are plain strings");
        Ok(Server(Arc::new(Inner {
            info,
            instructions: self.instructions,
            extensions: self.extensions,
            instance: self.instance,
            catalog: RwLock::new(Arc::new(catalog)),
            rules,
            hub,
            sealer: Sealer::new(keys, self.sealing, self.source.clone()),
            tasks: self
                .tasks
                .map(|(store, options)| Tasks::new(store, options, space, &*self.source)),
            legacy: LegacySessions::new(self.sessions, &self.limits, &self.source),
            source: self.source,
            limits: self.limits,
            load,
            live_places,
            live,
            remotes,
            metrics,
            replay_log: self.replay_log,
            authenticator: self.authenticator,
            access: self.access.build()?,
            on_round: self.on_round,
        })))
    }
}

/// Has the name of an extension the form `prefix/name`, the prefix labels with dots between them?
fn is_prefixed(name: &str) -> bool {
    let ends_plain = |text: &str| text.ends_with(|c: char| c.is_ascii_alphanumeric());
    let is_label = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && ends_plain(text)
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let is_name = |text: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && ends_plain(text)
            && text.chars().all(inner)
    };
    name.split_once('/')
        .is_some_and(|(prefix, name)| prefix.split('.').all(is_label) && is_name(name))
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("name", &self.info.name)
            .field("tools", &self.registered.tools)
            .finish_non_exhaustive()
    }
}
