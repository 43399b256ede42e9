//! Subscriptions to changes of lists, resources and tasks.

use crate::client::{Client, ClientInner};
use crate::error::{Error, ErrorKind};
use crate::legacy::LegacySubscription;
use crate::retry::before_timeout;
use crate::transport::{IncomingMessage, LinkExchange};
use refrain_wire::Filter;
use refrain_wire::client::{Request, Task};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;

/// A change that a server announces.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ServerChange {
    /// The list of tools changed.
    Tools,
    /// The list of prompts changed.
    Prompts,
    /// The list of resources or resource templates changed.
    Resources,
    /// The resource at this URI changed.
    Resource(String),
    /// A task changed to this state.
    Task(Box<Task>),
}

/// A subscription to changes. Dropping it unsubscribes.
pub struct ChangeStream {
    inner: Arc<ClientInner>,
    source: ChangeSource,
    granted: Filter,
}

enum ChangeSource {
    Exchange(LinkExchange),
    Legacy(LegacySubscription),
}

impl Client {
    /// Subscribes to changes, and waits for the server's acknowledgement.
    ///
    /// On a legacy connection, this subscribes to resources with `resources/subscribe`, and receives the changes that the
    /// server announces to the whole connection. Equal changes that wait to be read are reported once. The stream ends when
    /// the session or the process is lost: subscribe again then.
    ///
    /// ```no_run
    /// # async fn run(client: refrain_client::Client) -> Result<(), refrain_client::Error> {
    /// use refrain_client::{Filter, ServerChange};
    ///
    /// let filter = Filter { tools: true, ..Filter::default() };
    /// let mut changes = client.listen(&filter).await?;
    /// while let Some(change) = changes.next().await? {
    ///     if change == ServerChange::Tools {
    ///         println!("{} tools", client.tools().await?.len());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn listen(&self, filter: &Filter) -> Result<ChangeStream, Error> {
        Ok(ChangeStream::open(&self.inner, filter).await?)
    }
}

impl ChangeStream {
    pub(crate) async fn open(inner: &Arc<ClientInner>, filter: &Filter) -> Result<Self, ErrorKind> {
        if let Some(legacy) = inner.connection.legacy() {
            let opened = LegacySubscription::open(inner, legacy, filter).await;
            return opened.map(|(subscription, granted)| Self {
                inner: Arc::clone(inner),
                source: ChangeSource::Legacy(subscription),
                granted,
            });
        }
        let mut exchange = inner.begin(Request::listen(filter)).await?;
        loop {
            let message = before_timeout(inner.setup.limits.silence, exchange.next()).await?;
            if is_end(&message)? {
                let why = "the server ended the subscription";
                return Err(ErrorKind::ConnectionLost(why.into()));
            }
            if let IncomingMessage::Notification { method, params } = message
                && method == "notifications/subscriptions/acknowledged"
            {
                return Ok(Self {
                    inner: Arc::clone(inner),
                    source: ChangeSource::Exchange(exchange),
                    granted: granted(params.as_deref()),
                });
            }
        }
    }

    /// The changes that the server agreed to announce.
    pub fn granted(&self) -> &Filter {
        &self.granted
    }

    /// The next change, or `None` when the server ends the subscription.
    pub async fn next(&mut self) -> Result<Option<ServerChange>, Error> {
        let change = match &mut self.source {
            ChangeSource::Exchange(exchange) => next_change(exchange).await?,
            ChangeSource::Legacy(subscription) => subscription.next().await,
        };
        if let Some(change) = &change {
            self.inner.invalidate_cache(change);
        }
        Ok(change)
    }
}

impl std::fmt::Debug for ChangeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeStream")
            .field("granted", &self.granted)
            .finish_non_exhaustive()
    }
}

impl ClientInner {
    fn invalidate_cache(&self, change: &ServerChange) {
        let mut cache = self.connection.cache.lock();
        match change {
            ServerChange::Tools => cache.invalidate("tools/list"),
            ServerChange::Prompts => cache.invalidate("prompts/list"),
            ServerChange::Resources => {
                cache.invalidate("resources/list");
                cache.invalidate("resources/templates/list");
            }
            ServerChange::Resource(_) => cache.invalidate("resources/read"),
            ServerChange::Task(_) => {}
        }
    }
}

async fn next_change(exchange: &mut LinkExchange) -> Result<Option<ServerChange>, ErrorKind> {
    loop {
        let message = exchange.next().await?;
        if is_end(&message)? {
            tracing::debug!(?message, "subscription ended");
            return Ok(None);
        }
        if let IncomingMessage::Notification { method, params } = message
            && let Some(change) = read_change(&method, params.as_deref())
        {
            return Ok(Some(change));
        }
    }
}

/// Whether the message ends the subscription: a result or a cancellation.
fn is_end(message: &IncomingMessage) -> Result<bool, ErrorKind> {
    match message {
        IncomingMessage::Response(response) => match &response.outcome {
            Ok(_) => Ok(true),
            Err(failure) => Err(ErrorKind::Rpc(failure.clone())),
        },
        IncomingMessage::Notification { method, .. } => Ok(method == "notifications/cancelled"),
        IncomingMessage::Request { .. } | IncomingMessage::KeepAlive => Ok(false),
    }
}

/// The acknowledged filter; empty if it is malformed.
fn granted(params: Option<&RawValue>) -> Filter {
    #[derive(Deserialize)]
    struct Acknowledged {
        notifications: Filter,
    }
    let read = params.and_then(|params| serde_json::from_str(params.get()).ok());
    read.map_or_else(Filter::default, |read: Acknowledged| read.notifications)
}

/// The change that a notification announces.
pub(crate) fn read_change(method: &str, params: Option<&RawValue>) -> Option<ServerChange> {
    match method {
        "notifications/tools/list_changed" => Some(ServerChange::Tools),
        "notifications/prompts/list_changed" => Some(ServerChange::Prompts),
        "notifications/resources/list_changed" => Some(ServerChange::Resources),
        "notifications/resources/updated" => {
            let params: Value = serde_json::from_str(params?.get()).ok()?;
            params["uri"]
                .as_str()
                .map(|uri| ServerChange::Resource(uri.to_owned()))
        }
        "notifications/tasks" => Task::read(params?)
            .ok()
            .map(|task| ServerChange::Task(Box::new(task))),
        _ => None,
    }
}
