//! The server: owns all subsystems and delegates to them.

use crate::auth::Auth;
use crate::builder::{BuildError, ServerBuilder};
use crate::catalog::{Catalog, Changes, Entries};
use crate::http::PublishedCard;
use crate::legacy::LegacySessions;
use crate::limits::ServerLimits;
use crate::live::LiveCalls;
use crate::relay::Relay;
use crate::rounds::Rounds;
use crate::services::Services;
use crate::skills::Skills;
use crate::subscriptions::{SubscribedResources, Subscriptions};
use crate::tasks::Tasks;
use http::HeaderName;
use parking_lot::RwLockReadGuard;
use refrain_core::KeyRing;
use refrain_wire::legacy::{InitializeResult, Revision};
use refrain_wire::{DiscoverResult, PROTOCOL_VERSION, Reply, ServerCapabilities, TaskSupport};
use serde_json::{Map, Value};
use std::future::Future;
use std::sync::{Arc, Weak};

/// A server with its handlers, ready to be served over HTTP or stdio. Cloning is cheap.
///
/// A handler can take its own server as `State<Server>`, to change the catalog or report changed resources.
#[derive(Clone)]
pub struct Server(pub(crate) Arc<ServerInner>);

/// The subsystems and settings of a server.
pub(crate) struct ServerInner {
    pub(crate) services: Services,
    pub(crate) instructions: Option<String>,
    pub(crate) extensions: Map<String, Value>,
    /// The name of this instance, set with `explain_as`.
    pub(crate) instance: Option<String>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) live: Arc<LiveCalls>,
    pub(crate) relay: Arc<Relay>,
    pub(crate) auth: Arc<Auth>,
    /// The header in which a proxy names the client's address.
    pub(crate) client_address_header: Option<HeaderName>,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) tasks: Option<Arc<Tasks>>,
    pub(crate) server_card: Option<PublishedCard>,
    pub(crate) skills: Skills,
    pub(crate) legacy: Arc<LegacySessions>,
}

/// A reference that does not keep the server alive; see [`Server::downgrade`].
#[derive(Clone)]
pub struct WeakServer(Weak<ServerInner>);

impl WeakServer {
    pub(crate) fn new(inner: Weak<ServerInner>) -> Self {
        Self(inner)
    }

    /// The server, if it still exists.
    pub fn upgrade(&self) -> Option<Server> {
        self.0.upgrade().map(Server)
    }
}

impl Server {
    /// Starts to build a server. The name is also the default audience of its tokens.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> ServerBuilder {
        ServerBuilder::new(name, version)
    }

    /// A reference that does not keep the server alive, for Tokio tasks that handlers start in the
    /// background.
    ///
    /// ```
    /// # use refrain::server::Server;
    /// let server = Server::builder("docs", "1.0").build()?;
    /// let weak = server.downgrade();
    /// assert!(weak.upgrade().is_some());
    /// drop(server);
    /// assert!(weak.upgrade().is_none());
    /// # Ok::<(), refrain::server::BuildError>(())
    /// ```
    pub fn downgrade(&self) -> WeakServer {
        WeakServer::new(Arc::downgrade(&self.0))
    }

    /// Adds and removes tools, prompts and resources, and notifies subscribed clients. On an error nothing is changed.
    ///
    /// Only this instance changes: in a fleet, make the same changes on every instance.
    pub fn change(&self, changes: Changes) -> Result<(), BuildError> {
        let changed = self.0.catalog.change(&changes)?;
        self.0.subscriptions.registry.lists_changed(changed);
        drop(changes);
        Ok(())
    }

    /// Reports that the resource at this URI changed. Clients that are subscribed to it, and may read it, are notified.
    pub fn resource_updated(&self, uri: &str) {
        self.0.subscriptions.resource_updated(uri);
    }

    /// The URIs of the resources that clients are subscribed to at this instance, with `subscriptions/listen` or with
    /// `resources/subscribe` and a stream for notifications. A proxy can subscribe to the same resources at its backend, and
    /// call [`resource_updated`](Self::resource_updated) when they change.
    ///
    /// Clients choose the URIs: a resource with such a URI need not exist. Their number is limited by
    /// [`ServerLimits::subscriptions`] and [`ServerLimits::subscribed_resources`].
    ///
    /// ```
    /// # use refrain::server::Server;
    /// # async fn example(server: Server) {
    /// let mut subscribed = server.subscribed_resources();
    /// while subscribed.changed().await {
    ///     for uri in subscribed.uris() {
    ///         // Subscribe to the URI at the backend.
    /// #       drop(uri);
    ///     }
    /// }
    /// # }
    /// ```
    pub fn subscribed_resources(&self) -> SubscribedResources {
        SubscribedResources::new(&self.0.subscriptions.registry)
    }

    /// The number of open subscriptions.
    pub fn subscriptions(&self) -> usize {
        self.0.subscriptions.registry.len()
    }

    pub(crate) fn catalog(&self) -> RwLockReadGuard<'_, Arc<Entries>> {
        self.0.catalog.entries()
    }

    /// The reply to `server/discover`.
    pub(crate) fn discover(&self) -> Reply {
        let catalog = self.catalog();
        let render = || {
            Reply::complete(DiscoverResult {
                supported_versions: vec![PROTOCOL_VERSION.to_owned()],
                capabilities: ServerCapabilities {
                    extensions: self.0.extensions.clone(),
                    ..catalog.capabilities()
                },
                instructions: self.0.instructions.clone(),
                cache: self.0.catalog.rules.caches.discover,
            })
        };
        catalog.discover.get_or_init(render).clone()
    }

    /// The reply to `initialize`, for a client that speaks this revision.
    pub(crate) fn initialize(&self, revision: Revision) -> Reply {
        Reply::complete(InitializeResult {
            protocol_version: revision.as_str(),
            capabilities: self.catalog().capabilities(),
            server_info: &self.0.services.info,
            instructions: self.0.instructions.as_deref(),
        })
    }

    /// Whether a call of this tool may or must become a task.
    pub(crate) fn task_support(&self, tool: &str) -> Option<TaskSupport> {
        let catalog = self.catalog();
        catalog.tools.get(tool)?.tool.task.support()
    }

    /// Replaces the key ring without a restart.
    pub fn reload_keys(&self, keys: KeyRing) {
        self.0.services.sealer.reload(keys);
    }

    /// Starts draining: running flows move to other instances at their next checkpoint, `/readyz` returns 503, and
    /// subscriptions end.
    pub fn start_draining(&self) {
        self.0.services.limits.start_draining();
        self.0.subscriptions.registry.close();
    }

    /// Fails live calls that wait for an answer, and rejects new live calls. Call this when your own HTTP server stops
    /// accepting connections, since answers can no longer arrive.
    pub fn close_live(&self) {
        self.0.live.close();
    }

    /// Whether [`start_draining`](Self::start_draining) was called.
    pub fn is_draining(&self) -> bool {
        self.0.services.limits.is_draining()
    }

    /// Runs due tasks until `shutdown` resolves, then releases running tasks to other instances within the drain time.
    ///
    /// [`serve`](crate::serve) and [`serve_stdio`](crate::serve_stdio) already do this. Call it if you mount the service
    /// yourself, or for a process that only runs tasks. Without a task store it only waits for `shutdown`.
    pub async fn work(&self, shutdown: impl Future<Output = ()>) {
        match &self.0.tasks {
            Some(tasks) => tasks.work(self, shutdown).await,
            None => shutdown.await,
        }
    }

    /// The number of tasks running on this instance.
    pub fn running_tasks(&self) -> usize {
        self.0.tasks.as_ref().map_or(0, |tasks| tasks.running())
    }

    /// The task store. For tests.
    #[cfg(feature = "testing")]
    pub fn task_store(&self) -> Option<Arc<dyn refrain_store::TaskStore>> {
        self.0.tasks.as_ref().map(|tasks| tasks.store.clone())
    }

    /// The number of calls in flight, including other requests that count as calls.
    pub fn running(&self) -> usize {
        self.0.services.limits.calls.in_use()
    }

    /// The configured limits.
    pub fn limits(&self) -> &ServerLimits {
        &self.0.services.limits
    }
}

impl std::fmt::Debug for WeakServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakServer")
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("info", &self.0.services.info.get())
            .field("tools", &self.catalog().tools.len())
            .finish_non_exhaustive()
    }
}
