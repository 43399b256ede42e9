//! Subscriptions to changes at the server.

use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind};
use crate::retry::in_time;
use crate::transport::{Exchange, Incoming};
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
        Ok(Listening::open(&self.inner, filter).await?)
    }
}

impl Listening {
    pub(crate) async fn open(inner: &Arc<Inner>, filter: &Filter) -> Result<Self, ErrorKind> {
        let mut exchange = inner.begin(Request::listen(filter)).await?;
        loop {
            let message = in_time(inner.setup.limits.silence, exchange.next()).await?;
            if is_end(&message)? {
                let why = "the server ended the subscription";
                return Err(ErrorKind::Broken(why.into()));
            }
            if let Incoming::Notification { method, params } = message
                && method == "notifications/subscriptions/acknowledged"
            {
                return Ok(Self {
                    inner: Arc::clone(inner),
                    exchange,
                    granted: granted(params.as_deref()),
                });
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
            let message = self.exchange.next().await.map_err(ErrorKind::from)?;
            if is_end(&message)? {
                tracing::debug!(?message, "subscription ended");
                return Ok(None);
            }
            if let Incoming::Notification { method, params } = message
                && let Some(change) = read(&method, params.as_deref())
            {
                self.inner.changed(&change);
                return Ok(Some(change));
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

/// Whether the server ends the subscription, by a result or a cancellation.
fn is_end(message: &Incoming) -> Result<bool, ErrorKind> {
    match message {
        Incoming::Response(response) => match &response.outcome {
            Ok(_) => Ok(true),
            Err(refusal) => Err(ErrorKind::Refused(refusal.clone())),
        },
        Incoming::Notification { method, .. } => Ok(method == "notifications/cancelled"),
        Incoming::Request { .. } | Incoming::Alive => Ok(false),
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
