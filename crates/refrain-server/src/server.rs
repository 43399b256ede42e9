//! The server: what is registered, and what all its rounds share.

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
/// A handler that takes a `State<Server>` is handed the server it runs on: to change what is registered, or to tell that
/// a resource changed.
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
    /// Begins a server of this name and version. The name is also the audience of its tokens, unless another is set.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> ServerBuilder {
        ServerBuilder::new(name, version)
    }

    /// Adds to what is registered and removes from it, all of it or, on an error, nothing. Clients that listen are told
    /// which lists changed.
    ///
    /// Each instance has a catalog of its own: a fleet whose lists are to be the same makes the same changes everywhere.
    pub fn change(&self, changes: Changes) -> Result<(), BuildError> {
        let changed = self.0.catalog.change(&changes)?;
        self.0.subscriptions.lists_changed(changed);
        drop(changes);
        Ok(())
    }

    /// Tells clients that listen for it that the resource at this URI changed.
    ///
    /// Those who may not read it are not told, whatever they were allowed when they began to listen.
    pub fn resource_updated(&self, uri: &str) {
        self.0.subscriptions.resource_updated(uri);
    }

    /// How many clients listen.
    pub fn subscriptions(&self) -> usize {
        self.0.subscriptions.len()
    }

    /// The present entries of the catalog.
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

    /// Puts another key ring in place of the present one, without a restart.
    pub fn reload_keys(&self, keys: KeyRing) {
        self.0.services.sealer.reload(keys);
    }

    /// Hands running flows on at their next checkpoint from now on, ends subscriptions, and has `/readyz` say no.
    pub fn start_draining(&self) {
        self.0.services.limits.start_draining();
        self.0.subscriptions.close();
    }

    /// Gives up the calls in memory that wait here for an answer, of live tools and of older clients, and takes no live tools
    /// on any more: nobody can come back for them. Whoever serves the server in a way of their own says so when they take no
    /// more connections.
    pub fn close_live(&self) {
        self.0.live.close();
    }

    /// Is the server on its way out?
    pub fn is_draining(&self) -> bool {
        self.0.services.limits.is_draining()
    }

    /// Runs tasks that are due until `shutdown` is done; then those that run are handed on, as soon as they can be or at
    /// the end of the drain time. [`serve`](crate::serve) and [`serve_stdio`](crate::serve_stdio) do this by themselves;
    /// whoever mounts the service elsewhere, or wants a process that only works, calls it.
    ///
    /// Without a task store there is nothing to do, and this only waits.
    pub async fn work(&self, shutdown: impl Future<Output = ()>) {
        match &self.0.tasks {
            Some(tasks) => tasks.work(self, shutdown).await,
            None => shutdown.await,
        }
    }

    /// How many tasks run here.
    pub fn running_tasks(&self) -> usize {
        self.0.tasks.as_ref().map_or(0, |tasks| tasks.running())
    }

    /// How many calls are running.
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
