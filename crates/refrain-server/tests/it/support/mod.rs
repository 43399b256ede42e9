//! Shared test support: handlers, a clock, manually run tasks and recorded traces.

mod handlers;
pub(crate) mod tasks;
pub(crate) mod watch;

pub(crate) use handlers::{Guard, Login, Signals, Word, echo, greet, polled_again, signals};
pub(crate) use refrain_testkit::net::{
    CAPABILITIES, CLIENT_INFO, Connection, Instance, LOG_LEVEL, MetricsPort, Request, Response,
    Scrape, StdioClient, VERSION, asked, issuer, legacy, names, result, start, start_advertised,
    start_for, start_on, text, token, url_of, within,
};

use http::HeaderMap;
use refrain_core::{Principal, Source, SystemSource};
use refrain_server::{AuthFuture, Authenticator, BearerTokens};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
