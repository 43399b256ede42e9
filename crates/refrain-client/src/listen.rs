//! Subscriptions to changes at the server.

use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind};
use crate::transport::{Exchange, Incoming, LinkError, Response};
use refrain_wire::Filter;
use refrain_wire::client::{Request, Task};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;

/// A change at the server.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// The list of tools.
    Tools,
    /// The list of prompts.
    Prompts,
    /// The list of resources, or of their templates.
    Resources,
    /// The resource at this URI.
    Resource(String),
    /// A task, as it is now.
    Task(Box<Task>),
}

/// A stream of changes. Dropping it ends it.
pub struct Listening {
    inner: Arc<Inner>,
    exchange: Exchange,
    granted: Filter,
}

impl Client {
    /// Subscribes to changes. Returns when the server has acknowledged the subscription.
    pub async fn listen(&self, filter: &Filter) -> Result<Listening, Error> {
        let listening = Listening::open(&self.inner, filter).await;
        listening.map_err(|error| error.into_kind().into())
    }
}

impl Listening {
    pub(crate) async fn open(inner: &Arc<Inner>, filter: &Filter) -> Result<Self, LinkError> {
        let mut exchange = inner.begin(Request::listen(filter)).await?;
        loop {
            match inner.in_time(exchange.next()).await? {
                Incoming::Notification { method, params }
                    if method == "notifications/subscriptions/acknowledged" =>
                {
                    return Ok(Self {
                        inner: Arc::clone(inner),
                        exchange,
                        granted: granted(params.as_deref()),
                    });
                }
                Incoming::Response(Response {
                    outcome: Err(refusal),
                    ..
                }) => return Err(LinkError::Final(ErrorKind::Refused(refusal))),
                message if is_end(&message) => {
                    let why = "the server ended the subscription".into();
                    return Err(LinkError::Final(ErrorKind::Broken(why)));
                }
                _ => {}
            }
        }
    }

    /// The changes that the server will send.
    pub fn granted(&self) -> &Filter {
        &self.granted
    }

    /// The next change; `None` when the server has ended the subscription.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        loop {
            match self.exchange.next().await.map_err(LinkError::into_kind)? {
                Incoming::Response(Response {
                    outcome: Err(refusal),
                    ..
                }) => return Err(ErrorKind::Refused(refusal).into()),
                message if is_end(&message) => {
                    tracing::debug!(?message, "subscription ended");
                    return Ok(None);
                }
                Incoming::Notification { method, params } => {
                    if let Some(change) = read(&method, params.as_deref()) {
                        self.inner.changed(&change);
                        return Ok(Some(change));
                    }
                }
                _ => {}
            }
        }
    }
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening")
            .field("granted", &self.granted)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Removes stale results from the cache.
    fn changed(&self, change: &Change) {
        let mut cache = self.cache.lock();
        match change {
            Change::Tools => cache.forget("tools/list"),
            Change::Prompts => cache.forget("prompts/list"),
            Change::Resources => {
                cache.forget("resources/list");
                cache.forget("resources/templates/list");
            }
            Change::Resource(_) => cache.forget("resources/read"),
            Change::Task(_) => {}
        }
    }
}

/// Whether the server ends the subscription, by a response or a cancellation.
fn is_end(message: &Incoming) -> bool {
    match message {
        Incoming::Response(_) => true,
        Incoming::Notification { method, .. } => method == "notifications/cancelled",
        Incoming::Request { .. } | Incoming::Alive => false,
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

fn read(method: &str, params: Option<&RawValue>) -> Option<Change> {
    match method {
        "notifications/tools/list_changed" => Some(Change::Tools),
        "notifications/prompts/list_changed" => Some(Change::Prompts),
        "notifications/resources/list_changed" => Some(Change::Resources),
        "notifications/resources/updated" => {
            let params: Value = serde_json::from_str(params?.get()).ok()?;
            params["uri"]
                .as_str()
                .map(|uri| Change::Resource(uri.to_owned()))
        }
        "notifications/tasks" => Task::read(params?)
            .ok()
            .map(|task| Change::Task(Box::new(task))),
        _ => None,
    }
}
