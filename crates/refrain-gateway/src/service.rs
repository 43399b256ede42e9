//! Keeps the lists of one backend up to date.
//!
//! | state | meaning | next |
//! | --- | --- | --- |
//! | connecting | the backend is down or has not been listed | listed, or a pause |
//! | watching | a connection that serves no calls receives the backend's changes | listed again, or connecting |
//! | unwatched | the backend announces no changes | connecting, when a start of it has failed |

use crate::backend::{Backend, StartError};
use crate::catalog::Listing;
use crate::gateway::Gateway;
use crate::pool::Slot;
use crate::support::AskSupport;
use refrain::client::wire::Filter;
use refrain::client::{ChangeStream, Client, Error, ServerChange};
use refrain::server::Server;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The pause between two looks at a backend that announces no changes, and between two starts of one that is down.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long the lists of a new connection may change. Some servers add tools when they know the client's capabilities.
const SETTLE: Duration = Duration::from_millis(300);
/// How often such lists are read.
const SETTLE_READS: usize = 5;

/// A connection that lists a backend.
pub(crate) struct Service {
    pub(crate) client: Client,
    /// The changes that the backend announces.
    changes: Option<ChangeStream>,
    slot: Option<Slot>,
}

/// Why a backend cannot be listed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error(transparent)]
    Start(#[from] Arc<StartError>),
    #[error("failed to list: {0}")]
    List(#[from] Error),
}

impl Service {
    pub(crate) async fn connect(
        backend: &Backend,
        slot: Option<Slot>,
        support: AskSupport,
    ) -> Result<Self, ServiceError> {
        let client = backend.connector.connect_service(support).await?;
        let changes = match filter(&client) {
            Some(filter) => client.listen(&filter).await,
            None => {
                return Ok(Self {
                    client,
                    changes: None,
                    slot,
                });
            }
        };
        let changes = changes.inspect_err(|error| {
            tracing::debug!(backend = backend.spec.name, %error, "backend announces no changes");
        });
        Ok(Self {
            client,
            changes: changes.ok(),
            slot,
        })
    }

    /// Lists the backend, again while it announces changes.
    pub(crate) async fn list(&mut self) -> Result<Listing, ServiceError> {
        let mut listing = Listing::read(&self.client).await?;
        let Some(changes) = &mut self.changes else {
            return Ok(listing);
        };
        for _ in 1..SETTLE_READS {
            let Ok(Ok(Some(_))) = timeout(SETTLE, changes.next()).await else {
                break;
            };
            listing = Listing::read(&self.client).await?;
        }
        Ok(listing)
    }

    /// Whether the backend announces changes of its lists or resources.
    fn can_change(&self) -> bool {
        self.changes.is_some() || has_subscriptions(&self.client)
    }

    pub(crate) async fn close(self) {
        drop(self.changes);
        self.client.close().await;
    }

    /// Gives the connection to the pool, for the first caller.
    fn release(self, backend: &Backend) {
        if let Some(slot) = self.slot {
            backend.pool.add_spare(AskSupport::ALL, self.client, slot);
        }
    }
}

/// The changes that a server announces.
fn filter(client: &Client) -> Option<Filter> {
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
) {
    loop {
        let connected = match service.take() {
            Some(service) => Ok(service),
            None => connect_and_register(&gateway, &backend, &server).await,
        };
        match connected {
            Ok(service) if service.can_change() => {
                watch(&gateway, &backend, &server, service).await;
            }
            Ok(service) => {
                service.release(&backend);
                while !backend.connector.is_down() {
                    sleep(LOOK_EVERY).await;
                }
            }
            Err(error) => {
                tracing::debug!(backend = backend.spec.name, %error, "backend is down");
                gateway.set_down(&backend, &server);
                sleep(LOOK_EVERY).await;
            }
        }
    }
}

async fn connect_and_register(
    gateway: &Gateway,
    backend: &Arc<Backend>,
    server: &Server,
) -> Result<Service, ServiceError> {
    let slot = gateway.limits.try_acquire(&backend.spec, None).ok();
    let mut service = Service::connect(backend, slot, AskSupport::ALL).await?;
    let listing = service.list().await?;
    gateway.register(backend, server, &listing);
    Ok(service)
}

/// Passes on the changes of a backend until its connection ends.
async fn watch(gateway: &Gateway, backend: &Arc<Backend>, server: &Server, mut service: Service) {
    let (client, changes) = (&service.client, service.changes.take());
    let ended = tokio::select! {
        ended = watch_lists(gateway, backend, server, client, changes) => ended,
        ended = watch_resources(gateway, backend, server, client) => ended,
    };
    if let Err(error) = ended {
        tracing::warn!(backend = backend.spec.name, %error, "lost the connection that watches a backend");
    }
}

/// Registers the entries of a backend again whenever it announces a change of its lists.
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
    while changes.next().await?.is_some() {
        gateway.register(backend, server, &Listing::read(client).await?);
    }
    Ok(())
}

/// Subscribes to the resources of a backend that clients are subscribed to.
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
    loop {
        let mut uris: Vec<String> = subscribed.uris().into_iter().collect();
        uris.retain(|uri| gateway.offers_resource(backend, uri));
        let updates = pass_updates(server, client, uris);
        tokio::select! {
            ended = updates => return ended,
            is_open = subscribed.changed() => if !is_open { return Ok(()) },
        }
    }
}

/// Announces updates of these resources until the subscription ends.
async fn pass_updates(server: &Server, client: &Client, uris: Vec<String>) -> Result<(), Error> {
    if uris.is_empty() {
        return pending().await;
    }
    let filter = Filter {
        uris,
        ..Filter::default()
    };
    let mut updates = client.listen(&filter).await?;
    while let Some(change) = updates.next().await? {
        if let ServerChange::Resource(uri) = change {
            server.resource_updated(&uri);
        }
    }
    Ok(())
}

fn has_subscriptions(client: &Client) -> bool {
    let declared = client.server().capabilities.get("resources");
    declared.is_some_and(|declared| declared["subscribe"] == true)
}
