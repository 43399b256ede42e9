//! How messages get to the server and back.
//!
//! Always: a request is answered by messages that belong to it, the last of which is its response. What belongs
//! to another request, or to none, does not get here.

mod events;
mod http;
mod pipe;

pub(crate) use http::{HttpExchange, HttpLink};
pub(crate) use pipe::PipeLink;

use crate::auth::AuthError;
use crate::error::{ASKS_IN_A_DRAFT, ErrorKind, RpcFailure};
use ::http::{HeaderMap, HeaderValue};
use refrain_wire::DraftExchange;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a response is not taken that is none to what was asked.
const OTHER_ID: &str = "it has the id of another request";

/// One message on its way to the server.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The id, if it is a request.
    pub(crate) id: Option<u64>,
    /// Whether it is a round of a call: only then may an older server ask in return.
    pub(crate) is_call: bool,
    /// Whether the server is told when nobody waits for the response any longer.
    pub(crate) is_cancellable: bool,
    /// Whether the stream that answers it may go on after it broke.
    pub(crate) is_resumable: bool,
    /// The text of the whole message.
    pub(crate) body: String,
    /// What of it is repeated in headers, where there are headers.
    pub(crate) headers: HeaderMap,
    /// How the reply is read, if it is written in a draft.
    pub(crate) draft: Option<Arc<DraftExchange>>,
}

/// One message from the server.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The end of the request: its result or its error.
    Response(Response),
    /// Something to know.
    Notification {
        method: String,
        params: Option<Box<RawValue>>,
    },
    /// Nothing but a sign of life.
    Alive,
    /// Something the server wants to know. Only older servers ask like this.
    Request {
        id: Value,
        method: String,
        params: Option<Box<RawValue>>,
    },
}

/// How a request ended.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) outcome: Result<Box<RawValue>, RpcFailure>,
    /// The HTTP status it came with.
    pub(crate) status: Option<u16>,
    /// Whether it says which request it answers.
    pub(crate) names_request: bool,
}

impl Response {
    /// The response to a request that has none where it is done.
    pub(crate) fn nothing() -> Self {
        let nothing = RawValue::from_string("{}".to_owned());
        Self {
            outcome: Ok(nothing.expect("an object is JSON")),
            status: None,
            names_request: true,
        }
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
        /// How long it wants to be left alone, in seconds.
        retry_after: Option<u64>,
    },
    /// The server may have seen the request; its response was lost.
    Lost(ErrorKind),
    /// Sending it again would not help.
    Final(ErrorKind),
}

impl LinkError {
    /// Whether the server may be at work on the request, without having been heard.
    pub(crate) fn may_be_under_way(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Final(ErrorKind::Late(_)))
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
                    | ErrorKind::Draft(_)
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

/// A way to one server.
#[derive(Debug)]
pub(crate) enum Link {
    Http(Arc<HttpLink>),
    Pipe(Box<PipeLink>),
}

/// What comes back to one request.
pub(crate) enum Exchange {
    Http(Box<HttpExchange>),
    Pipe(pipe::PipeExchange),
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
        }
    }

    /// Sends a request that is answered only if it is refused. Gives what comes back to it: over HTTP if something has,
    /// through a pipe in any case, since nobody can tell when.
    pub(crate) async fn open_silent(
        &self,
        request: &Outgoing,
        silence: Duration,
    ) -> Result<Option<Exchange>, LinkError> {
        let exchange = self.open(request, silence).await?;
        let is_done = matches!(&exchange, Exchange::Http(exchange) if exchange.is_done());
        Ok((!is_done).then_some(exchange))
    }

    /// Sends something that is not answered.
    pub(crate) async fn tell(&self, message: &Outgoing) -> Result<(), LinkError> {
        match self {
            Self::Http(link) => link.tell(message).await,
            Self::Pipe(link) => link.tell(&message.body).await,
        }
    }

    /// Something that the server asked has its answer, or wants none any more.
    pub(crate) fn settled(&self, ask: &Value) {
        match self {
            Self::Http(_) => {}
            Self::Pipe(link) => link.settled(ask),
        }
    }

    /// Ends the connection, and waits until the server has seen it.
    pub(crate) async fn close(self) {
        match self {
            Self::Http(_) => {}
            Self::Pipe(link) => link.close().await,
        }
    }

    /// Which of the authorizations there have been is the present one.
    pub(crate) fn authorization(&self) -> u64 {
        match self {
            Self::Http(link) => link.authorization(),
            Self::Pipe(_) => 0,
        }
    }

    /// Where the server is, as shown to people.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Http(link) => link.address(),
            Self::Pipe(link) => link.address(),
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
        }
    }

    /// The refusal of a request that is answered only so, if it has come by now.
    pub(crate) fn refusal(&mut self) -> Option<RpcFailure> {
        match self {
            Self::Http(_) => None,
            Self::Pipe(exchange) => exchange.refusal(),
        }
    }

    /// The session that an older server has opened with its response.
    pub(crate) fn session(&self) -> Option<HeaderValue> {
        match self {
            Self::Http(exchange) => exchange.session(),
            Self::Pipe(_) => None,
        }
    }
}

/// The server may be silent for so long and no longer.
pub(crate) async fn in_time<T>(
    silence: Duration,
    waiting: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    tokio::time::timeout(silence, waiting)
        .await
        .unwrap_or(Err(LinkError::Final(ErrorKind::Late(silence))))
}

impl Outgoing {
    /// Whether it is answered only if it is refused.
    pub(crate) fn is_silent(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.is_silent())
    }

    /// A message that is no request.
    pub(crate) fn unanswered(body: String, headers: HeaderMap) -> Self {
        Self {
            id: None,
            is_call: false,
            is_cancellable: false,
            is_resumable: false,
            body,
            headers,
            draft: None,
        }
    }

    /// Tells the server that nobody waits any longer for the response to a request.
    pub(crate) fn cancelled(id: u64, headers: HeaderMap) -> Self {
        let params = json!({"requestId": id, "reason": "nobody waits for it any longer"});
        let body = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        Self::unanswered(body.to_string(), headers)
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

/// Whoever watches what is sent and received.
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

/// Any JSON-RPC message, and what drafts ask beside its id.
#[derive(Deserialize)]
struct Message {
    id: Option<Value>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<RpcFailure>,
    input_requests: Option<IgnoredAny>,
    dependent_requests: Option<IgnoredAny>,
    request_state: Option<IgnoredAny>,
}

impl Message {
    /// Whether it asks as a draft does that is not spoken: what the draft asks that is spoken is in the result by now.
    fn asks_in_a_draft(&self) -> bool {
        let is_open = self.result.is_none() && self.request_state.is_some();
        let asks = is_open || self.input_requests.is_some() || self.dependent_requests.is_some();
        asks && self.method.is_none() && self.error.is_none()
    }
}

/// The messages of a text. Servers of 2025-03-26 may put several into an array.
fn messages_in(text: String) -> Vec<String> {
    if text.trim_start().starts_with('[')
        && let Ok(messages) = serde_json::from_str::<Vec<Box<RawValue>>>(&text)
    {
        return messages.iter().map(|raw| raw.get().to_owned()).collect();
    }
    vec![text]
}

/// A message of the server's, and the id of the request it answers.
pub(crate) fn read_message(
    text: &str,
    status: Option<u16>,
    draft: Option<&DraftExchange>,
) -> Result<(Option<Value>, Incoming), String> {
    let text = match draft {
        Some(draft) => &draft.read_reply(text),
        None => text,
    };
    let message: Message = serde_json::from_str(text).map_err(|error| {
        let start: String = text.chars().take(200).collect();
        format!("{error} in {start:?}")
    })?;
    if message.asks_in_a_draft() {
        return Err(ASKS_IN_A_DRAFT.to_owned());
    }
    let Message {
        id,
        method,
        params,
        result,
        error,
        ..
    } = message;
    let outcome = match (method, id, result, error) {
        (Some(method), None, ..) => return Ok((None, Incoming::Notification { method, params })),
        (Some(method), Some(id), ..) => {
            return Ok((None, Incoming::Request { id, method, params }));
        }
        (None, id, Some(result), None) => (id, Ok(result)),
        (None, id, None, Some(error)) => (id, Err(error)),
        _ => {
            let start: String = text.chars().take(200).collect();
            return Err(format!("no JSON-RPC message: {start:?}"));
        }
    };
    let (id, outcome) = outcome;
    let response = Response {
        outcome,
        status,
        names_request: id.as_ref().is_some_and(|id| !id.is_null()),
    };
    Ok((id, Incoming::Response(response)))
}
