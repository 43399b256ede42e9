//! Legacy servers: `initialize`, sessions, and asks during a call.
//!
//! Asks are answered only during a call: over HTTP on its response stream, over a pipe if the call
//! is known. `allow_unassociated_asks` adds asks on the session stream. The client rejects all
//! other requests except pings, and `roots/list` if the host has set roots for the connection.

mod active_calls;
mod asks;
mod changes;
mod session_stream;

pub(crate) use asks::or_unanswered_error;
pub(crate) use changes::{ChangeHub, LegacySubscription};

use crate::client::ClientInner;
use crate::error::ErrorKind;
use crate::notifications::Notifications;
use crate::protocol::RequestPlan;
use crate::request_span::add_context;
use crate::transport::{IncomingMessage, LinkError, LinkResponse, LinkResult, OutgoingMessage};
use active_calls::ActiveCalls;
use http::{HeaderMap, HeaderValue};
use refrain_wire::client::{
    ReadError, Request, ServerInfo, write_error, write_initialized, write_result,
};
use refrain_wire::legacy::Revision;
use refrain_wire::limited_event;
use refrain_wire::{ErrorCode, Root};
use serde_json::{Map, Value, json};
use session_stream::SessionStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tracing::Instrument;

pub(crate) const PING: &str = "ping";
const LIST_ROOTS: &str = "roots/list";

pub(crate) struct Legacy {
    /// The restart count of the server process when it was last initialized.
    initialized: AtomicU64,
    session: watch::Sender<LegacySession>,
    /// Held while a new session is opened.
    renewal_lock: Mutex<()>,
    /// Held while resources are subscribed to or unsubscribed from.
    subscription_lock: Mutex<()>,
    pub(crate) calls: Arc<ActiveCalls>,
    stream: Option<SessionStream>,
}

#[derive(Clone, PartialEq)]
pub(crate) struct LegacySession {
    pub(crate) version: HeaderValue,
    pub(crate) id: Option<HeaderValue>,
}

pub(crate) struct Handshake {
    pub(crate) server: ServerInfo,
    session: LegacySession,
}

impl LegacySession {
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("mcp-protocol-version", self.version.clone());
        if let Some(id) = &self.id {
            headers.insert("mcp-session-id", id.clone());
        }
        headers
    }
}

impl Legacy {
    pub(crate) async fn start(handshake: Handshake, inner: &ClientInner) -> Self {
        let session = watch::Sender::new(handshake.session);
        let calls = ActiveCalls::new(&inner.setup);
        let stream = inner.connection.link.http().map(|link| {
            let roots = inner.connection.roots.clone();
            SessionStream::start(
                Arc::clone(link),
                session.subscribe(),
                Arc::clone(&calls),
                roots,
            )
        });
        if let Some(stream) = &stream {
            stream.wait_open().await;
        }
        Self {
            initialized: AtomicU64::new(0),
            session,
            renewal_lock: Mutex::new(()),
            subscription_lock: Mutex::new(()),
            calls,
            stream,
        }
    }

    pub(crate) fn session(&self) -> LegacySession {
        self.session.borrow().clone()
    }

    pub(crate) fn cancel(&self, id: u64) {
        if let Some(stream) = &self.stream {
            stream.cancel(id);
        }
    }

    pub(crate) async fn close(self) {
        drop(self.session);
        if let Some(stream) = self.stream {
            stream.close().await;
        }
    }
}

impl ClientInner {
    pub(crate) async fn initialize(&self, version: &str) -> LinkResult<Handshake> {
        let id = self.connection.ids.next();
        let (info, capabilities) = &self.connection.identity;
        let request = Request::initialize(version, info, *capabilities);
        let span = self.open_span(&request, None, id, None);
        let mut meta = Map::new();
        add_context(&mut meta, &span);
        let outgoing = OutgoingMessage {
            id: Some(id),
            silence: self.setup.limits.silence,
            body: request.write(id, Some(meta).filter(|meta| !meta.is_empty())),
            ..OutgoingMessage::default()
        };
        let begun = Instant::now();
        let mut session_id = None;
        let exchanged = async {
            let mut exchange = self.connection.link.open(&outgoing).await?;
            let response = self.read_response(&mut exchange, &HeaderMap::new()).await;
            session_id = exchange.session();
            response
        };
        let response = exchanged.instrument(span.clone()).await;
        self.end_request(
            &request.into(),
            &span,
            begun.elapsed(),
            response.as_ref(),
            false,
        );
        let rejected = |failure| LinkError::Final(ErrorKind::Rpc(failure));
        let raw = response?.outcome.map_err(rejected)?;
        let server = ServerInfo::from_initialize(&raw)
            .map_err(|error| LinkError::Final(self.not_mcp(error.to_string())))?;
        if !Revision::CLIENT_NAMES.contains(&server.version.as_str()) {
            let supported = vec![server.version];
            return Err(LinkError::Final(ErrorKind::NoCommonVersion { supported }));
        }
        let session = LegacySession {
            version: HeaderValue::from_str(&server.version)
                .map_err(|error| ReadError::Unexpected(error.to_string()))?,
            id: session_id,
        };
        let ready = OutgoingMessage::without_response(write_initialized(), session.headers());
        self.connection.link.send(&ready).await?;
        Ok(Handshake { server, session })
    }

    /// Sets the log level if the host handles log messages. Failure is only logged.
    pub(crate) async fn set_log_level(&self) {
        if let Some((level, _)) = &self.setup.notifications.log
            && self
                .connection
                .server()
                .capabilities
                .contains_key("logging")
            && let Err(error) = self.request(Request::set_level(*level)).await
        {
            limited_event!(WARN, %error, "failed to set log level");
        }
    }

    /// Sends a request, and repeats it in a new session if the server does not know the current one.
    pub(crate) async fn exchange_in_session(
        &self,
        legacy: &Legacy,
        plan: &RequestPlan<'_>,
    ) -> LinkResult<LinkResponse> {
        let session = legacy.session();
        let outcome = self.exchange_once(plan, Some((legacy, &session))).await;
        let is_unknown = match &outcome {
            Ok(response) => response.is_session_unknown(),
            Err(error) => error.is_not_found(),
        };
        // A request in an unknown session was not executed, so it is safe to repeat.
        if session.id.is_none() || !is_unknown {
            return outcome;
        }
        let renewed = self.renew_session(legacy, &session).await?;
        self.exchange_once(plan, Some((legacy, &renewed))).await
    }

    /// Initializes the server again after a restart of its process.
    pub(crate) async fn initialize_again(&self, restarts: u64) -> LinkResult<()> {
        if let Some(legacy) = self.connection.legacy()
            && legacy.initialized.load(Ordering::Relaxed) != restarts
        {
            self.initialize(&self.connection.server().version).await?;
            legacy.initialized.store(restarts, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Opens a new session, unless another request has already replaced the lost one.
    async fn renew_session(
        &self,
        legacy: &Legacy,
        lost: &LegacySession,
    ) -> LinkResult<LegacySession> {
        let _guard = legacy.renewal_lock.lock().await;
        let current = legacy.session();
        if current != *lost {
            return Ok(current);
        }
        tracing::debug!("session lost; opening a new one");
        let version = lost.version.to_str().unwrap_or(Revision::LATEST.as_str());
        let session = self.initialize(version).await?.session;
        legacy.session.send_replace(session.clone());
        self.setup.notifications.changes.end_all();
        Ok(session)
    }
}

/// The response to a server request outside of calls: a result for a ping, the roots of the connection if there are any,
/// otherwise an error.
pub(crate) fn respond_to_stray(id: &Value, method: &str, roots: Option<&[Root]>) -> String {
    match (method, roots) {
        (PING, _) => return write_result(id, &json!({})),
        (LIST_ROOTS, Some(roots)) => return write_result(id, &json!({"roots": roots})),
        _ => {}
    }
    let why =
        format!("{method} must be sent on the response stream of the call that it belongs to");
    write_error(id, ErrorCode::InvalidParams.as_i32(), &why)
}

/// Handles a message that belongs to no call. Returns the response to send, if any.
pub(crate) fn handle_stray(
    message: IncomingMessage,
    notifications: &Notifications,
    roots: Option<&[Root]>,
) -> Option<String> {
    match message {
        IncomingMessage::Response(_) | IncomingMessage::KeepAlive => None,
        IncomingMessage::Notification { method, params } => {
            notifications.handle(&method, params.as_deref());
            None
        }
        IncomingMessage::Request { id, method, .. } => Some(respond_to_stray(&id, &method, roots)),
    }
}
