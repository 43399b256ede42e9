//! The server: what is registered, and what all its rounds share.

use crate::auth::{Access, Authenticator, Caller};
use crate::builder::BuildError;
use crate::catalog::{Catalog, Rules, normal};
use crate::changes::Changes;
use crate::legacy::LegacySessions;
use crate::limits::ServerLimits;
use crate::listen::Hub;
use crate::live::{LiveCalls, LivePlaces, Remotes};
use crate::load::Load;
use crate::metrics::Metrics;
use crate::rounds::RoundHook;
use crate::tasks::Tasks;
use parking_lot::{RwLock, RwLockReadGuard};
use refrain_core::{KeyRing, ReplayLog, Sealer, Source};
use refrain_wire::{
    DiscoverResult, InitializeResult, PROTOCOL_VERSION, Reply, Revision, ServerCapabilities,
    TaskSupport,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A server with its handlers, ready to be served over HTTP or stdio. Cloning it is cheap.
///
/// A handler that takes a `State<Server>` is handed the server it runs on: to change what is registered, or to tell that
/// a resource changed.
#[derive(Clone)]
pub struct Server(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) info: Box<RawValue>,
    pub(crate) instructions: Option<String>,
    pub(crate) extensions: Map<String, Value>,
    pub(crate) instance: Option<String>,
    pub(crate) catalog: RwLock<Arc<Catalog>>,
    pub(crate) rules: Rules,
    pub(crate) hub: Arc<Hub>,
    pub(crate) sealer: Sealer,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) limits: ServerLimits,
    pub(crate) load: Arc<Load>,
    pub(crate) live_places: Arc<LivePlaces>,
    pub(crate) live: LiveCalls,
    pub(crate) remotes: Remotes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) replay_log: Option<Arc<dyn ReplayLog>>,
    pub(crate) authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) access: Access,
    pub(crate) on_round: Option<RoundHook>,
    pub(crate) tasks: Option<Tasks>,
    pub(crate) legacy: LegacySessions,
}

impl Server {
    /// Adds to what is registered and removes from it, all of it or, on an error, nothing. Clients that listen are told
    /// which lists changed.
    ///
    /// Each instance has a catalog of its own: a fleet whose lists are to be the same makes the same changes everywhere.
    pub fn change(&self, changes: Changes) -> Result<(), BuildError> {
        // What an author's handlers do when they are dropped is nobody's business here, so nothing that may hold one is
        // dropped under a lock: neither a catalog nor the changes.
        let (old, changed) = loop {
            let now = self.catalog().clone();
            let (new, changed) = now.with(&changes, &self.0.rules)?;
            match self.replace(&now, new) {
                Ok(old) => break (old, changed),
                // Another change came first: this one is made upon it.
                Err(_new) => {}
            }
        };
        self.0.hub.lists_changed(changed);
        drop((old, changes));
        Ok(())
    }

    /// Puts a catalog in the place of the one that it was made of. Gives back the one that is not needed.
    fn replace(&self, made_of: &Arc<Catalog>, new: Catalog) -> Result<Arc<Catalog>, Box<Catalog>> {
        let new = Box::new(new);
        let mut place = self.0.catalog.write();
        if !Arc::ptr_eq(&place, made_of) {
            return Err(new);
        }
        Ok(std::mem::replace(&mut *place, Arc::from(new)))
    }

    /// Tells clients that listen for it that the resource at this URI changed.
    ///
    /// Those who may not read it are not told, whatever they were allowed when they began to listen.
    pub fn resource_updated(&self, uri: &str) {
        let catalog = self.catalog().clone();
        let needed = catalog.scopes_of_resource(uri);
        let may = |caller: &Caller| self.0.access.allow(caller, needed).is_ok();
        self.0.hub.resource_updated(&normal(uri), may);
    }

    /// How many clients listen.
    pub fn subscriptions(&self) -> usize {
        self.0.hub.len()
    }

    pub(crate) fn catalog(&self) -> RwLockReadGuard<'_, Arc<Catalog>> {
        self.0.catalog.read()
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
                cache: self.0.rules.caches.discover,
            })
        };
        catalog.discover.get_or_init(render).clone()
    }

    /// The reply to `initialize`, for a client that speaks this revision.
    pub(crate) fn greet(&self, revision: Revision) -> Reply {
        Reply::complete(InitializeResult {
            protocol_version: revision.as_str(),
            capabilities: self.catalog().capabilities(),
            server_info: &self.0.info,
            instructions: self.0.instructions.as_deref(),
        })
    }

    /// Whether there is a task store.
    pub(crate) fn has_tasks(&self) -> bool {
        self.0.tasks.is_some()
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
        self.0.sealer.reload(keys);
    }

    /// Hands running flows on at their next checkpoint from now on, ends subscriptions, and has `/readyz` say no.
    pub fn start_draining(&self) {
        self.0.load.start_draining();
        self.0.hub.close();
    }

    /// Gives up the calls in memory that wait here for an answer, of live tools and of older clients, and takes no live tools
    /// on any more: nobody can come back for them. Whoever serves the server in a way of their own says so when they take no
    /// more connections.
    pub fn close_live(&self) {
        self.0.live.close();
    }

    /// Is the server on its way out?
    pub fn is_draining(&self) -> bool {
        self.0.load.is_draining()
    }

    /// How many calls are running.
    pub fn running(&self) -> usize {
        self.0.load.running()
    }

    /// The limits the server was built with.
    pub fn limits(&self) -> &ServerLimits {
        &self.0.limits
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("info", &self.0.info.get())
            .field("tools", &self.catalog().tools.len())
            .finish_non_exhaustive()
    }
}
