//! The transport: one message to the server, and the messages that belong to it back.
//!
//! A request is answered by messages that belong to it; the last one is its response. Messages of other requests are
//! handled inside the transport.

mod events;
mod http;
mod pipe;

pub(crate) use http::{HttpExchange, HttpLink};
pub(crate) use pipe::{PipeLink, PipeSetup};

use crate::auth::AuthError;
use crate::dialect::{Translator, TranslatorExchange};
use crate::error::ErrorKind;
use crate::retry::in_time;
use ::http::{HeaderMap, HeaderValue};
use refrain_wire::client::{ReadError, RpcFailure, ServerMessage, read_message, write_cancelled};
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

const NOT_FOUND: u16 = 404;

/// Translates the text of a reply to 2026-07-28.
pub(crate) type Translate = Arc<dyn Fn(&str) -> String + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Outgoing {
    pub(crate) id: Option<u64>,
    /// How long the server may be silent.
    pub(crate) silence: Duration,
    /// Whether it is a round of a call: only then may a legacy server ask in return.
    pub(crate) is_call: bool,
    /// Whether a request that is dropped is cancelled.
    pub(crate) is_cancellable: bool,
    /// Whether a broken response stream may be resumed.
    pub(crate) is_resumable: bool,
    /// Whether the server responds only with an error.
    pub(crate) is_silent: bool,
    pub(crate) body: String,
    /// The HTTP headers that repeat parts of the message.
    pub(crate) headers: HeaderMap,
    pub(crate) translate: Option<Translate>,
}

impl Outgoing {
    /// A message that is no request.
    pub(crate) fn unanswered(body: String, headers: HeaderMap) -> Self {
        Self {
            body,
            headers,
            ..Self::default()
        }
    }

    /// The cancellation of a request.
    pub(crate) fn cancelled(id: u64, headers: HeaderMap) -> Self {
        Self::unanswered(write_cancelled(id), headers)
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Incoming {
    Response(Response),
    Notification {
        method: String,
        params: Option<Box<RawValue>>,
    },
    /// A sign of life without content.
    Alive,
    /// A request of a legacy server.
    Request {
        id: Value,
        method: String,
        params: Option<Box<RawValue>>,
    },
}

/// The result or the error of a request.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) outcome: Result<Box<RawValue>, RpcFailure>,
    pub(crate) status: Option<u16>,
    pub(crate) names_request: bool,
}

impl Response {
    /// Whether the server does not know the session. An error with an id is about the request: the server may have done
    /// it.
    pub(crate) fn is_session_unknown(&self) -> bool {
        self.outcome.is_err() && !self.names_request && self.status == Some(NOT_FOUND)
    }
}

#[derive(Debug)]
pub(crate) enum LinkError {
    /// The request did not reach the server.
    NotSent(ErrorKind),
    /// The server is overloaded, and did not look at the request.
    Busy {
        kind: ErrorKind,
        retry_after: Option<Duration>,
    },
    /// The server may have seen the request; its response was lost.
    Lost(ErrorKind),
    /// A retry would not help.
    Final(ErrorKind),
}

impl LinkError {
    /// Whether the server may be processing the request.
    pub(crate) fn may_be_under_way(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Final(ErrorKind::Late(_)))
    }

    /// Whether the HTTP status is 404: the server does not know the session.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Final(ErrorKind::Status { status, .. }) if *status == NOT_FOUND)
    }

    /// Whether the server may have executed the request.
    pub(crate) fn may_be_taken(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Busy { .. } => false,
            Self::Lost(_) => true,
            Self::Final(ErrorKind::Status { status, .. }) => !(400..500).contains(status),
            Self::Final(kind) => !matches!(
                kind,
                ErrorKind::Auth(_)
                    | ErrorKind::BadArgument(_)
                    | ErrorKind::Dialect(_)
                    | ErrorKind::Spawn { .. }
                    | ErrorKind::Unanswered(_)
            ),
        }
    }
}

impl From<LinkError> for ErrorKind {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::NotSent(kind)
            | LinkError::Busy { kind, .. }
            | LinkError::Lost(kind)
            | LinkError::Final(kind) => kind,
        }
    }
}

impl From<AuthError> for LinkError {
    fn from(error: AuthError) -> Self {
        Self::Final(error.into())
    }
}

impl From<ReadError> for LinkError {
    fn from(error: ReadError) -> Self {
        Self::Final(error.into())
    }
}

pub(crate) enum Link {
    Http(Arc<HttpLink>),
    Pipe(Box<PipeLink>),
    /// One of the others, behind a translation.
    Translated(Arc<Translator>),
}

pub(crate) type LinkResult<T> = Result<T, LinkError>;

/// The messages that come back to one request.
pub(crate) enum Exchange {
    Http(Box<HttpExchange>),
    Pipe(pipe::PipeExchange),
    Translated(Box<TranslatorExchange>),
}

impl Link {
    /// Sends a request. The time of a login does not count as silence of the server.
    pub(crate) async fn open(&self, request: &Outgoing) -> LinkResult<Exchange> {
        Ok(match self {
            Self::Http(link) => Exchange::Http(Box::new(link.open(request).await?)),
            Self::Pipe(link) => Exchange::Pipe(in_time(request.silence, link.open(request)).await?),
            Self::Translated(link) => {
                Exchange::Translated(Box::new(Box::pin(link.open(request)).await?))
            }
        })
    }

    pub(crate) async fn tell(&self, message: &Outgoing) -> LinkResult<()> {
        match self {
            Self::Http(link) => link.tell(message).await,
            Self::Pipe(link) => link.tell(&message.body).await,
            Self::Translated(link) => Box::pin(link.tell(message.body.clone())).await,
        }
    }

    /// A request of the server has been answered, or was cancelled.
    pub(crate) fn settled(&self, ask: &Value) {
        if let Some(link) = self.pipe() {
            link.settled(ask);
        }
    }

    /// Ends the connection, and waits for the end of a process.
    pub(crate) async fn close(self) {
        match self {
            Self::Http(_) => {}
            Self::Pipe(link) => link.close().await,
            Self::Translated(link) => Box::pin(link.close()).await,
        }
    }

    /// The number of the present authorization: it changes when another one is sent.
    pub(crate) fn authorization(&self) -> u64 {
        self.http().map_or(0, |link| link.authorization())
    }

    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Http(link) => link.address(),
            Self::Pipe(link) => &link.address,
            Self::Translated(link) => link.link.address(),
        }
    }

    pub(crate) fn http(&self) -> Option<&Arc<HttpLink>> {
        match self {
            Self::Http(link) => Some(link),
            Self::Pipe(_) => None,
            Self::Translated(link) => link.link.http(),
        }
    }

    pub(crate) fn pipe(&self) -> Option<&PipeLink> {
        match self {
            Self::Http(_) => None,
            Self::Pipe(link) => Some(link),
            Self::Translated(link) => link.link.pipe(),
        }
    }

    /// Notes that the server speaks 2026-07-28, and must not send requests.
    pub(crate) fn set_modern(&self) {
        if let Self::Pipe(link) = self {
            link.set_modern();
        }
    }
}

impl Exchange {
    pub(crate) async fn next(&mut self) -> LinkResult<Incoming> {
        match self {
            Self::Http(exchange) => exchange.next().await,
            Self::Pipe(exchange) => exchange.next().await,
            Self::Translated(exchange) => Box::pin(exchange.next()).await,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Http(exchange) if exchange.status().as_u16() == NOT_FOUND)
    }

    /// The session that a server has opened with its response. Its id is a secret.
    pub(crate) fn session(&self) -> Option<HeaderValue> {
        let Self::Http(exchange) = self else {
            return None;
        };
        let mut id = exchange.session()?;
        id.set_sensitive(true);
        Some(id)
    }
}

/// A message that was sent or received.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Wire<'a> {
    /// A message to the server.
    Sent {
        /// The text of the message.
        message: &'a str,
    },
    /// A message from the server.
    Received {
        /// The text of the message.
        message: &'a str,
        /// The HTTP status.
        status: Option<u16>,
    },
}

pub(crate) type Watch = Arc<dyn Fn(Wire<'_>) + Send + Sync>;

/// Reads a message of the server, and the id of the request it answers.
fn read(
    text: &str,
    status: Option<u16>,
    translate: Option<&Translate>,
) -> Result<(Option<Value>, Incoming), ReadError> {
    let translated = translate.map(|translate| translate(text));
    let (id, message) = read_message(translated.as_deref().unwrap_or(text))?;
    let message = match message {
        ServerMessage::Notification { method, params } => Incoming::Notification { method, params },
        ServerMessage::Request { id, method, params } => Incoming::Request { id, method, params },
        ServerMessage::Response(outcome) => Incoming::Response(Response {
            outcome,
            status,
            names_request: id.as_ref().is_some_and(|id| !id.is_null()),
        }),
    };
    Ok((id, message))
}
