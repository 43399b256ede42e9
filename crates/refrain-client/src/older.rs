//! Servers of earlier revisions: they are greeted first, may keep a session, and ask while a call is under way.
//!
//! Always: what a server asks is answered only within a call of ours, on the stream of that call. Everywhere else it is
//! refused, except for pings.

mod beside;
mod inline;
mod keeper;

pub(crate) use inline::{PING, said_why};

pub(crate) use beside::Beside;

use crate::client::{Inner, Request};
use crate::error::{ErrorKind, RpcFailure};
use crate::news::News;
use crate::ordered::Ordered;
use crate::server::Server;
use crate::transport::{Incoming, Link, LinkError, Outgoing, Response};
use http::{HeaderMap, HeaderValue};
use keeper::Keeper;
use refrain_wire::{AskKind, ErrorCode, Implementation};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, watch};

/// The earlier revisions that are spoken here, newest first.
pub(crate) const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The error by which a server of 2025-11-25 wants somebody sent to URLs first.
const URLS_WANTED: i64 = -32042;

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
    pub(crate) server: Server,
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
        let keeper = match &inner.link {
            Link::Http(link) => Some(Keeper::start(
                Arc::clone(link),
                session.subscribe(),
                inner.setup.news.clone(),
                inner.setup.beside.clone(),
            )),
            Link::Pipe(_) => None,
        };
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
        let id = self.next_id();
        let params = json!({
            "protocolVersion": version,
            "capabilities": self.older_capabilities(),
            "clientInfo": self.setup.info,
        });
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params});
        let outgoing = Outgoing {
            id: Some(id),
            is_call: false,
            is_cancellable: false,
            is_resumable: false,
            body: body.to_string(),
            headers: HeaderMap::new(),
            draft: None,
        };
        let silence = self.setup.limits.silence;
        let mut exchange = self.link.open(&outgoing, silence).await?;
        let response = self.listen_to(&mut exchange, &HeaderMap::new()).await?;
        let refused = |refusal| LinkError::Final(ErrorKind::Refused(refusal));
        let raw = response.outcome.map_err(refused)?;
        let server = greeted(&raw, self.link.address()).map_err(LinkError::Final)?;
        let session = Session {
            // It is one of ours.
            version: HeaderValue::from_str(&server.version)
                .map_err(|error| LinkError::Final(ErrorKind::BadAnswer(error.to_string())))?,
            id: exchange.session().map(secret),
        };
        drop(exchange);
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
        self.link
            .tell(&Outgoing::unanswered(ready, session.headers()))
            .await?;
        Ok(Greeting { server, session })
    }

    /// What this client can do. What is answered by hand is not among it: the server would wait for it.
    fn older_capabilities(&self) -> Value {
        let has = |kind| self.setup.handlers.has(kind);
        let mut capabilities = Map::new();
        let mut elicitation = Map::new();
        for (kind, member) in [(AskKind::Form, "form"), (AskKind::Url, "url")] {
            if has(kind) {
                elicitation.insert(member.to_owned(), json!({}));
            }
        }
        if !elicitation.is_empty() {
            capabilities.insert("elicitation".to_owned(), elicitation.into());
        }
        for (kind, member) in [(AskKind::Sampling, "sampling"), (AskKind::Roots, "roots")] {
            if has(kind) {
                capabilities.insert(member.to_owned(), json!({}));
            }
        }
        capabilities.into()
    }

    /// Says which log messages are wanted, if any are. A server may decline.
    pub(crate) async fn choose_log_level(&self) {
        let Some((level, _)) = &self.setup.news.log else {
            return;
        };
        if !self.server.capabilities.contains_key("logging") {
            return;
        }
        let params = Map::from_iter([("level".to_owned(), level.as_str().into())]);
        let request = Request::harmless("logging/setLevel", params);
        if let Err(error) = self.request(&request).await {
            tracing::warn!(%error, "the server's log stays as it is");
        }
    }

    /// Sends a request to an older server, and once more in a new session if it has forgotten the present one.
    pub(crate) async fn exchange_in_session(
        &self,
        older: &Older,
        request: &Request<'_>,
    ) -> Result<Response, LinkError> {
        let session = older.session();
        let outcome = self.exchange_once(request, Some(&session)).await;
        // A request in a session that is gone was not looked at, so it cannot be done twice.
        if session.id.is_none() || !is_not_found(&outcome) {
            return outcome;
        }
        let renewed = self.renew(older, &session).await?;
        self.exchange_once(request, Some(&renewed)).await
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
        let version = gone.version.to_str().unwrap_or(REVISIONS[0]);
        let session = self.greet(version).await?.session;
        older.session.send_replace(session.clone());
        Ok(session)
    }
}

/// Whoever has the id of a session can speak in it.
pub(crate) fn secret(mut id: HeaderValue) -> HeaderValue {
    id.set_sensitive(true);
    id
}

/// Whether the server says that it knows nothing of the session. An error that names the request is an answer to it:
/// somebody has looked at the request, and may have done it.
pub(crate) fn is_not_found(outcome: &Result<Response, LinkError>) -> bool {
    const NOT_FOUND: u16 = 404;
    match outcome {
        Ok(response) => {
            let is_of_request = response.outcome.is_ok() || response.names_request;
            !is_of_request && response.status == Some(NOT_FOUND)
        }
        Err(LinkError::Final(ErrorKind::Status { status, .. })) => *status == NOT_FOUND,
        Err(_) => false,
    }
}

/// Reads the result of `initialize`.
fn greeted(raw: &RawValue, address: &str) -> Result<Server, ErrorKind> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Greeted {
        protocol_version: String,
        #[serde(default)]
        capabilities: Map<String, Value>,
        server_info: Option<Implementation>,
        instructions: Option<String>,
    }

    let read: Greeted = serde_json::from_str(raw.get()).map_err(|error| ErrorKind::NotMcp {
        address: address.to_owned(),
        why: format!("what it says of itself cannot be read: {error}"),
    })?;
    if !REVISIONS.contains(&read.protocol_version.as_str()) {
        return Err(ErrorKind::NoCommonVersion {
            supported: vec![read.protocol_version],
        });
    }
    Ok(Server {
        info: read.server_info,
        versions: vec![read.protocol_version.clone()],
        version: read.protocol_version,
        capabilities: read.capabilities,
        instructions: read.instructions,
    })
}

/// What a server of 2025-11-25 asks by refusing a call: visits to URLs, after which it is called again.
pub(crate) fn url_asks(refusal: &RpcFailure) -> Option<Ordered<Box<RawValue>>> {
    if refusal.code != URLS_WANTED {
        return None;
    }
    let wanted = refusal.data["elicitations"].as_array()?;
    let asks = wanted.iter().enumerate().map(|(place, params)| {
        let raw = to_raw_value(&json!({"method": "elicitation/create", "params": params})).ok()?;
        Some((format!("ask-{}", place + 1), raw))
    });
    let asks: Vec<_> = asks.collect::<Option<_>>()?;
    (!asks.is_empty()).then_some(Ordered(asks))
}

/// The refusal that such a call ends with when nobody goes there.
pub(crate) fn urls_not_visited(message: &str) -> RpcFailure {
    RpcFailure {
        code: URLS_WANTED,
        message: message.to_owned(),
        data: Value::Null,
    }
}

/// The answer to a request of the server's that belongs to no call: a ping is answered, everything else refused.
fn refuse_stray(id: &Value, method: &str) -> String {
    if method == "ping" {
        return answered(id, &json!({}));
    }
    let why = format!("{method} is answered only within the call it belongs to");
    refused(id, ErrorCode::InvalidParams.as_i32(), &why)
}

/// A response with a result.
fn answered(id: &Value, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

/// A response with an error.
fn refused(id: &Value, code: i32, why: &str) -> String {
    let error = json!({"code": code, "message": why});
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
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
