//! Shared test support: handlers, a clock, manually run tasks and recorded traces.

mod handlers;
pub(crate) mod tasks;
pub(crate) mod watch;

pub(crate) use handlers::{
    Guard, Login, SignalReceiver, Signals, Word, echo, expect_signal, greet, held, logs, note,
    poll_again, signals, whoami,
};
pub(crate) use refrain_testkit::net::{
    CAPABILITIES_KEY, CLIENT_INFO_KEY, Connection, Instance, LOG_LEVEL_KEY, MetricsPort, Request,
    Response, Scrape, StdioClient, VERSION_KEY, asked, assert_contains, issuer, legacy, result,
    start, start_advertised, start_for, start_on, text, token, until, url_of, within,
};

use http::HeaderMap;
use refrain_core::{KeyRing, Principal, Source, SystemSource};
use refrain_server::{AuthFuture, Authenticator, BearerTokens, Caller, MessageResponse, Server};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Handles a request without a transport. Returns the first message of the response.
pub(crate) async fn handle(server: &Server, request: &Request, caller: impl Into<Caller>) -> Value {
    let mut response = server.handle(&request.message(), caller.into()).await;
    next_message(&mut response).await
}

/// The next message of a response.
pub(crate) async fn next_message(response: &mut MessageResponse) -> Value {
    let message = within("a message", response.next()).await;
    serde_json::from_slice(&message.expect("a message")).expect("JSON")
}

/// A call of the tool `echo`.
pub(crate) fn echo_call() -> Request {
    Request::tool("echo", json!({"text": "x"}))
}

/// A new key ring.
pub(crate) fn keys() -> KeyRing {
    KeyRing::generate(&SystemSource::new())
}

/// The answer of a client that accepts a form and fills in this name.
pub(crate) fn accept(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// The answers to a round that asks for `login`.
pub(crate) fn login(name: &str) -> Value {
    json!({"login": accept(name)})
}

/// The same text with another character at this position.
pub(crate) fn tampered(text: &str, at: usize) -> String {
    let mut tampered = text.to_owned();
    let other = if &text[at..=at] == "A" { "B" } else { "A" };
    tampered.replace_range(at..=at, other);
    tampered
}

/// The same request, from a client at 192.0.2.`host` behind a proxy.
pub(crate) fn forwarded_for(request: Request, host: u8) -> Request {
    request.header("X-Forwarded-For", &format!("192.0.2.{host}"))
}

/// The notification that cancels the request with this id.
pub(crate) fn cancel(id: impl Serialize) -> Value {
    let params = json!({"requestId": id});
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
}

/// A manually advanced clock.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_800_000_000)))
    }

    pub(crate) fn forward(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Source for Clock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn fill(&self, bytes: &mut [u8]) {
        SystemSource::new().fill(bytes);
    }
}

/// Accepts requests without credentials, as anonymous ones.
pub(crate) struct OptionalBearer(pub(crate) BearerTokens);

impl Authenticator for OptionalBearer {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a> {
        match headers.contains_key("authorization") {
            true => self.0.authenticate(headers),
            false => Box::pin(std::future::ready(Ok(Principal::anonymous().into()))),
        }
    }
}
