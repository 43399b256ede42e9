//! The limits that a server is built with.

use crate::builder::BuildError;
use refrain_core::Limits;
use std::time::Duration;

/// The limits of a server. Every one can be set; passing one is answered with an error that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Bytes of a request's body. Default 4 MiB.
    pub body: usize,
    /// Bytes of a body over that limit that are read and thrown away, so that the client gets to read the answer; one
    /// that sends more finds the connection closed. Default 64 MiB.
    pub discard: usize,
    /// Calls that run at the same time; one more is answered with HTTP 503. Default 1024.
    pub concurrent_calls: usize,
    /// Calls that run at the same time before flows are handed on at their checkpoints. Default 768.
    pub shed_above: usize,
    /// Time of one round. Default 60 seconds.
    pub round_time: Duration,
    /// Calls whose home is memory, those of older clients and of live tools; one more is answered with HTTP 503. Default
    /// 1024.
    pub live_calls: usize,
    /// Such calls of one caller who is known by name, or of one session of an older client; one more is answered with HTTP
    /// 503. Default 128.
    pub live_calls_each: usize,
    /// Time of one such call, however long a person thinks: one that waits for an answer then is given up. Default one hour.
    pub live_time: Duration,
    /// Time that running calls are given when the server is told to stop. Default 30 seconds.
    pub drain_time: Duration,
    /// Time between the word that the server is to stop and its closing to new connections, so that a load balancer
    /// sees `/readyz` first. Default one second.
    pub drain_grace: Duration,
    /// Time a client has to send the next request on its connection, head and body. A connection that sends nothing,
    /// or too slowly, is closed after once to twice this time. Default 60 seconds.
    pub idle_time: Duration,
    /// Things on one page of a list. Default 100.
    pub page_size: usize,
    /// Clients that listen at the same time; one more is answered with HTTP 503. Default 1024.
    pub subscriptions: usize,
    /// Subscriptions of one caller who is known by name. Default 64.
    pub subscriptions_each: usize,
    /// Resources in one subscription. Default 256.
    pub subscribed_resources: usize,
    /// Bytes of their URIs together. Default 64 KiB.
    pub subscribed_bytes: usize,
    /// Time without a message after which a stream says that it is still there. Default 15 seconds.
    pub keep_alive: Duration,
    /// Time that a session of an older client lasts; then it opens another. Default one day.
    pub session_time: Duration,
    /// Time that the stream of an older client is kept for it to come back to. Default one minute.
    pub resume_time: Duration,
    /// Bytes of such a stream that are kept. Default 1 MiB.
    pub resume_bytes: usize,
    /// Bytes of all such streams that are kept. Where there are more, those that ended go first, the oldest before the
    /// others; what a slow client still reads of one that is gone is not counted. Default 64 MiB.
    pub resume_bytes_all: usize,
    /// Messages in one batch of an older client. Default 100.
    pub batch: usize,
    /// The limits of one flow.
    pub flow: Limits,
}

impl ServerLimits {
    /// Zero of these would make a server that does nothing, or never stops doing one thing.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let nothing = [
            ("page_size", self.page_size == 0),
            ("keep_alive", self.keep_alive.is_zero()),
            // Counted in whole seconds.
            ("session_time", self.session_time.as_secs() == 0),
        ];
        match nothing.iter().find(|(_, zero)| *zero) {
            Some((limit, _)) => Err(BuildError::Limit { limit }),
            None => Ok(()),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            body: 4 * 1024 * 1024,
            discard: 64 * 1024 * 1024,
            concurrent_calls: 1024,
            shed_above: 768,
            round_time: Duration::from_secs(60),
            live_calls: 1024,
            live_calls_each: 128,
            live_time: Duration::from_secs(3600),
            drain_time: Duration::from_secs(30),
            drain_grace: Duration::from_secs(1),
            idle_time: Duration::from_secs(60),
            page_size: 100,
            subscriptions: 1024,
            subscriptions_each: 64,
            subscribed_resources: 256,
            subscribed_bytes: 64 * 1024,
            keep_alive: Duration::from_secs(15),
            session_time: Duration::from_secs(24 * 3600),
            resume_time: Duration::from_secs(60),
            resume_bytes: 1024 * 1024,
            resume_bytes_all: 64 * 1024 * 1024,
            batch: 100,
            flow: Limits::default(),
        }
    }
}
