//! How messages get to the server and back.
//!
//! Always: a request is answered by messages that belong to it, the last of which is its response. What belongs
//! to another request, or to none, does not get here.

mod events;
mod http;

pub(crate) use http::HttpLink;

use crate::auth::AuthError;
use crate::error::{ErrorKind, RpcFailure};
use ::http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;

/// One message on its way to the server.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The id, if it is a request.
    pub(crate) id: Option<u64>,
    /// The text of the whole message.
    pub(crate) body: String,
    /// What of it is repeated in headers, where there are headers.
    pub(crate) headers: HeaderMap,
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
    Http(HttpLink),
}

/// What comes back to one request.
pub(crate) enum Exchange {
    Http(http::HttpExchange),
}

impl Link {
    /// Sends a request.
    pub(crate) async fn open(&self, request: &Outgoing) -> Result<Exchange, LinkError> {
        match self {
            Self::Http(link) => link.open(request).await.map(Exchange::Http),
        }
    }

    /// Where the server is, as shown to people.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Http(link) => link.address(),
        }
    }
}

impl Exchange {
    /// The next message that belongs to the request. After its response there is none.
    pub(crate) async fn next(&mut self) -> Result<Incoming, LinkError> {
        match self {
            Self::Http(exchange) => exchange.next().await,
        }
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
pub(crate) struct Watcher(pub(crate) Option<Arc<dyn Fn(Wire<'_>) + Send + Sync>>);

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

/// Any JSON-RPC message.
#[derive(Deserialize)]
struct Message {
    id: Option<Value>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<RpcFailure>,
}

/// A message of the server's, and the id of the request it answers.
pub(crate) fn read_message(
    text: &str,
    status: Option<u16>,
) -> Result<(Option<Value>, Incoming), String> {
    let message: Message = serde_json::from_str(text).map_err(|error| {
        let start: String = text.chars().take(200).collect();
        format!("{error} in {start:?}")
    })?;
    let Message {
        id,
        method,
        params,
        result,
        error,
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
    Ok((id, Incoming::Response(Response { outcome, status })))
}
