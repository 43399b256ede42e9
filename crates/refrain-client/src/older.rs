//! Servers of earlier revisions: they are greeted first, may keep a session, and ask while a call is under way.
//!
//! Always: what a server asks is answered only within a call of ours, on the stream of that call. Everywhere else it is
//! refused, except for pings.

mod beside;
mod inline;
mod keeper;

pub(crate) use inline::said_why;

pub(crate) use beside::Beside;

use crate::client::Inner;
use crate::error::ErrorKind;
use crate::news::News;
use crate::protocol::RequestPlan;
use crate::transport::{Incoming, LinkError, Outgoing, Response, is_session_unknown};
use http::{HeaderMap, HeaderValue};
use keeper::Keeper;
use refrain_wire::ErrorCode;
use refrain_wire::client::{
    ReadError, Request, RpcFailure, ServerInfo, URLS_REQUIRED, write_initialized, write_refusal,
    write_result,
};
use refrain_wire::legacy::Revision;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, watch};

/// The request that is answered everywhere.
pub(crate) const PING: &str = "ping";

/// What was agreed with an older server.
#[derive(Debug)]
pub(crate) struct Older {
    /// Which start of the server's process was greeted.
    greeted: AtomicU64,
    session: watch::Sender<Session>,
    /// Held while a new session is opened.
    renewing: Mutex<()>,
    /// What goes on beside the calls, where there are sessions.
    keeper: Option<Keeper>,
}

/// A connection as the server knows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Session {
    version: HeaderValue,
    id: Option<HeaderValue>,
}

/// What a server says when it is greeted.
pub(crate) struct Greeting {
    pub(crate) server: ServerInfo,
    session: Session,
}

impl Session {
    /// The headers of every message in it.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("mcp-protocol-version", self.version.clone());
        if let Some(id) = &self.id {
            headers.insert("mcp-session-id", id.clone());
        }
        headers
    }
}

impl Older {
    /// Keeps what was agreed.
    pub(crate) fn new(greeting: Greeting, inner: &Inner) -> Self {
        let session = watch::Sender::new(greeting.session);
        let keeper = inner.link.http().map(|link| {
            let (news, beside) = (inner.setup.news.clone(), inner.setup.beside.clone());
            Keeper::start(Arc::clone(link), session.subscribe(), news, beside)
        });
        Self {
            greeted: AtomicU64::new(0),
            session,
            renewing: Mutex::new(()),
            keeper,
        }
    }

    pub(crate) fn session(&self) -> Session {
        self.session.borrow().clone()
    }

    /// Waits until the server is heard outside of calls too, where it is.
    pub(crate) async fn is_heard(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.opened().await;
        }
    }

    /// Nobody waits any longer for the response to a request.
    pub(crate) fn cancel(&self, id: u64) {
        if let Some(keeper) = &self.keeper {
            keeper.cancel(id);
        }
    }

    /// Ends the session, and waits until the server knows.
    pub(crate) async fn close(self) {
        drop(self.session);
        if let Some(keeper) = self.keeper {
            keeper.close().await;
        }
    }
}

impl Inner {
    /// Greets an older server with the revision to be spoken.
    pub(crate) async fn greet(&self, version: &str) -> Result<Greeting, LinkError> {
        let id = self.ids.next();
        let request = Request::initialize(version, &self.setup.info, self.older_capabilities());
        let outgoing = Outgoing {
            is_cancellable: false,
            ..Outgoing::request(id, request.write(id, None), HeaderMap::new())
        };
        let silence = self.setup.limits.silence;
        let mut exchange = self.link.open(&outgoing, silence).await?;
        let response = self.listen_to(&mut exchange, &HeaderMap::new()).await?;
        let refused = |refusal| LinkError::Final(ErrorKind::Refused(refusal));
        let raw = response.outcome.map_err(refused)?;
        let server = ServerInfo::initialized(&raw).map_err(|error| {
            LinkError::Final(ErrorKind::NotMcp {
                address: self.link.address().to_owned(),
                why: error.to_string(),
            })
        })?;
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

    /// Says which log messages are wanted, if any are. A server may decline.
    pub(crate) async fn choose_log_level(&self) {
        let Some((level, _)) = &self.setup.news.log else {
            return;
        };
        if !self.server.capabilities.contains_key("logging") {
            return;
        }
        if let Err(error) = self.request(Request::set_level(*level)).await {
            tracing::warn!(%error, "the server's log stays as it is");
        }
    }

    /// Sends a request to an older server, and once more in a new session if it has forgotten the present one.
    pub(crate) async fn exchange_in_session(
        &self,
        older: &Older,
        plan: &RequestPlan<'_>,
    ) -> Result<Response, LinkError> {
        let session = older.session();
        let outcome = self.exchange_once(plan, Some(&session)).await;
        // A request in a session that is gone was not looked at, so it cannot be done twice.
        if session.id.is_none() || !is_session_unknown(&outcome) {
            return outcome;
        }
        let renewed = self.renew(older, &session).await?;
        self.exchange_once(plan, Some(&renewed)).await
    }

    /// Greets the server again if its process was started again since.
    pub(crate) async fn greet_again(&self, start: u64) -> Result<(), LinkError> {
        let Some(older) = &self.older else {
            return Ok(());
        };
        if older.greeted.load(Ordering::Relaxed) != start {
            self.greet(&self.server.version).await?;
            older.greeted.store(start, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Opens a new session, unless somebody else has by now.
    async fn renew(&self, older: &Older, gone: &Session) -> Result<Session, LinkError> {
        let _renewing = older.renewing.lock().await;
        let present = older.session();
        if present != *gone {
            return Ok(present);
        }
        tracing::debug!("the session is gone; opening another");
        let version = gone.version.to_str().unwrap_or(Revision::LATEST.as_str());
        let session = self.greet(version).await?.session;
        older.session.send_replace(session.clone());
        Ok(session)
    }
}

/// The refusal that such a call ends with when nobody goes there.
pub(crate) fn urls_not_visited(message: &str) -> RpcFailure {
    RpcFailure {
        code: URLS_REQUIRED,
        message: message.to_owned(),
        data: Value::Null,
    }
}

/// The answer to a request of the server's that belongs to no call: a ping is answered, everything else refused.
pub(crate) fn refuse_stray(id: &Value, method: &str) -> String {
    if method == PING {
        return write_result(id, &json!({}));
    }
    let why = format!("{method} is answered only within the call it belongs to");
    write_refusal(id, ErrorCode::InvalidParams.as_i32(), &why)
}

/// Takes a message that belongs to no call. Gives the response to it, if it wants one.
pub(crate) fn take_stray(message: Incoming, news: &News) -> Option<String> {
    match message {
        Incoming::Response(_) | Incoming::Alive => None,
        Incoming::Notification { method, params } => {
            news.tell(&method, params.as_deref());
            None
        }
        Incoming::Request { id, method, .. } => Some(refuse_stray(&id, &method)),
    }
}
