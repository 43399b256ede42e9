//! [`Gateway`]: the backends of one process, and their entries in its server.

use crate::backend::{Backend, BackendStartError};
use crate::catalog::{Availability, BackendLists, OfferedNames, is_denied};
use crate::config::{BackendTransport, CheckedGateway, GatewayTable, Unavailable};
use crate::metrics::GatewayMetrics;
use crate::pool::ConnectionLimits;
use crate::service::{self, Service, ServiceError};
use futures_util::future::join_all;
use parking_lot::Mutex;
use refrain::client::wire::{Excerpt, limited_event};
use refrain::server::{BuildError, Changes, Server, ServerBuilder};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long the first start of a backend may delay the start of a gateway without `all_required`.
const FIRST_START_TIMEOUT: Duration = Duration::from_secs(25);
/// The interval at which idle connections are closed.
const CLOSE_IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// A backend that must be up is down.
    #[error(transparent)]
    Start(#[from] Arc<BackendStartError>),
    /// A backend could not be listed.
    #[error("backend {backend:?}: failed to list its entries: {source}")]
    List {
        /// The backend.
        backend: String,
        /// The reason.
        source: Box<refrain::client::Error>,
    },
    /// A backend did not list its entries in time.
    #[error("backend {backend:?} did not list its entries within {} seconds", limit.as_secs())]
    ListTimeout {
        /// The backend.
        backend: String,
        /// The limit.
        limit: Duration,
    },
    /// Two backends offer the same name.
    #[error(
        "backends {first} and {second} both offer the {kind} {name:?}; deny it for one of them{}",
        if kind.starts_with("resource") { "" } else { ", or set a prefix" }
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
    #[error("backend {backend:?}: {source}")]
    Entry {
        /// The backend.
        backend: String,
        /// The reason.
        source: BuildError,
    },
}

impl GatewayError {
    fn new(backend: &Backend, error: ServiceError) -> Self {
        match error {
            ServiceError::Start(error) => Self::Start(error),
            ServiceError::List(source) => Self::List {
                backend: backend.spec.name.clone(),
                source: Box::new(source),
            },
            ServiceError::Timeout(limit) => Self::ListTimeout {
                backend: backend.spec.name.clone(),
                limit,
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
    offered: Mutex<BTreeMap<String, OfferedEntries>>,
    /// The backends from `connect`, until `start` takes them.
    started: Mutex<Vec<StartedBackend>>,
    /// The background tasks, until `stop` waits for them.
    tasks: Mutex<JoinSet<()>>,
    /// Becomes true when the gateway stops.
    stopping: watch::Sender<bool>,
}

/// The registered entries of a backend.
struct OfferedEntries {
    names: OfferedNames,
    listing: BackendLists,
    availability: Availability,
}

/// A backend after its first start. `service` is `None` if the start failed.
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
            stopping: watch::Sender::default(),
        })
    }

    pub(crate) fn backends(&self) -> &[Arc<Backend>] {
        &self.backends
    }

    /// Starts all backends, lists them, and returns a builder for the server in front of them. The server's replay log is in
    /// memory; gateways of a fleet need a shared replay log, so that a repeated call reaches its backend once.
    ///
    /// With `all_required`, fails if a backend is down. Otherwise such a backend is started again in the background.
    pub async fn connect(&self, all_required: bool) -> Result<ServerBuilder, GatewayError> {
        let starting = self.backends.iter().map(async |backend| {
            let name = &backend.spec.name;
            match backend.spec.transport {
                BackendTransport::Process { .. } => {
                    tracing::info!(backend = name, "starting backend");
                }
                BackendTransport::Http { .. } => {
                    tracing::info!(backend = name, "connecting to backend");
                }
            }
            let permit = self.limits.try_acquire(&backend.spec, None).ok();
            let starting = Service::start(backend, permit);
            if all_required {
                return starting.await;
            }
            // A slow backend must not delay the others. It is started again in the background.
            let started = timeout(FIRST_START_TIMEOUT, starting).await;
            started.unwrap_or(Err(ServiceError::Timeout(FIRST_START_TIMEOUT)))
        });
        let mut offered: BTreeMap<String, OfferedEntries> = BTreeMap::new();
        let mut entries = Vec::new();
        let mut started = Vec::new();
        for (backend, result) in self.backends.iter().zip(join_all(starting).await) {
            let service = match result {
                Ok((service, listing)) => {
                    let (added, names) = listing.offer(backend, Availability::Up);
                    check_collisions(all_names(&offered), &backend.spec.name, &names)?;
                    let new = OfferedEntries {
                        names,
                        listing,
                        availability: Availability::Up,
                    };
                    offered.insert(backend.spec.name.clone(), new);
                    entries.push(added);
                    Some(service)
                }
                Err(error) if all_required => return Err(GatewayError::new(backend, error)),
                Err(error) => {
                    limited_event!(WARN, backend = backend.spec.name, %error, "backend is down");
                    None
                }
            };
            started.push(StartedBackend {
                backend: backend.clone(),
                service,
            });
        }
        let builder = named_builder(&started)
            // The default audience is the name, which depends on whether the backend is up. All gateways of a fleet need
            // the same audience.
            .audience("refrain-gateway")
            .single_instance()
            .register_metrics(self.metrics.registry())
            .peers(&self.table.peers);
        *self.started.lock() = started;
        *self.offered.lock() = offered;
        Ok(entries.into_iter().fold(builder, ServerBuilder::register))
    }

    /// Keeps the entries of the server up to date in the background until [`stop`](Self::stop).
    pub fn start(self: &Arc<Self>, server: &Server) {
        for started in std::mem::take(&mut *self.started.lock()) {
            let StartedBackend { backend, service } = started;
            let stopping = self.stopping.subscribe();
            let running = service::run(self.clone(), backend, server.clone(), service, stopping);
            self.tasks.lock().spawn(running);
        }
        let (gateway, mut stopping) = (self.clone(), self.stopping.subscribe());
        self.tasks.lock().spawn(async move {
            let stopped = stopping.wait_for(|stopping| *stopping);
            let mut stopped = pin!(stopped);
            while timeout(CLOSE_IDLE_INTERVAL, &mut stopped).await.is_err() {
                for backend in &gateway.backends {
                    backend.pool.close_idle();
                }
            }
        });
    }

    /// Closes all connections, and waits until they are closed. Calls in flight lose their backend.
    pub async fn stop(&self) {
        self.stopping.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.join_all().await;
        let started = std::mem::take(&mut *self.started.lock());
        let services = started.into_iter().filter_map(|started| started.service);
        join_all(services.map(Service::close)).await;
        join_all(self.backends.iter().map(|backend| backend.pool.close())).await;
        self.limits.closed().await;
    }

    /// Replaces the registered entries of a backend. If another backend already offers a name in the list, nothing
    /// changes.
    pub(crate) fn register(
        &self,
        backend: &Arc<Backend>,
        server: &Server,
        listing: BackendLists,
        availability: Availability,
    ) {
        if let Err(error) = self.try_register(backend, server, listing, availability) {
            let (backend, error) = (&backend.spec.name, Excerpt(error));
            limited_event!(ERROR, backend, %error, "failed to register backend");
        }
    }

    fn try_register(
        &self,
        backend: &Arc<Backend>,
        server: &Server,
        listing: BackendLists,
        availability: Availability,
    ) -> Result<(), GatewayError> {
        let mut offered = self.offered.lock();
        let (added, names) = listing.offer(backend, availability);
        let name = &backend.spec.name;
        check_collisions(all_names(&offered), name, &names)?;
        let changes = match offered.get(name) {
            Some(before) => before.names.remove(added),
            None => added,
        };
        let changed = server.change(changes);
        changed.map_err(|source| GatewayError::Entry {
            backend: name.clone(),
            source,
        })?;
        let new = OfferedEntries {
            names,
            listing,
            availability,
        };
        offered.insert(name.clone(), new);
        Ok(())
    }

    /// Whether a backend offers the resource at this URI, by itself or by a template.
    pub(crate) fn offers_resource(&self, backend: &Backend, uri: &str) -> bool {
        let offered = self.offered.lock();
        let Some(OfferedEntries { names, .. }) = offered.get(&backend.spec.name) else {
            return false;
        };
        let starts_with = |template: &String| {
            let literal = template.split('{').next().unwrap_or_default();
            !literal.is_empty() && uri.starts_with(literal)
        };
        let is_offered = names.resources.contains(uri) || names.templates.iter().any(starts_with);
        is_offered && !is_denied(&backend.spec, uri)
    }

    /// Marks the entries of a backend that is down as unavailable, or removes them, as the configuration says.
    pub(crate) fn set_down(&self, backend: &Arc<Backend>, server: &Server) {
        let mut offered = self.offered.lock();
        let Some(entry) = offered.get_mut(&backend.spec.name) else {
            return;
        };
        if entry.availability == Availability::Down {
            return;
        }
        entry.availability = Availability::Down;
        match self.table.unavailable {
            Unavailable::List => {
                let listing = std::mem::take(&mut entry.listing);
                drop(offered);
                self.register(backend, server, listing, Availability::Down);
            }
            Unavailable::Hide => {
                let changed = server.change(entry.names.remove(Changes::new()));
                offered.remove(&backend.spec.name);
                if let Err(error) = changed {
                    let (backend, error) = (&backend.spec.name, Excerpt(error));
                    limited_event!(ERROR, backend, %error, "failed to hide backend");
                }
            }
        }
    }
}

/// A builder with the name of the only backend, or that of the gateway, and without entries.
fn named_builder(started: &[StartedBackend]) -> ServerBuilder {
    let default = || Server::builder("refrain-gateway", env!("CARGO_PKG_VERSION"));
    let [only] = started else { return default() };
    let Some(service) = &only.service else {
        return default();
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
        None => default(),
    };
    if let Some(instructions) = &server.instructions {
        builder = builder.instructions(instructions);
    }
    builder
}

fn all_names(
    offered: &BTreeMap<String, OfferedEntries>,
) -> impl Iterator<Item = (&String, &OfferedNames)> {
    offered
        .iter()
        .map(|(backend, entries)| (backend, &entries.names))
}

/// Fails if a backend offers a name that another one already offers.
pub(crate) fn check_collisions<'a>(
    offered: impl IntoIterator<Item = (&'a String, &'a OfferedNames)>,
    backend: &str,
    names: &OfferedNames,
) -> Result<(), GatewayError> {
    for (other, theirs) in offered.into_iter().filter(|(other, _)| *other != backend) {
        if let Some((kind, name)) = names.collision(theirs) {
            return Err(GatewayError::Collision {
                first: other.clone(),
                second: backend.to_owned(),
                kind,
                name: name.to_owned(),
            });
        }
    }
    Ok(())
}
