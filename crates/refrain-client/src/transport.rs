//! Transports: HTTP, pipes to a child process or over an event stream, and translation.
//!
//! A request opens an exchange: the messages that belong to it, up to its response. Messages that belong to no request
//! are handled inside the transport.

mod events;
mod http;
mod pipe;

pub(crate) use http::{HttpExchange, HttpLink};
pub(crate) use pipe::{EventStream, PipeLink, PipeSetup};

use crate::auth::AuthError;
use crate::budget::ByteBudget;
use crate::dialect::{Translator, TranslatorExchange};
use crate::error::ErrorKind;
use crate::limits::ClientLimits;
use crate::retry::before_timeout;
use ::http::{HeaderMap, HeaderValue};
use refrain_wire::check_values;
use refrain_wire::client::{ReadError, RpcFailure, ServerMessage, read_message, write_cancelled};
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

const NOT_FOUND: u16 = 404;
/// The maximum length of the message of an error, in bytes.
const ERROR_MESSAGE_MAX: usize = 64 * 1024;

/// Translates the text of a reply into 2026-07-28.
pub(crate) type ReplyTranslator = Arc<dyn Fn(&str) -> String + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct OutgoingMessage {
    pub(crate) id: Option<u64>,
    /// The scoped client that sends the message.
    pub(crate) scope: u64,
    /// The timeout for a silent server.
    pub(crate) silence: Duration,
    /// The budget for the bytes of the response.
    pub(crate) budget: Option<ByteBudget>,
    /// Whether the message is a round of a call: legacy servers may ask only during a call.
    pub(crate) is_call: bool,
    /// Whether dropping the request cancels it.
    pub(crate) is_cancellable: bool,
    /// Whether a broken response stream may be resumed.
    pub(crate) is_resumable: bool,
    /// Whether the server responds only to report an error.
    pub(crate) is_silent: bool,
    /// Whether the response is a subscription, whose size is not limited.
    pub(crate) is_subscription: bool,
    pub(crate) body: String,
    pub(crate) headers: HeaderMap,
    pub(crate) translate: Option<ReplyTranslator>,
}

impl OutgoingMessage {
    /// A notification or a response.
    pub(crate) fn without_response(body: String, headers: HeaderMap) -> Self {
        Self {
            body,
            headers,
            ..Self::default()
        }
    }

    pub(crate) fn cancelled(id: u64, headers: HeaderMap) -> Self {
        Self::without_response(write_cancelled(id), headers)
    }
}

#[derive(Debug, Clone)]
pub(crate) enum IncomingMessage {
    Response(LinkResponse),
    Notification {
        method: String,
        params: Option<Box<RawValue>>,
    },
    /// Data without a message, such as a comment in an event stream.
    KeepAlive,
    /// A request of a legacy server.
    Request {
        id: Value,
        method: String,
        params: Option<Box<RawValue>>,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct LinkResponse {
    pub(crate) outcome: Result<Box<RawValue>, RpcFailure>,
    pub(crate) status: Option<u16>,
    pub(crate) has_request_id: bool,
}

impl LinkResponse {
    /// Whether the server does not know the session. An error with an id is about the request, which may have been
    /// executed.
    pub(crate) fn is_session_unknown(&self) -> bool {
        self.outcome.is_err() && !self.has_request_id && self.status == Some(NOT_FOUND)
    }
}

#[derive(Debug)]
pub(crate) enum LinkError {
    /// The request did not reach the server.
    NotSent(ErrorKind),
    /// The server is overloaded, and did not execute the request.
    Busy {
        kind: ErrorKind,
        retry_after: Option<Duration>,
    },
    /// The response was lost; the server may have executed the request.
    Lost(ErrorKind),
    /// A retry would not help.
    Final(ErrorKind),
}

impl LinkError {
    /// Whether the server may still work on the request, so that it must be cancelled.
    pub(crate) fn may_be_in_flight(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Final(ErrorKind::Timeout(_)))
    }

    pub(crate) fn kind(&self) -> &ErrorKind {
        match self {
            Self::NotSent(kind)
            | Self::Busy { kind, .. }
            | Self::Lost(kind)
            | Self::Final(kind) => kind,
        }
    }

    /// Whether the HTTP status is 404, for an unknown session.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Final(ErrorKind::HttpStatus { status, .. }) if *status == NOT_FOUND)
    }

    /// Whether the server may have executed the request, so that a repeat could repeat its effects.
    pub(crate) fn may_have_executed(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Busy { .. } => false,
            Self::Lost(_) => true,
            Self::Final(ErrorKind::HttpStatus { status, .. }) => !(400..500).contains(status),
            Self::Final(kind) => !matches!(
                kind,
                ErrorKind::Auth(_)
                    | ErrorKind::Dialect(_)
                    | ErrorKind::InvalidArgument(_)
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
    /// Another link, whose messages are translated.
    Translated(Arc<Translator>),
}

pub(crate) type LinkResult<T> = Result<T, LinkError>;

pub(crate) enum LinkExchange {
    Http(Box<HttpExchange>),
    Pipe(pipe::PipeExchange),
    Translated(Box<TranslatorExchange>),
}

impl Link {
    /// Sends a request. The silence timeout does not include the time for authorization.
    pub(crate) async fn open(&self, request: &OutgoingMessage) -> LinkResult<LinkExchange> {
        Ok(match self {
            Self::Http(link) => LinkExchange::Http(Box::new(link.open(request).await?)),
            Self::Pipe(link) => {
                LinkExchange::Pipe(before_timeout(request.silence, link.open(request)).await?)
            }
            Self::Translated(link) => {
                LinkExchange::Translated(Box::new(Box::pin(link.open(request)).await?))
            }
        })
    }

    pub(crate) async fn send(&self, message: &OutgoingMessage) -> LinkResult<()> {
        match self {
            Self::Http(link) => link.send_message(message).await,
            Self::Pipe(link) => link.send(&message.body).await,
            Self::Translated(link) => Box::pin(link.send(message.body.clone())).await,
        }
    }

    /// Removes a server request that was answered or cancelled.
    pub(crate) fn close_ask(&self, ask: &Value) {
        if let Some(link) = self.pipe() {
            link.close_ask(ask);
        }
    }

    pub(crate) async fn close(self) {
        match self {
            Self::Http(_) => {}
            Self::Pipe(link) => link.close().await,
            Self::Translated(link) => Box::pin(link.close()).await,
        }
    }

    /// A number that changes with the authorization header.
    pub(crate) fn authorization_changes(&self) -> u64 {
        match self {
            Self::Http(link) => link.authorization_changes(),
            Self::Pipe(link) => link.http().map_or(0, HttpLink::authorization_changes),
            Self::Translated(link) => link.link.authorization_changes(),
        }
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

    pub(crate) fn set_modern(&self) {
        if let Self::Pipe(link) = self {
            link.set_modern();
        }
    }
}

impl LinkExchange {
    pub(crate) async fn next(&mut self) -> LinkResult<IncomingMessage> {
        match self {
            Self::Http(exchange) => exchange.next().await,
            Self::Pipe(exchange) => exchange.next().await,
            Self::Translated(exchange) => Box::pin(exchange.next()).await,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Http(exchange) if exchange.status().as_u16() == NOT_FOUND)
    }

    /// The id of the session that the response opens. It is a secret.
    pub(crate) fn session(&self) -> Option<HeaderValue> {
        let Self::Http(exchange) = self else {
            return None;
        };
        let mut id = exchange.session()?;
        id.set_sensitive(true);
        Some(id)
    }
}

/// A message sent or received, for [`ClientBuilder::on_wire`](crate::ClientBuilder::on_wire).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum WireMessage<'a> {
    /// A message to the server.
    Sent {
        /// The text of the message.
        message: &'a str,
    },
    /// A message from the server.
    Received {
        /// The text of the message.
        message: &'a str,
        /// The HTTP status of the response.
        status: Option<u16>,
    },
}

pub(crate) type StderrObserver = Arc<dyn Fn(&str) + Send + Sync>;
pub(crate) type WireObserver = Arc<dyn Fn(WireMessage<'_>) + Send + Sync>;

/// Checks the number of values in a message before it is parsed.
fn check_message(text: &str, limits: &ClientLimits) -> Result<(), ErrorKind> {
    let limit = limits.values;
    check_values(text.as_bytes(), limit)
        .map_err(|_| ErrorKind::too_large("message", limit, "JSON values", "ClientLimits::values"))
}

fn read(
    text: &str,
    status: Option<u16>,
    translate: Option<&ReplyTranslator>,
) -> Result<(Option<Value>, IncomingMessage), ReadError> {
    let translated = translate.map(|translate| translate(text));
    let (id, message) = read_message(translated.as_deref().unwrap_or(text))?;
    let message = match message {
        ServerMessage::Notification { method, params } => {
            IncomingMessage::Notification { method, params }
        }
        ServerMessage::Request { id, method, params } => {
            IncomingMessage::Request { id, method, params }
        }
        ServerMessage::Response(outcome) => IncomingMessage::Response(LinkResponse {
            outcome: outcome.map_err(with_short_message),
            status,
            has_request_id: id.as_ref().is_some_and(|id| !id.is_null()),
        }),
    };
    Ok((id, message))
}

/// Truncates the message of an error: it is shown to people.
fn with_short_message(mut failure: RpcFailure) -> RpcFailure {
    let end = failure.message.floor_char_boundary(ERROR_MESSAGE_MAX);
    failure.message.truncate(end);
    failure
}
