//! The transport: one message to the server, and the messages that belong to it back.
//!
//! A request is answered by messages that belong to it, the last of which is its response. Messages of other requests,
//! or of none, do not get out of here.

mod events;
mod http;
mod pipe;

pub(crate) use http::{HttpExchange, HttpLink};
pub(crate) use pipe::PipeLink;

use crate::auth::AuthError;
use crate::dialect::{Translator, TranslatorExchange};
use crate::error::ErrorKind;
use crate::retry::in_time;
use ::http::{HeaderMap, HeaderValue};
use refrain_wire::client::{ReadError, RpcFailure, ServerMessage, read_message, write_cancelled};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Turns the text of a reply into that of 2026-07-28, where another dialect is spoken.
pub(crate) type Translate = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// One message on its way to the server.
#[derive(Clone)]
pub(crate) struct Outgoing {
    /// The id, if it is a request.
    pub(crate) id: Option<u64>,
    /// Whether it is a round of a call: only then may a legacy server ask in return.
    pub(crate) is_call: bool,
    /// Whether the server is told when nobody waits for the response any longer.
    pub(crate) is_cancellable: bool,
    /// Whether the stream that answers it may be resumed after it broke.
    pub(crate) is_resumable: bool,
    /// Whether only a failure is answered.
    pub(crate) is_silent: bool,
    /// The text of the whole message.
    pub(crate) body: String,
    /// What of it is repeated in headers, where there are headers.
    pub(crate) headers: HeaderMap,
    /// How the reply is translated before it is read.
    pub(crate) translate: Option<Translate>,
}

/// One message from the server.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The end of the request: its result or its error.
    Response(Response),
    /// A notification.
    Notification {
        method: String,
        params: Option<Box<RawValue>>,
    },
    /// A sign of life without content.
    Alive,
    /// A request of the server's. Only legacy servers send any.
    Request {
        id: Value,
        method: String,
        params: Option<Box<RawValue>>,
    },
}

/// The result or the error of a request.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) outcome: Result<Box<RawValue>, RpcFailure>,
    /// The HTTP status it came with.
    pub(crate) status: Option<u16>,
    /// Whether it says which request it answers.
    pub(crate) names_request: bool,
}

impl Response {
    /// Whether the server says that it does not know the session. An error that names the request is an answer to it:
    /// the server has looked at the request, and may have done it.
    pub(crate) fn is_session_unknown(&self) -> bool {
        let is_of_request = self.outcome.is_ok() || self.names_request;
        !is_of_request && self.status == Some(NOT_FOUND)
    }
}

const NOT_FOUND: u16 = 404;

/// Whether the server says that it does not know the session. It has not looked at the request then.
pub(crate) fn is_session_unknown(outcome: &Result<Response, LinkError>) -> bool {
    match outcome {
        Ok(response) => response.is_session_unknown(),
        Err(error) => error.is_not_found(),
    }
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// The server was not reached: it has seen nothing of the request.
    NotSent(ErrorKind),
    /// The server is too busy, and has not looked at the request.
    Busy {
        kind: ErrorKind,
        /// The value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The server may have seen the request; its response was lost.
    Lost(ErrorKind),
    /// Sending it again would not help.
    Final(ErrorKind),
}

impl LinkError {
    /// Whether the server may be at work on the request.
    pub(crate) fn may_be_under_way(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Final(ErrorKind::Late(_)))
    }

    /// Whether the HTTP status is "not found".
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Final(ErrorKind::Status {
                status: NOT_FOUND,
                ..
            })
        )
    }

    /// Whether the server may have done what the request says.
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

    pub(crate) fn into_kind(self) -> ErrorKind {
        match self {
            Self::NotSent(kind)
            | Self::Busy { kind, .. }
            | Self::Lost(kind)
            | Self::Final(kind) => kind,
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

/// A way to one server.
#[derive(Debug)]
pub(crate) enum Link {
    Http(Arc<HttpLink>),
    Pipe(Box<PipeLink>),
    /// One of the others, behind a translation.
    Translated(Translator),
}

/// What comes back to one request.
pub(crate) enum Exchange {
    Http(Box<HttpExchange>),
    Pipe(pipe::PipeExchange),
    Translated(Box<TranslatorExchange>),
}

impl Link {
    /// Sends a request. The server may be silent for so long; the time in which somebody logs in does not count.
    pub(crate) async fn open(
        &self,
        request: &Outgoing,
        silence: Duration,
    ) -> Result<Exchange, LinkError> {
        match self {
            Self::Http(link) => {
                let exchange = link.open(request, silence).await?;
                Ok(Exchange::Http(Box::new(exchange)))
            }
            Self::Pipe(link) => in_time(silence, link.open(request))
                .await
                .map(Exchange::Pipe),
            Self::Translated(link) => {
                let exchange = Box::pin(link.open(request, silence)).await?;
                Ok(Exchange::Translated(Box::new(exchange)))
            }
        }
    }

    /// Sends something that is not answered.
    pub(crate) async fn tell(&self, message: &Outgoing) -> Result<(), LinkError> {
        match self {
            Self::Http(link) => link.tell(message).await,
            Self::Pipe(link) => link.tell(&message.body).await,
            Self::Translated(link) => Box::pin(link.tell(message)).await,
        }
    }

    /// A request of the server's has its answer, or wants none any more.
    pub(crate) fn settled(&self, ask: &Value) {
        if let Some(link) = self.pipe() {
            link.settled(ask);
        }
    }

    /// Ends the connection, and waits until the server has seen it.
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

    /// Where the server is, as shown to people.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Http(link) => link.address(),
            Self::Pipe(link) => link.address(),
            Self::Translated(link) => link.inner().address(),
        }
    }

    /// The server at a URL, if it is one.
    pub(crate) fn http(&self) -> Option<&Arc<HttpLink>> {
        match self {
            Self::Http(link) => Some(link),
            Self::Pipe(_) => None,
            Self::Translated(link) => link.inner().http(),
        }
    }

    /// The process that was started, if it is one.
    pub(crate) fn pipe(&self) -> Option<&PipeLink> {
        match self {
            Self::Http(_) => None,
            Self::Pipe(link) => Some(link),
            Self::Translated(link) => link.inner().pipe(),
        }
    }

    /// The server speaks 2026-07-28, and sends no requests.
    pub(crate) fn is_modern(&self) {
        if let Self::Pipe(link) = self {
            link.is_modern();
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

impl Exchange {
    /// The next message that belongs to the request. After its response there is none.
    pub(crate) async fn next(&mut self) -> Result<Incoming, LinkError> {
        match self {
            Self::Http(exchange) => exchange.next().await,
            Self::Pipe(exchange) => exchange.next().await,
            Self::Translated(exchange) => Box::pin(exchange.next()).await,
        }
    }

    /// Whether the server has answered with the HTTP status "not found".
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Http(exchange) if exchange.status().as_u16() == NOT_FOUND)
    }

    /// The session that a server has opened with its response.
    pub(crate) fn session(&self) -> Option<HeaderValue> {
        let Self::Http(exchange) = self else {
            return None;
        };
        let mut id = exchange.session()?;
        // Whoever has the id of a session can speak in it.
        id.set_sensitive(true);
        Some(id)
    }
}

impl Outgoing {
    /// A request that may be cancelled.
    pub(crate) fn request(id: u64, body: String, headers: HeaderMap) -> Self {
        Self {
            id: Some(id),
            is_cancellable: true,
            ..Self::unanswered(body, headers)
        }
    }

    /// A message that is no request.
    pub(crate) fn unanswered(body: String, headers: HeaderMap) -> Self {
        Self {
            id: None,
            is_call: false,
            is_cancellable: false,
            is_resumable: false,
            is_silent: false,
            body,
            headers,
            translate: None,
        }
    }

    /// Tells the server that nobody waits any longer for the response to a request.
    pub(crate) fn cancelled(id: u64, headers: HeaderMap) -> Self {
        Self::unanswered(write_cancelled(id), headers)
    }
}

/// Something that was sent or received, for those who want to watch.
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
        /// The HTTP status it came with.
        status: Option<u16>,
    },
}

/// The callback that sees what is sent and received.
#[derive(Clone, Default)]
pub(crate) struct Watcher(pub(crate) Option<Arc<Watch>>);

type Watch = dyn Fn(Wire<'_>) + Send + Sync;

impl Watcher {
    pub(crate) fn see(&self, wire: Wire<'_>) {
        if let Some(watch) = &self.0 {
            watch(wire);
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// A message of the server's, and the id of the request it answers.
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
