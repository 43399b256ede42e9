//! Dialects that a client can be set to speak, and the transport that translates drafts of the protocol.
//!
//! It wraps another transport: it takes messages of 2026-07-28, sends those of a draft, and translates the replies back.
//! Some requests of 2026-07-28 become several messages of a draft:
//!
//! | request | sent |
//! | --- | --- |
//! | `server/discover` | `initialize` and `notifications/initialized`; again when the session is gone |
//! | `tasks/get` | `tasks/get`, and `tasks/result` unless the task is working or cancelled |
//! | `tasks/update` | answers; servers of the first draft respond only with an error, which may come later |
//! | `tasks/cancel` | `tasks/cancel`, and `tasks/get` if that was refused: a task that has ended is no error |

mod exchange;
mod tasks;

pub(crate) use exchange::TranslatorExchange;

use crate::client::Ids;
use crate::transport::{Exchange, Link, LinkError, LinkResult, Outgoing, Response};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use refrain_wire::TaskMethod;
use refrain_wire::client::{DISCOVER, write_initialized};
use refrain_wire::drafts::{Draft, DraftError};
use refrain_wire::legacy::Revision;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// A dialect that a client speaks in place of the newest revision of the server. It is stored by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

    /// The link, behind a translation if the dialect needs one.
    pub(crate) fn wrap(self, link: Link, ids: Ids) -> Link {
        match self {
            Self::Revision(_) => link,
            Self::Draft(draft) => Link::Translated(Arc::new(Translator {
                draft,
                link,
                ids,
                greeting: Mutex::default(),
                session: Mutex::default(),
                answered: Mutex::default(),
            })),
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

impl From<Dialect> for String {
    fn from(dialect: Dialect) -> Self {
        dialect.name().to_owned()
    }
}

impl TryFrom<String> for Dialect {
    type Error = DialectError;

    fn try_from(name: String) -> Result<Self, DialectError> {
        Self::from_name(&name).ok_or(DialectError::Unknown(name))
    }
}

/// Why a dialect cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialectError {
    /// It has no such request.
    #[error(transparent)]
    Inexpressible(#[from] DraftError),
    /// There is no dialect of this name.
    #[error("the dialect {0:?} is unknown")]
    Unknown(String),
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
pub(crate) struct Translator {
    draft: Draft,
    pub(crate) link: Link,
    ids: Ids,
    /// The body of `initialize`, for another session.
    greeting: Mutex<Option<String>>,
    session: Mutex<Option<HeaderValue>>,
    /// Answers over a pipe that may still be refused, by task id.
    answered: Mutex<VecDeque<(String, Exchange)>>,
}

impl Translator {
    pub(crate) async fn open(
        self: &Arc<Self>,
        request: &Outgoing,
    ) -> LinkResult<TranslatorExchange> {
        let (method, task) = head(&request.body);
        let response = match TaskMethod::from_method(&method) {
            Some(TaskMethod::Get) => self.get_task(request, &task).await?,
            Some(TaskMethod::Update) => self.update_task(request, &task).await?,
            Some(TaskMethod::Cancel) => self.cancel_task(request).await?,
            None if method == DISCOVER => self.initialize(request).await?,
            None => return self.open_in_session(request).await,
        };
        Ok(TranslatorExchange::ready(self, response))
    }

    pub(crate) async fn close(self: Arc<Self>) {
        if let Some(translator) = Arc::into_inner(self) {
            drop(translator.answered);
            translator.link.close().await;
        }
    }

    fn translate(&self, request: &Outgoing) -> LinkResult<Outgoing> {
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

    /// Sends a notification or a response, which are the same in all dialects.
    pub(crate) async fn tell(&self, body: String) -> LinkResult<()> {
        let message = Outgoing::unanswered(body, self.headers());
        self.link.tell(&message).await
    }

    async fn initialize(self: &Arc<Self>, request: &Outgoing) -> LinkResult<Response> {
        *self.session.lock() = None;
        *self.greeting.lock() = Some(request.body.clone());
        let mut exchange = self.open_once(request).await?;
        let response = exchange.response().await?;
        *self.session.lock() = exchange.session();
        drop(exchange);
        if response.outcome.is_ok() {
            self.tell(write_initialized()).await?;
        }
        Ok(response)
    }

    /// Sends a request, and once more in a new session if the server does not know the present one.
    async fn open_in_session(
        self: &Arc<Self>,
        request: &Outgoing,
    ) -> LinkResult<TranslatorExchange> {
        let had_session = self.session.lock().is_some();
        let opened = self.open_once(request).await;
        let is_unknown = match &opened {
            Ok(exchange) => exchange.is_session_unknown(),
            Err(error) => error.is_not_found(),
        };
        let greeting = self.greeting.lock().clone();
        match greeting {
            Some(body) if had_session && is_unknown => {
                let silence = request.silence;
                let greeting = Outgoing {
                    silence,
                    body,
                    ..Outgoing::default()
                };
                self.initialize(&self.again(&greeting, None)).await?;
                self.open_once(request).await
            }
            _ => opened,
        }
    }

    async fn open_once(self: &Arc<Self>, request: &Outgoing) -> LinkResult<TranslatorExchange> {
        let exchange = self.link.open(&self.translate(request)?).await?;
        TranslatorExchange::begin(self, request, exchange).await
    }

    async fn ask(self: &Arc<Self>, request: &Outgoing) -> LinkResult<Response> {
        self.open_in_session(request).await?.response().await
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

fn head(body: &str) -> (String, String) {
    #[derive(Default, Deserialize)]
    struct Message {
        method: String,
        #[serde(default)]
        params: Params,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        task_id: Option<String>,
    }
    let message: Message = serde_json::from_str(body).unwrap_or_default();
    (message.method, message.params.task_id.unwrap_or_default())
}
