//! Keeps the lists of one backend up to date.
//!
//! | state | meaning | next |
//! | --- | --- | --- |
//! | connecting | the backend is down or has not been listed | watching or unwatched; after a failure and a pause, connecting |
//! | watching | a connection that serves no calls receives the backend's changes | connecting, when the connection has ended |
//! | unwatched | the backend announces no changes | connecting, when a start or a ping has failed |

use crate::backend::{Backend, BackendStartError, ConnectionPurpose, check_response};
use crate::catalog::{Availability, BackendLists};
use crate::gateway::Gateway;
use crate::pool::ConnectionPermit;
use crate::support::AskSupport;
use futures_util::FutureExt;
use refrain::client::wire::{Excerpt, Filter, limited_event};
use refrain::client::{ChangeStream, Client, Error, ServerChange};
use refrain::server::Server;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The interval at which a backend that announces no changes is checked, and a backend that is down is started.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The interval between pings of an HTTP server that announces no changes, and the timeout of a ping.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum time between two reads of the lists of a backend that announces changes.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two subscriptions to resources.
const MIN_SUBSCRIBE_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of resources in one subscription.
const MAX_SUBSCRIBED_RESOURCES: usize = 256;
/// How long to wait for a change of the lists of a new connection. Some servers add tools when they
/// know the client's capabilities.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// How many times the changing lists of a new connection are read.
const SETTLE_READS: usize = 5;

/// A connection that lists a backend.
pub(crate) struct Service {
    pub(crate) client: Client,
    /// The changes that the backend announces.
    changes: Option<ChangeStream>,
    /// `None` if the limit of connections was reached.
    permit: Option<ConnectionPermit>,
}

/// Why a backend cannot be listed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error(transparent)]
    Start(#[from] Arc<BackendStartError>),
    #[error("failed to list its entries: {0}")]
    List(#[from] Error),
    #[error("did not list its entries within {} seconds", .0.as_secs())]
    Timeout(Duration),
}

impl Service {
    /// Connects to a backend and lists it, within its start time.
    pub(crate) async fn start(
        backend: &Backend,
        permit: Option<ConnectionPermit>,
    ) -> Result<(Self, BackendLists), ServiceError> {
        let mut service = Self::connect(backend, permit, AskSupport::ALL).await?;
        let limit = backend.spec.start_timeout;
        match timeout(limit, service.list(backend)).await {
            Ok(listed) => Ok((service, listed?)),
            Err(_) => Err(ServiceError::Timeout(limit)),
        }
    }

    pub(crate) async fn connect(
        backend: &Backend,
        permit: Option<ConnectionPermit>,
        support: AskSupport,
    ) -> Result<Self, ServiceError> {
        let client = backend
            .connector
            .connect(support, ConnectionPurpose::Lists)
            .await?;
        let changes = match change_filter(&client) {
            Some(filter) => match timeout(backend.spec.start_timeout, client.listen(&filter)).await
            {
                Ok(Ok(changes)) => Some(changes),
                Ok(Err(error)) => {
                    tracing::debug!(backend = backend.spec.name, %error, "backend announces no changes");
                    None
                }
                Err(_) => None,
            },
            None => None,
        };
        Ok(Self {
            client,
            changes,
            permit,
        })
    }

    /// Lists the backend, and repeats this while it announces changes.
    pub(crate) async fn list(&mut self, backend: &Backend) -> Result<BackendLists, ServiceError> {
        let mut listing = BackendLists::read(&backend.spec, &self.client).await?;
        let Some(changes) = &mut self.changes else {
            return Ok(listing);
        };
        for _ in 1..SETTLE_READS {
            let Ok(Ok(Some(_))) = timeout(SETTLE_TIME, changes.next()).await else {
                break;
            };
            listing = BackendLists::read(&backend.spec, &self.client).await?;
        }
        Ok(listing)
    }

    /// Whether the backend announces changes of its lists or resources.
    fn announces_changes(&self) -> bool {
        self.changes.is_some() || has_subscriptions(&self.client)
    }

    pub(crate) async fn close(self) {
        drop(self.changes);
        self.client.close().await;
    }

    /// Gives the connection to the pool, for the first caller.
    fn release(self, backend: &Backend) {
        if let Some(permit) = self.permit {
            backend.pool.add_spare(AskSupport::ALL, self.client, permit);
        }
    }
}

/// The lists whose changes a server announces; `None` if it announces no changes.
fn change_filter(client: &Client) -> Option<Filter> {
    let has = |capability: &str| {
        let declared = client.server().capabilities.get(capability);
        declared.is_some_and(|declared| declared["listChanged"] == true)
    };
    let filter = Filter {
        tools: has("tools"),
        prompts: has("prompts"),
        resources: has("resources"),
        ..Filter::default()
    };
    (filter != Filter::default()).then_some(filter)
}

/// Keeps the entries of a backend registered, until the gateway stops.
pub(crate) async fn run(
    gateway: Arc<Gateway>,
    backend: Arc<Backend>,
    server: Server,
    mut service: Option<Service>,
    mut stopping: watch::Receiver<bool>,
) {
    tokio::select! {
        () = keep_registered(&gateway, &backend, &server, &mut service) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    if let Some(service) = service {
        service.close().await;
    }
}

/// Goes through the states of the module documentation, without an end.
async fn keep_registered(
    gateway: &Gateway,
    backend: &Arc<Backend>,
    server: &Server,
    current: &mut Option<Service>,
) {
    loop {
        let service = match current {
            Some(service) => service,
            None => match connect_and_register(gateway, backend, server).await {
                Ok(service) => current.insert(service),
                Err(error) => {
                    tracing::debug!(backend = backend.spec.name, %error, "backend is down");
                    gateway.set_down(backend, server);
                    sleep(CHECK_INTERVAL).await;
                    continue;
                }
            },
        };
        let is_shared = backend.connector.is_shared() == Some(true);
        let announces_changes = service.announces_changes();
        if announces_changes {
            watch_changes(gateway, backend, server, service).await;
        } else if is_shared {
            ping(backend, &service.client).await;
        }
        let Some(service) = current.take() else {
            continue;
        };
        if announces_changes || is_shared {
            gateway.limits.close(service.client, service.permit);
            sleep(CHECK_INTERVAL).await;
        } else {
            service.release(backend);
            while !backend.connector.is_down() {
                sleep(CHECK_INTERVAL).await;
            }
        }
    }
}

/// Pings a server until it does not respond.
async fn ping(backend: &Backend, client: &Client) {
    while let Ok(pinged) = timeout(PING_INTERVAL, client.ping()).await
        && check_response(pinged).is_ok()
    {
        sleep(PING_INTERVAL).await;
    }
    limited_event!(
        WARN,
        backend = backend.spec.name,
        "backend does not respond to pings"
    );
}

async fn connect_and_register(
    gateway: &Gateway,
    backend: &Arc<Backend>,
    server: &Server,
) -> Result<Service, ServiceError> {
    let permit = gateway.limits.try_acquire(&backend.spec, None).ok();
    let (service, listing) = Service::start(backend, permit).await?;
    gateway.register(backend, server, listing, Availability::Up);
    Ok(service)
}

/// Passes on the changes of a backend until its connection ends.
async fn watch_changes(
    gateway: &Gateway,
    backend: &Arc<Backend>,
    server: &Server,
    service: &mut Service,
) {
    let (client, changes) = (&service.client, service.changes.take());
    let ended = tokio::select! {
        ended = watch_lists(gateway, backend, server, client, changes) => ended,
        ended = watch_resources(gateway, backend, server, client) => ended,
        ended = watch_process(client) => ended,
    };
    if let Err(error) = ended {
        let (backend, error) = (&backend.spec.name, Excerpt(error));
        limited_event!(WARN, backend, %error, "lost the connection that watches a backend");
    }
}

/// Registers the entries of a backend again when it has announced changes of its lists.
async fn watch_lists(
    gateway: &Gateway,
    backend: &Arc<Backend>,
    server: &Server,
    client: &Client,
    changes: Option<ChangeStream>,
) -> Result<(), Error> {
    let Some(mut changes) = changes else {
        return pending().await;
    };
    let mut has_changed = false;
    while has_changed || changes.next().await?.is_some() {
        let listing = BackendLists::read(&backend.spec, client).await?;
        gateway.register(backend, server, listing, Availability::Up);
        has_changed = false;
        let next_read = Instant::now() + MIN_LIST_INTERVAL;
        while let Ok(change) = timeout_at(next_read, changes.next()).await {
            if change?.is_none() {
                return Ok(());
            }
            has_changed = true;
        }
    }
    Ok(())
}

/// Subscribes to the resources of a backend that clients are subscribed to. A rejected subscription is repeated later.
async fn watch_resources(
    gateway: &Gateway,
    backend: &Arc<Backend>,
    server: &Server,
    client: &Client,
) -> Result<(), Error> {
    if !has_subscriptions(client) {
        return pending().await;
    }
    let mut subscribed = server.subscribed_resources();
    let mut updates = None;
    loop {
        let mut uris: Vec<String> = subscribed.uris().into_iter().collect();
        uris.retain(|uri| gateway.offers_resource(backend, uri));
        uris.truncate(MAX_SUBSCRIBED_RESOURCES);
        // The previous subscription ends only when the next one has begun.
        let next = subscribe(client, uris).await.unwrap_or_else(|error| {
            let (backend, error) = (&backend.spec.name, Excerpt(error));
            limited_event!(WARN, backend, %error, "failed to subscribe to resources");
            None
        });
        let previous = std::mem::replace(&mut updates, next);
        if let Some(mut previous) = previous {
            while let Some(Ok(Some(change))) = previous.next().now_or_never() {
                announce(server, change);
            }
        }
        tokio::select! {
            () = pass_updates(server, &mut updates) => {}
            is_open = subscribed.changed() => if !is_open { return Ok(()) },
        }
        sleep(MIN_SUBSCRIBE_INTERVAL).await;
    }
}

async fn subscribe(client: &Client, uris: Vec<String>) -> Result<Option<ChangeStream>, Error> {
    if uris.is_empty() {
        return Ok(None);
    }
    let filter = Filter {
        uris,
        ..Filter::default()
    };
    client.listen(&filter).await.map(Some)
}

/// Announces updates of resources until the subscription ends.
async fn pass_updates(server: &Server, updates: &mut Option<ChangeStream>) {
    let Some(updates) = updates else {
        return pending().await;
    };
    while let Ok(Some(change)) = updates.next().await {
        announce(server, change);
    }
    // The backend ended the subscription. Wait before the next one.
    sleep(CHECK_INTERVAL).await;
}

fn announce(server: &Server, change: ServerChange) {
    if let ServerChange::Resource(uri) = change {
        server.resource_updated(&uri);
    }
}

/// Waits until the server process has exited.
async fn watch_process(client: &Client) -> Result<(), Error> {
    while !client.has_exited() {
        sleep(CHECK_INTERVAL).await;
    }
    Ok(())
}

fn has_subscriptions(client: &Client) -> bool {
    let declared = client.server().capabilities.get("resources");
    declared.is_some_and(|declared| declared["subscribe"] == true)
}
