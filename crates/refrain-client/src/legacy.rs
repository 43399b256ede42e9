//! Legacy servers: they are initialized first, may have a session, and ask while a call is in flight.
//!
//! An ask is answered only within a call, on the stream of that call. Everywhere else requests are refused, except pings.

mod asks;
mod session_stream;
mod unassociated;

pub(crate) use asks::join_unanswered;
pub(crate) use unassociated::UnassociatedAsks;

use crate::client::Inner;
use crate::error::ErrorKind;
use crate::notifications::Notifications;
use crate::protocol::RequestPlan;
use crate::transport::{Incoming, LinkError, LinkResult, Outgoing, Response};
use http::{HeaderMap, HeaderValue};
use refrain_wire::ErrorCode;
use refrain_wire::client::{
    ReadError, Request, ServerInfo, write_error, write_initialized, write_result,
};
use refrain_wire::legacy::Revision;
use serde_json::{Value, json};
use session_stream::SessionStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, watch};

/// The request that is answered everywhere.
pub(crate) const PING: &str = "ping";

pub(crate) struct Legacy {
    /// The start of the server's process that was initialized.
    initialized: AtomicU64,
    session: watch::Sender<Session>,
    /// Held while a new session is opened.
    renewing: Mutex<()>,
    /// Over HTTP only.
    stream: Option<SessionStream>,
}

#[derive(Clone, PartialEq)]
pub(crate) struct Session {
    version: HeaderValue,
    id: Option<HeaderValue>,
}

pub(crate) struct Greeting {
    pub(crate) server: ServerInfo,
    session: Session,
}

impl Session {
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
    /// Opens the session stream, and waits for it a moment.
    pub(crate) async fn start(greeting: Greeting, inner: &Inner) -> Self {
        let session = watch::Sender::new(greeting.session);
        let stream = inner
            .link
            .http()
            .map(|link| SessionStream::start(Arc::clone(link), session.subscribe(), &inner.setup));
        if let Some(stream) = &stream {
            stream.opened().await;
        }
        Self {
            initialized: AtomicU64::new(0),
            session,
            renewing: Mutex::new(()),
            stream,
        }
    }

    pub(crate) fn session(&self) -> Session {
        self.session.borrow().clone()
    }

    pub(crate) fn cancel(&self, id: u64) {
        if let Some(stream) = &self.stream {
            stream.cancel(id);
        }
    }

    /// Ends the session, and waits until the server knows.
    pub(crate) async fn close(self) {
        drop(self.session);
        if let Some(stream) = self.stream {
            stream.close().await;
        }
    }
}

impl Inner {
    pub(crate) async fn initialize(&self, version: &str) -> LinkResult<Greeting> {
        let id = self.ids.next();
        let request = Request::initialize(version, &self.setup.info, self.capabilities(true));
        let outgoing = Outgoing {
            id: Some(id),
            silence: self.setup.limits.silence,
            body: request.write(id, None),
            ..Outgoing::default()
        };
        let mut exchange = self.link.open(&outgoing).await?;
        let response = self.read_response(&mut exchange, &HeaderMap::new()).await?;
        let refused = |refusal| LinkError::Final(ErrorKind::Refused(refusal));
        let raw = response.outcome.map_err(refused)?;
        let server = ServerInfo::from_initialize(&raw)
            .map_err(|error| LinkError::Final(self.not_mcp(error.to_string())))?;
        if !Revision::CLIENT.contains(&server.version.as_str()) {
            let supported = vec![server.version];
            return Err(LinkError::Final(ErrorKind::NoCommonVersion { supported }));
        }
        let session = Session {
            version: HeaderValue::from_str(&server.version)
                .map_err(|error| ReadError::Unexpected(error.to_string()))?,
            id: exchange.session(),
        };
        drop(exchange);
        let ready = Outgoing::unanswered(write_initialized(), session.headers());
        self.link.tell(&ready).await?;
        Ok(Greeting { server, session })
    }

    /// Sets the log level, if log messages are wanted. A server may decline.
    pub(crate) async fn set_log_level(&self) {
        if let Some((level, _)) = &self.setup.notifications.log
            && self.server.capabilities.contains_key("logging")
            && let Err(error) = self.request(Request::set_level(*level)).await
        {
            tracing::warn!(%error, "failed to set the log level");
        }
    }

    /// Sends a request, and once more in a new session if the server does not know the present one.
    pub(crate) async fn exchange_in_session(
        &self,
        legacy: &Legacy,
        plan: &RequestPlan<'_>,
    ) -> LinkResult<Response> {
        let session = legacy.session();
        let outcome = self.exchange_once(plan, Some(&session)).await;
        let is_unknown = match &outcome {
            Ok(response) => response.is_session_unknown(),
            Err(error) => error.is_not_found(),
        };
        // The server did not look at a request in an unknown session, so it is not done twice.
        if session.id.is_none() || !is_unknown {
            return outcome;
        }
        let renewed = self.renew_session(legacy, &session).await?;
        self.exchange_once(plan, Some(&renewed)).await
    }

    /// Initializes the server again if its process was restarted since.
    pub(crate) async fn initialize_again(&self, start: u64) -> LinkResult<()> {
        if let Some(legacy) = &self.legacy
            && legacy.initialized.load(Ordering::Relaxed) != start
        {
            self.initialize(&self.server.version).await?;
            legacy.initialized.store(start, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Opens a new session, unless another request has opened one since.
    async fn renew_session(&self, legacy: &Legacy, gone: &Session) -> LinkResult<Session> {
        let _renewing = legacy.renewing.lock().await;
        let present = legacy.session();
        if present != *gone {
            return Ok(present);
        }
        tracing::debug!("session lost; opening a new one");
        let version = gone.version.to_str().unwrap_or(Revision::LATEST.as_str());
        let session = self.initialize(version).await?.session;
        legacy.session.send_replace(session.clone());
        Ok(session)
    }
}

/// The response to a request of the server outside of calls: pings are answered, other requests refused.
pub(crate) fn refuse_stray(id: &Value, method: &str) -> String {
    if method == PING {
        return write_result(id, &json!({}));
    }
    let why = format!("{method} is answered only within the call it belongs to");
    write_error(id, ErrorCode::InvalidParams.as_i32(), &why)
}

/// Handles a message that belongs to no call. Returns the response to it, if there is one.
pub(crate) fn take_stray(message: Incoming, notifications: &Notifications) -> Option<String> {
    match message {
        Incoming::Response(_) | Incoming::Alive => None,
        Incoming::Notification { method, params } => {
            notifications.handle(&method, params.as_deref());
            None
        }
        Incoming::Request { id, method, .. } => Some(refuse_stray(&id, &method)),
    }
}
