//! The limits that a server is built with.

use crate::builder::BuildError;
use refrain_core::Limits;
use std::time::Duration;

/// The limits of a server. A request that exceeds one gets an error that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Bytes of a request's body. Default 4 MiB.
    pub body: usize,
    /// Bytes of a larger body that are read and discarded, so that the client can read the response; with more, the
    /// connection is closed. Default 64 MiB.
    pub discard: usize,
    /// Calls in flight; others get HTTP 503. Default 1024.
    pub concurrent_calls: usize,
    /// Calls in flight above which flows are handed on at their checkpoints. Default 768.
    pub shed_above: usize,
    /// Time of one round. Default 60 seconds.
    pub round_time: Duration,
    /// Calls whose home is memory, of legacy sessions and live tools; others get HTTP 503. Default 1024.
    pub live_calls: usize,
    /// The same for one authenticated caller, or one legacy session. Default 128.
    pub live_calls_each: usize,
    /// Time of one such call, including the time until it is answered. Default one hour.
    pub live_time: Duration,
    /// Time for running calls to finish when the server stops. Default 30 seconds.
    pub drain_time: Duration,
    /// Time from the start of the shutdown until new connections are rejected, in which a load balancer sees `/readyz`
    /// fail. Default one second.
    pub drain_grace: Duration,
    /// Time for a client to send the next request on its connection, head and body. A slower connection is closed after
    /// once to twice this time. Default 60 seconds.
    pub idle_time: Duration,
    /// Entries on one page of a list. Default 100.
    pub page_size: usize,
    /// Open subscriptions; others get HTTP 503. Default 1024.
    pub subscriptions: usize,
    /// Subscriptions of one authenticated caller. Default 64.
    pub subscriptions_each: usize,
    /// Resources in one subscription. Default 256.
    pub subscribed_resources: usize,
    /// Bytes of their URIs together. Default 64 KiB.
    pub subscribed_bytes: usize,
    /// Time without a message after which a stream sends a keep-alive. Default 15 seconds.
    pub keep_alive: Duration,
    /// Lifetime of a legacy session. Default one day.
    pub session_time: Duration,
    /// Time for which the stream of a legacy session can be resumed. Default one minute.
    pub resume_time: Duration,
    /// Bytes that are kept of such a stream. Default 1 MiB.
    pub resume_bytes: usize,
    /// Bytes that are kept of all such streams; the oldest ended streams are dropped first. Default 64 MiB.
    pub resume_bytes_all: usize,
    /// Messages in one batch of a legacy session. Default 100.
    pub batch: usize,
    /// The limits of one flow.
    pub flow: Limits,
}

impl ServerLimits {
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let zero = [
            ("page_size", self.page_size == 0),
            ("keep_alive", self.keep_alive.is_zero()),
            // Counted in whole seconds.
            ("session_time", self.session_time.as_secs() == 0),
        ];
        match zero.iter().find(|(_, is_zero)| *is_zero) {
            Some((limit, _)) => Err(BuildError::Limit(limit)),
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
