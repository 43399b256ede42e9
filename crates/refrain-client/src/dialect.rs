//! Configured dialects, and the transport that translates drafts of the protocol.
//!
//! [`Translator`] wraps another transport: it sends 2026-07-28 messages in the form of a draft, and translates the replies
//! back. Some requests become several messages:
//!
//! | request | messages of the draft |
//! | --- | --- |
//! | `server/discover` | `initialize` and `notifications/initialized`; again when the session is lost |
//! | `tasks/get` | `tasks/get`, and `tasks/result` unless the task is working or cancelled |
//! | `tasks/update` | the answers. A server of the first draft responds only if it rejects them; over a pipe, possibly later |
//! | `tasks/cancel` | `tasks/cancel`; after an error also `tasks/get`, because the request succeeds if the task has ended |

mod exchange;
mod tasks;

pub(crate) use exchange::TranslatorExchange;

use crate::builder::ClientBuilder;
use crate::client::{Client, RequestIds};
use crate::transport::{Link, LinkError, LinkExchange, LinkResponse, LinkResult, OutgoingMessage};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use refrain_wire::client::{DISCOVER, write_initialized};
use refrain_wire::drafts::{Draft, DraftError};
use refrain_wire::legacy::Revision;
use refrain_wire::{PROTOCOL_VERSION, TaskMethod};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// A protocol dialect that a client uses instead of the negotiated revision. Serialized by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Dialect {
    /// 2026-07-28, without a fallback to an earlier revision.
    Modern,
    /// A legacy revision of the protocol.
    Revision(Revision),
    /// 2024-11-05, the first revision.
    FirstRevision,
    /// A draft of the protocol.
    Draft(Draft),
}

impl Dialect {
    /// All dialects, the newest revision first.
    pub fn all() -> impl Iterator<Item = Self> {
        let revisions = Revision::ALL.into_iter().map(Self::Revision);
        let drafts = Draft::ALL.into_iter().map(Self::Draft);
        let modern = std::iter::once(Self::Modern);
        modern
            .chain(revisions)
            .chain([Self::FirstRevision])
            .chain(drafts)
    }

    /// The dialect with this name: a revision, `draft-0`, `draft-1` or `draft-2`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|dialect| dialect.name() == name)
    }

    /// The name of the dialect.
    pub fn name(self) -> &'static str {
        match self {
            Self::Modern => PROTOCOL_VERSION,
            Self::Revision(revision) => revision.as_str(),
            Self::FirstRevision => Revision::FIRST_NAME,
            Self::Draft(draft) => draft.name(),
        }
    }

    /// The name of the dialect if it is a legacy revision.
    pub(crate) fn legacy_name(self) -> Option<&'static str> {
        match self {
            Self::Revision(_) | Self::FirstRevision => Some(self.name()),
            Self::Modern | Self::Draft(_) => None,
        }
    }

    /// Whether this is a published revision of the protocol.
    pub fn is_revision(self) -> bool {
        !matches!(self, Self::Draft(_))
    }

    pub(crate) fn wrap(self, link: Link, ids: RequestIds) -> Link {
        match self {
            Self::Modern | Self::Revision(_) | Self::FirstRevision => link,
            Self::Draft(draft) => Link::Translated(Arc::new(Translator {
                draft,
                link,
                ids,
                discover: Mutex::default(),
                session: Mutex::default(),
                sent_answers: Mutex::default(),
            })),
        }
    }
}

impl ClientBuilder {
    /// Uses this dialect instead of negotiating the protocol revision: 2026-07-28, a legacy revision, or a draft. Fails if
    /// the server does not use it.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), refrain_client::Error> {
    /// use refrain_client::{Client, wire::drafts::Draft};
    /// let builder = Client::builder().dialect(Draft::Second);
    /// let client = builder.connect("http://127.0.0.1:8080/drafts/2/mcp").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn dialect(mut self, dialect: impl Into<Dialect>) -> Self {
        self.dialect = Some(dialect.into());
        self
    }
}

impl Client {
    /// The dialect of this connection. Remember it, and pass it to [`ClientBuilder::dialect`] to connect to the same
    /// server without negotiation: a legacy server process is then started once and not sent `server/discover`.
    ///
    /// If connecting with a remembered dialect fails, the server may have changed: negotiate again.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), refrain_client::Error> {
    /// use refrain_client::Client;
    /// use std::process::Command;
    /// let dialect = Client::builder().spawn(Command::new("my-server")).await?.dialect();
    /// let again = Client::builder().dialect(dialect).spawn(Command::new("my-server")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn dialect(&self) -> Dialect {
        let configured = self.inner.setup.dialect;
        configured
            .or_else(|| Dialect::from_name(&self.server().version))
            .unwrap_or(Dialect::Modern)
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

/// An unknown dialect, or why the configured dialect cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialectError {
    /// The dialect has no such request.
    #[error(transparent)]
    Unsupported(#[from] DraftError),
    /// There is no dialect with this name.
    #[error("unknown dialect {0:?}; expected one of {names}", names = names())]
    Unknown(String),
    /// The server does not use the dialect.
    #[error("{address} does not speak {dialect}: {why}")]
    NotSpoken {
        /// The address of the server.
        address: String,
        /// The dialect.
        dialect: Dialect,
        /// The reason.
        why: String,
    },
}

fn names() -> String {
    Vec::from_iter(Dialect::all().map(Dialect::name)).join(", ")
}

impl From<DialectError> for LinkError {
    fn from(error: DialectError) -> Self {
        Self::Final(error.into())
    }
}

pub(crate) struct Translator {
    draft: Draft,
    pub(crate) link: Link,
    ids: RequestIds,
    /// The body of the discover request, to open another session.
    discover: Mutex<Option<String>>,
    /// The id of the session over HTTP.
    session: Mutex<Option<HeaderValue>>,
    /// Answers over a pipe that the server may still reject, by task id.
    sent_answers: Mutex<VecDeque<(String, LinkExchange)>>,
}

impl Translator {
    pub(crate) async fn open(
        self: &Arc<Self>,
        request: &OutgoingMessage,
    ) -> LinkResult<TranslatorExchange> {
        let (method, task) = method_and_task(&request.body);
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
            drop(translator.sent_answers);
            translator.link.close().await;
        }
    }

    fn translate(&self, request: &OutgoingMessage) -> LinkResult<OutgoingMessage> {
        let written = self.draft.write_request(&request.body);
        let (body, exchange) = written.map_err(DialectError::from)?;
        Ok(OutgoingMessage {
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

    /// Sends a notification or a response, which is the same in all dialects.
    pub(crate) async fn send(&self, body: String) -> LinkResult<()> {
        let message = OutgoingMessage::without_response(body, self.headers());
        self.link.send(&message).await
    }

    async fn initialize(self: &Arc<Self>, request: &OutgoingMessage) -> LinkResult<LinkResponse> {
        *self.session.lock() = None;
        *self.discover.lock() = Some(request.body.clone());
        let mut exchange = self.open_once(request).await?;
        let response = exchange.response().await?;
        *self.session.lock() = exchange.session();
        drop(exchange);
        if response.outcome.is_ok() {
            self.send(write_initialized()).await?;
        }
        Ok(response)
    }

    /// Sends a request, and repeats it in a new session if the server does not know the current one.
    async fn open_in_session(
        self: &Arc<Self>,
        request: &OutgoingMessage,
    ) -> LinkResult<TranslatorExchange> {
        let had_session = self.session.lock().is_some();
        let opened = self.open_once(request).await;
        let is_unknown = match &opened {
            Ok(exchange) => exchange.is_session_unknown(),
            Err(error) => error.is_not_found(),
        };
        let discover = self.discover.lock().clone();
        match discover {
            Some(body) if had_session && is_unknown => {
                let discover = OutgoingMessage {
                    silence: request.silence,
                    body,
                    ..OutgoingMessage::default()
                };
                self.initialize(&self.with_new_id(&discover, None)).await?;
                self.open_once(request).await
            }
            _ => opened,
        }
    }

    async fn open_once(
        self: &Arc<Self>,
        request: &OutgoingMessage,
    ) -> LinkResult<TranslatorExchange> {
        let exchange = self.link.open(&self.translate(request)?).await?;
        TranslatorExchange::begin(self, request, exchange).await
    }

    async fn request(self: &Arc<Self>, request: &OutgoingMessage) -> LinkResult<LinkResponse> {
        self.open_in_session(request).await?.response().await
    }

    /// The same message with a new id, and optionally another method.
    fn with_new_id(&self, request: &OutgoingMessage, method: Option<&str>) -> OutgoingMessage {
        let id = self.ids.next();
        let mut message: Value = serde_json::from_str(&request.body).unwrap_or_default();
        message["id"] = id.into();
        if let Some(method) = method {
            message["method"] = method.into();
        }
        OutgoingMessage {
            id: Some(id),
            body: message.to_string(),
            ..request.clone()
        }
    }
}

fn method_and_task(body: &str) -> (String, String) {
    #[derive(Default, Deserialize)]
    struct RequestHead {
        method: String,
        #[serde(default)]
        params: RequestHeadParams,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct RequestHeadParams {
        task_id: Option<String>,
    }
    let message: RequestHead = serde_json::from_str(body).unwrap_or_default();
    (message.method, message.params.task_id.unwrap_or_default())
}
