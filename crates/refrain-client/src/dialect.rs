//! Dialects that a client is told to speak, and the wrapper that translates the drafts of the protocol.
//!
//! The wrapper is a transport around another one: it takes messages of 2026-07-28, sends those of a draft, and gives back
//! replies of 2026-07-28. The rest of the client sees a server of 2026-07-28. Where a draft needs several messages for
//! one of 2026-07-28, the wrapper sends them:
//!
//! | request | sent |
//! | --- | --- |
//! | `server/discover` | `initialize` and `notifications/initialized`; again when the session is gone |
//! | `tasks/get` | `tasks/get`, and `tasks/result` unless the task works or was cancelled |
//! | `tasks/update` | answers that the first draft's servers acknowledge only by an error, which may come later |
//! | `tasks/cancel` | `tasks/cancel`, and `tasks/get` if that was refused: a task that has ended is no error |

mod exchange;
mod tasks;

pub(crate) use exchange::TranslatorExchange;

use crate::client::Ids;
use crate::transport::{Exchange, Link, LinkError, Outgoing, Response};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use refrain_wire::TaskMethod;
use refrain_wire::client::{DISCOVER, write_initialized};
use refrain_wire::drafts::{Draft, DraftError};
use refrain_wire::legacy::Revision;
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A dialect that a client is told to speak, in place of the newest that the server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// A legacy revision.
    Revision(Revision),
    /// A draft.
    Draft(Draft),
}

impl Dialect {
    /// The dialect of this name: that of a revision, or `draft-0`, `draft-1`, `draft-2`.
    pub fn from_name(name: &str) -> Option<Self> {
        let draft = Draft::from_name(name).map(Self::Draft);
        draft.or_else(|| Revision::parse(name).map(Self::Revision))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Revision(revision) => revision.as_str(),
            Self::Draft(draft) => draft.name(),
        }
    }

    /// The legacy revision, if it is one.
    pub(crate) fn revision(self) -> Option<Revision> {
        match self {
            Self::Draft(_) => None,
            Self::Revision(revision) => Some(revision),
        }
    }

    /// A link over which this dialect is spoken, if the client translates it.
    pub(crate) fn wrap(self, link: Link, ids: Ids) -> Link {
        match self {
            Self::Revision(_) => link,
            Self::Draft(draft) => Link::Translated(Translator(Arc::new(Shared {
                draft,
                link,
                ids,
                greeting: Mutex::default(),
                session: Mutex::default(),
                answered: Mutex::default(),
            }))),
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Draft> for Dialect {
    fn from(draft: Draft) -> Self {
        Self::Draft(draft)
    }
}

impl From<Revision> for Dialect {
    fn from(revision: Revision) -> Self {
        Self::Revision(revision)
    }
}

/// By its name.
impl Serialize for Dialect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Dialect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'_, str>::deserialize(deserializer)?;
        Self::from_name(&name)
            .ok_or_else(|| D::Error::custom(format_args!("the dialect {name:?} is unknown")))
    }
}

/// Why a dialect that was chosen cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialectError {
    /// It has no such request.
    #[error(transparent)]
    Inexpressible(#[from] DraftError),
    /// The server does not speak it.
    #[error("{address} does not speak {dialect}: it asks as servers of earlier revisions do")]
    NotSpoken {
        /// Where the server is.
        address: String,
        /// The dialect.
        dialect: Dialect,
    },
}

impl From<DialectError> for LinkError {
    fn from(error: DialectError) -> Self {
        Self::Final(error.into())
    }
}

/// A transport that speaks a draft.
#[derive(Debug)]
pub(crate) struct Translator(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    draft: Draft,
    link: Link,
    ids: Ids,
    /// The body of the greeting, to greet again.
    greeting: Mutex<Option<String>>,
    session: Mutex<Option<HeaderValue>>,
    /// Answers through a pipe that may still be refused, by the ids of their tasks.
    answered: Mutex<VecDeque<(String, Exchange)>>,
}

impl Translator {
    /// The link that it translates for.
    pub(crate) fn inner(&self) -> &Link {
        &self.0.link
    }

    /// Sends a request.
    pub(crate) async fn open(
        &self,
        request: &Outgoing,
        silence: Duration,
    ) -> Result<TranslatorExchange, LinkError> {
        let shared = &self.0;
        let head = Head::read(&request.body);
        let task = head.task.as_deref().unwrap_or_default();
        let response = match TaskMethod::from_method(&head.method) {
            Some(TaskMethod::Get) => shared.get_task(request, task, silence).await?,
            Some(TaskMethod::Update) => shared.update_task(request, task, silence).await?,
            Some(TaskMethod::Cancel) => shared.cancel_task(request, silence).await?,
            None if head.method == DISCOVER => shared.greet(request, silence).await?,
            None => return shared.open(request, silence).await,
        };
        Ok(TranslatorExchange::ready(shared, response))
    }

    /// Sends something that is not answered. Notifications are the same in all dialects.
    pub(crate) async fn tell(&self, message: &Outgoing) -> Result<(), LinkError> {
        self.0.tell(message.body.clone()).await
    }

    /// Ends the connection.
    pub(crate) async fn close(self) {
        if let Some(shared) = Arc::into_inner(self.0) {
            drop(shared.answered);
            shared.link.close().await;
        }
    }
}

impl Shared {
    /// A message as the draft has it.
    fn translate(&self, request: &Outgoing) -> Result<Outgoing, LinkError> {
        let written = self.draft.write_request(&request.body);
        let (body, exchange) = written.map_err(DialectError::from)?;
        Ok(Outgoing {
            is_silent: exchange.is_silent(),
            body,
            headers: self.headers(),
            translate: Some(Arc::new(move |text| exchange.read_reply(text))),
            ..request.clone()
        })
    }

    fn headers(&self) -> HeaderMap {
        let session = self.session.lock().clone();
        let session = session.map(|id| (HeaderName::from_static("mcp-session-id"), id));
        session.into_iter().collect()
    }

    async fn tell(&self, body: String) -> Result<(), LinkError> {
        let message = Outgoing::unanswered(body, self.headers());
        self.link.tell(&message).await
    }

    /// Opens a session.
    async fn greet(
        self: &Arc<Self>,
        request: &Outgoing,
        silence: Duration,
    ) -> Result<Response, LinkError> {
        *self.session.lock() = None;
        *self.greeting.lock() = Some(request.body.clone());
        let mut exchange = self.open_once(request, silence).await?;
        let response = exchange.response(silence).await?;
        *self.session.lock() = exchange.session();
        drop(exchange);
        if response.outcome.is_ok() {
            self.tell(write_initialized()).await?;
        }
        Ok(response)
    }

    /// Sends a request, and once more in a new session if the server has forgotten the present one.
    async fn open(
        self: &Arc<Self>,
        request: &Outgoing,
        silence: Duration,
    ) -> Result<TranslatorExchange, LinkError> {
        let had_session = self.session.lock().is_some();
        let opened = self.open_once(request, silence).await;
        let is_gone = match &opened {
            Ok(exchange) => exchange.is_session_unknown(),
            Err(error) => error.is_not_found(),
        };
        let greeting = self.greeting.lock().clone();
        match greeting {
            Some(greeting) if had_session && is_gone => {
                let greeting = self.again(&Outgoing::unanswered(greeting, HeaderMap::new()), None);
                self.greet(&greeting, silence).await?;
                self.open_once(request, silence).await
            }
            _ => opened,
        }
    }

    async fn open_once(
        self: &Arc<Self>,
        request: &Outgoing,
        silence: Duration,
    ) -> Result<TranslatorExchange, LinkError> {
        let outgoing = self.translate(request)?;
        let exchange = self.link.open(&outgoing, silence).await?;
        TranslatorExchange::begin(self, request, exchange, silence).await
    }

    /// Sends a request, and waits for its response.
    async fn ask(
        self: &Arc<Self>,
        request: &Outgoing,
        silence: Duration,
    ) -> Result<Response, LinkError> {
        let mut exchange = self.open(request, silence).await?;
        exchange.response(silence).await
    }

    /// The same message with another id, and maybe another method.
    fn again(&self, request: &Outgoing, method: Option<&str>) -> Outgoing {
        let id = self.ids.next();
        let mut message: Value = serde_json::from_str(&request.body).unwrap_or_default();
        message["id"] = id.into();
        if let Some(method) = method {
            message["method"] = method.into();
        }
        Outgoing {
            id: Some(id),
            body: message.to_string(),
            ..request.clone()
        }
    }
}

/// What a request is about.
#[derive(Default)]
struct Head {
    method: String,
    task: Option<String>,
}

impl Head {
    fn read(body: &str) -> Self {
        #[derive(serde::Deserialize)]
        struct Message {
            method: String,
            #[serde(default)]
            params: Params,
        }
        #[derive(Default, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params {
            task_id: Option<String>,
        }
        let read = serde_json::from_str(body);
        read.map_or_else(
            |_| Self::default(),
            |message: Message| Self {
                method: message.method,
                task: message.params.task_id,
            },
        )
    }
}
