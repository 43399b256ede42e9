//! [`Gateway`]: the backends of one process, and their entries in its server.

use crate::backend::{Backend, StartError};
use crate::catalog::{Listing, OfferedNames};
use crate::config::{CheckedGateway, GatewayTable, Unavailable};
use crate::metrics::GatewayMetrics;
use crate::pool::ConnectionLimits;
use crate::service::{self, Service, ServiceError};
use crate::support::AskSupport;
use futures_util::future::join_all;
use parking_lot::Mutex;
use refrain::server::{BuildError, Changes, Server, ServerBuilder};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How often idle connections are looked for.
const CLOSE_IDLE_EVERY: Duration = Duration::from_secs(5);

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// A backend that must be up is down.
    #[error(transparent)]
    Start(#[from] Arc<StartError>),
    /// A backend could not be listed.
    #[error("backend {backend}: failed to list: {source}")]
    List {
        /// The backend.
        backend: String,
        /// The reason.
        source: Box<refrain::client::Error>,
    },
    /// Two backends offer the same name.
    #[error(
        "backends {first} and {second} both offer the {kind} {name:?}; set a prefix for one of them, or deny it"
    )]
    Collision {
        /// A backend.
        first: String,
        /// The other backend.
        second: String,
        /// The kind of the entry.
        kind: &'static str,
        /// The name or URI.
        name: String,
    },
    /// The server rejects an entry.
    #[error("backend {backend}: {source}")]
    Entry {
        /// The backend.
        backend: String,
        /// The reason.
        source: BuildError,
    },
}

impl GatewayError {
    fn of(backend: &Backend, error: ServiceError) -> Self {
        match error {
            ServiceError::Start(error) => Self::Start(error),
            ServiceError::List(source) => Self::List {
                backend: backend.spec.name.clone(),
                source: Box::new(source),
            },
        }
    }
}

/// The backends of one process, and their entries in its server.
pub struct Gateway {
    backends: Vec<Arc<Backend>>,
    pub(crate) limits: Arc<ConnectionLimits>,
    metrics: Arc<GatewayMetrics>,
    table: GatewayTable,
    /// The registered entries by backend.
    offered: Mutex<BTreeMap<String, OfferedNames>>,
    started: Mutex<Vec<StartedBackend>>,
    tasks: Mutex<JoinSet<()>>,
}

struct StartedBackend {
    backend: Arc<Backend>,
    service: Option<Service>,
}

impl Gateway {
    /// Creates a gateway. Nothing is started yet.
    pub fn new(config: CheckedGateway) -> Arc<Self> {
        let metrics = GatewayMetrics::new();
        let limits = ConnectionLimits::new(&config.table, metrics.clone());
        let is_only = config.backends.len() == 1;
        let backends = config.backends.into_iter();
        let backends = backends.map(|spec| Backend::new(spec, &limits, &metrics, is_only));
        Arc::new(Self {
            backends: backends.collect(),
            limits,
            metrics,
            table: config.table,
            offered: Mutex::default(),
            started: Mutex::default(),
            tasks: Mutex::default(),
        })
    }

    pub(crate) fn backends(&self) -> &[Arc<Backend>] {
        &self.backends
    }

    /// Starts all backends, lists them, and returns a builder for the server in front of them.
    ///
    /// With `all_required`, fails if one of them is down. Otherwise it is started again in the background.
    pub async fn connect(&self, all_required: bool) -> Result<ServerBuilder, GatewayError> {
        let starting = self.backends.iter().map(async |backend| {
            let slot = self.limits.try_acquire(&backend.spec, None).ok();
            let mut service = Service::connect(backend, slot, AskSupport::ALL).await?;
            let listing = service.list().await?;
            Ok::<_, ServiceError>((service, listing))
        });
        let mut offered: BTreeMap<String, OfferedNames> = BTreeMap::new();
        let mut entries = Vec::new();
        let mut started = Vec::new();
        for (backend, result) in self.backends.iter().zip(join_all(starting).await) {
            let service = match result {
                Ok(service) => Some(service),
                Err(error) if all_required => return Err(GatewayError::of(backend, error)),
                Err(error) => {
                    tracing::warn!(backend = backend.spec.name, %error, "backend is down");
                    None
                }
            };
            if let Some((_, listing)) = &service {
                let (added, names) = listing.offer(backend);
                check_collisions(&offered, backend, &names)?;
                offered.insert(backend.spec.name.clone(), names);
                entries.push(added);
            }
            started.push(StartedBackend {
                backend: backend.clone(),
                service: service.map(|(service, _)| service),
            });
        }
        let builder = named_builder(&started)
            .register_metrics(self.metrics.registry())
            .peers(self.table.peers.iter().map(|peer| peer.as_str()));
        *self.started.lock() = started;
        *self.offered.lock() = offered;
        Ok(entries.into_iter().fold(builder, ServerBuilder::register))
    }

    /// Keeps the entries of the server up to date in the background until [`stop`](Self::stop).
    pub fn start(self: &Arc<Self>, server: &Server) {
        for started in std::mem::take(&mut *self.started.lock()) {
            let StartedBackend { backend, service } = started;
            let running = service::run(self.clone(), backend, server.clone(), service);
            self.tasks.lock().spawn(running);
        }
        let gateway = self.clone();
        self.tasks.lock().spawn(async move {
            loop {
                sleep(CLOSE_IDLE_EVERY).await;
                for backend in &gateway.backends {
                    backend.pool.close_idle();
                }
            }
        });
    }

    /// Closes all connections, and waits for that. Calls in flight lose their backend.
    pub async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        join_all(self.backends.iter().map(|backend| backend.pool.close())).await;
    }

    /// Replaces the registered entries of a backend. An invalid list changes nothing.
    pub(crate) fn register(&self, backend: &Arc<Backend>, server: &Server, listing: &Listing) {
        if let Err(error) = self.try_register(backend, server, listing) {
            tracing::error!(backend = backend.spec.name, %error, "failed to register backend");
        }
    }

    fn try_register(
        &self,
        backend: &Arc<Backend>,
        server: &Server,
        listing: &Listing,
    ) -> Result<(), GatewayError> {
        let mut offered = self.offered.lock();
        let (added, names) = listing.offer(backend);
        check_collisions(&offered, backend, &names)?;
        let before = offered.get(&backend.spec.name).cloned().unwrap_or_default();
        let changed = server.change(before.remove(added));
        changed.map_err(|source| GatewayError::Entry {
            backend: backend.spec.name.clone(),
            source,
        })?;
        offered.insert(backend.spec.name.clone(), names);
        Ok(())
    }

    /// Whether a backend offers the resource at this URI, by itself or by a template.
    pub(crate) fn offers_resource(&self, backend: &Backend, uri: &str) -> bool {
        let offered = self.offered.lock();
        let Some(names) = offered.get(&backend.spec.name) else {
            return false;
        };
        let literal = |template: &str| template.split('{').next().unwrap_or_default().to_owned();
        let mut templates = names.templates.iter();
        names.resources.contains(uri) || templates.any(|it| uri.starts_with(&literal(it)))
    }

    /// Removes the entries of a backend that is down, if the configuration says so.
    pub(crate) fn set_down(&self, backend: &Backend, server: &Server) {
        if self.table.unavailable == Unavailable::List {
            return;
        }
        let removed = self.offered.lock().remove(&backend.spec.name);
        let Some(removed) = removed else {
            return;
        };
        if let Err(error) = server.change(removed.remove(Changes::new())) {
            tracing::error!(backend = backend.spec.name, %error, "failed to hide backend");
        }
    }
}

/// A builder with the name of the only backend, or that of the gateway, and without entries.
fn named_builder(started: &[StartedBackend]) -> ServerBuilder {
    let own = || Server::builder("refrain-gateway", env!("CARGO_PKG_VERSION"));
    let [only] = started else { return own() };
    let Some(service) = &only.service else {
        return own();
    };
    let server = service.client.server();
    let mut builder = match &server.info {
        Some(info) => {
            let mut builder = Server::builder(&info.name, &info.version);
            if let Some(title) = &info.title {
                builder = builder.title(title);
            }
            builder
        }
        None => own(),
    };
    if let Some(instructions) = &server.instructions {
        builder = builder.instructions(instructions);
    }
    builder
}

fn check_collisions(
    offered: &BTreeMap<String, OfferedNames>,
    backend: &Backend,
    names: &OfferedNames,
) -> Result<(), GatewayError> {
    let others = offered
        .iter()
        .filter(|(name, _)| **name != backend.spec.name);
    for (other, theirs) in others {
        if let Some((kind, name)) = names.collision(theirs) {
            return Err(GatewayError::Collision {
                first: other.clone(),
                second: backend.spec.name.clone(),
                kind,
                name: name.to_owned(),
            });
        }
    }
    Ok(())
}
