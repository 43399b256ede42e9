//! The facade of the server.

use crate::auth::Auth;
use crate::builder::{BuildError, ServerBuilder};
use crate::catalog::{Catalog, Changes, Entries};
use crate::legacy::LegacySessions;
use crate::limits::ServerLimits;
use crate::live::LiveCalls;
use crate::relay::Relay;
use crate::rounds::Rounds;
use crate::services::Services;
use crate::subscriptions::Subscriptions;
use crate::tasks::Tasks;
use parking_lot::RwLockReadGuard;
use refrain_core::KeyRing;
use refrain_wire::legacy::{InitializeResult, Revision};
use refrain_wire::{DiscoverResult, PROTOCOL_VERSION, Reply, ServerCapabilities, TaskSupport};
use serde_json::{Map, Value};
use std::future::Future;
use std::sync::{Arc, Weak};

/// A server with its handlers, ready to be served over HTTP or stdio. Cloning it is cheap.
///
/// A handler that takes a `State<Server>` gets the server it runs on: to change the catalog, or to report that a resource
/// changed.
#[derive(Clone)]
pub struct Server(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) services: Services,
    pub(crate) instructions: Option<String>,
    pub(crate) extensions: Map<String, Value>,
    pub(crate) instance: Option<String>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) live: Arc<LiveCalls>,
    pub(crate) relay: Arc<Relay>,
    pub(crate) auth: Arc<Auth>,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) tasks: Option<Arc<Tasks>>,
    pub(crate) legacy: Arc<LegacySessions>,
}

/// A server that is not kept alive by this reference.
pub(crate) struct WeakServer(Weak<Inner>);

impl WeakServer {
    pub(crate) fn new(inner: Weak<Inner>) -> Self {
        Self(inner)
    }

    pub(crate) fn upgrade(&self) -> Option<Server> {
        self.0.upgrade().map(Server)
    }
}

impl Server {
    /// Starts to build a server. The name is also the audience of its tokens, unless another is set.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> ServerBuilder {
        ServerBuilder::new(name, version)
    }

    /// Adds and removes tools, prompts and resources: all of them or, on an error, none. Subscribed clients are notified of
    /// the changed lists.
    ///
    /// Each instance has its own catalog: a fleet with equal lists makes the same changes everywhere.
    pub fn change(&self, changes: Changes) -> Result<(), BuildError> {
        let changed = self.0.catalog.change(&changes)?;
        self.0.subscriptions.registry.lists_changed(changed);
        drop(changes);
        Ok(())
    }

    /// Notifies subscribed clients that the resource at this URI changed, if they may still read it.
    pub fn resource_updated(&self, uri: &str) {
        self.0.subscriptions.resource_updated(uri);
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
    pub(crate) fn greet(&self, revision: Revision) -> Reply {
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
        let tool = &catalog.tools.get(tool)?.tool;
        // A live tool cannot become a task, whatever its handler tries.
        tool.task.support().filter(|_| !tool.live)
    }

    /// Replaces the key ring without a restart.
    pub fn reload_keys(&self, keys: KeyRing) {
        self.0.services.sealer.reload(keys);
    }

    /// From now on, hands running flows on at their next checkpoint and has `/readyz` say no. Ends subscriptions.
    pub fn start_draining(&self) {
        self.0.services.limits.start_draining();
        self.0.subscriptions.registry.close();
    }

    /// Gives up the calls in memory that wait for an answer, of live tools and of legacy clients, and rejects new ones. Call it
    /// when your own front accepts no more connections: the answers could not arrive.
    pub fn close_live(&self) {
        self.0.live.close();
    }

    /// Was [`start_draining`](Self::start_draining) called?
    pub fn is_draining(&self) -> bool {
        self.0.services.limits.is_draining()
    }

    /// Runs due tasks until `shutdown` is done; then hands running ones on, as soon as possible or at the end of the drain
    /// time. [`serve`](crate::serve) and [`serve_stdio`](crate::serve_stdio) do this themselves. Call it if you mount the
    /// service elsewhere, or want a process that only runs tasks. Without a task store it only waits.
    pub async fn work(&self, shutdown: impl Future<Output = ()>) {
        match &self.0.tasks {
            Some(tasks) => tasks.work(self, shutdown).await,
            None => shutdown.await,
        }
    }

    /// The number of tasks that run here.
    pub fn running_tasks(&self) -> usize {
        self.0.tasks.as_ref().map_or(0, |tasks| tasks.running())
    }

    /// The number of running calls.
    pub fn running(&self) -> usize {
        self.0.services.limits.calls.in_use()
    }

    /// The limits the server was built with.
    pub fn limits(&self) -> &ServerLimits {
        &self.0.services.limits
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
