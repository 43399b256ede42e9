//! Configurable limits of a server.

use crate::builder::BuildError;
use refrain_core::Limits;
use std::time::Duration;

/// The limits of a server. Unless a field says otherwise, a request over a limit gets an error that names it.
///
/// A caller is an authenticated principal, or all anonymous clients at one address. An IPv6 network of 64 bits counts as one
/// address.
///
/// If the limit of one caller is below the total, a caller with `n` units gets another only if more than `n` are free.
/// Except for bytes, a quarter of the total must also stay free. With an authenticator, a quarter of the total is
/// reserved for authenticated callers. If live calls, their bytes or subscriptions run out, the anonymous caller with the
/// most loses one, unless the new caller would then have more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Maximum number of open connections of one port, including streams of HTTP/2. Over it, an idle or stalled connection
    /// of the address with the most connections is closed. If it has none, the new connection is closed. Reduced to the limit
    /// of open files without a reserve of a quarter, at most 1024. The metrics port has at most a quarter of this reserve.
    /// Default 8192.
    pub connections: usize,
    /// Maximum number of open connections and streams of one address. Further connections are closed, further streams get
    /// HTTP 503. Reduced in the same ratio as `connections`. Default 4096.
    pub connections_each: usize,
    /// Maximum size of the head of a request, in bytes; a larger one gets HTTP 431. At least 8 KiB. Default 64 KiB.
    pub head: usize,
    /// Maximum size of a request body, in bytes. Default 4 MiB.
    pub body: usize,
    /// Maximum size of all request bodies in memory, in bytes; further requests get HTTP 503. Small bodies, which arrive
    /// at once, are not counted. At least one body fits. Default 256 MiB.
    pub body_all: usize,
    /// Maximum size of the request bodies of one caller in memory, in bytes. At least one body fits. Default 64 MiB.
    pub body_each: usize,
    /// Time limit for a client to send a request body; then the request gets HTTP 408. Default 30 seconds.
    pub body_time: Duration,
    /// Maximum size of a rejected body that is read and discarded, so that the client can read the error response. With
    /// more, the connection is closed. Without authentication, at most `body` is discarded. Default 64 MiB.
    pub discard: usize,
    /// Maximum number of JSON values in a message. Objects, arrays and object keys count as one value each. Parsed values
    /// need up to 300 bytes of memory each, however short their text is. Default 100,000.
    pub json_values: usize,
    /// Maximum number of calls in flight; further calls get HTTP 503. Default 1024.
    pub concurrent_calls: usize,
    /// Maximum number of calls in flight of one caller. Default 512.
    pub concurrent_calls_each: usize,
    /// Number of calls in flight above which flows are handed on at their next checkpoint or step. Default 768.
    pub shed_above: usize,
    /// Time limit of a round. Default 60 seconds.
    pub round_time: Duration,
    /// Maximum number of calls of legacy sessions and live tools in memory; further calls get HTTP 503. Default 1024.
    pub live_calls: usize,
    /// Maximum number of such calls of one caller. Default 128.
    pub live_calls_each: usize,
    /// Maximum size of the arguments, asks, answers and kept replies of such calls, in bytes; calls and answers over it get
    /// HTTP 503. Default 256 MiB.
    pub live_bytes: usize,
    /// Maximum size of these for one caller, in bytes. Default 64 MiB.
    pub live_bytes_each: usize,
    /// Time limit of such a call, including the time it waits for answers. Default one hour.
    pub live_time: Duration,
    /// Time at shutdown for running calls to finish and for answers to live calls to arrive. Default 30 seconds.
    pub drain_time: Duration,
    /// Time between the start of the shutdown, when `/readyz` begins to fail, and the rejection of new connections. Load
    /// balancers need it to notice. While live calls need answers, connections are accepted for longer. Default one second.
    pub drain_grace: Duration,
    /// Time limit for a client to send the next complete request on its connection. A slower connection is closed after
    /// this time, at the latest after twice this time. Default 60 seconds.
    pub idle_time: Duration,
    /// Number of entries on one page of a list. Default 100.
    pub page_size: usize,
    /// Maximum number of open subscriptions; further ones get HTTP 503. Default 1024.
    pub subscriptions: usize,
    /// Maximum number of subscriptions of one caller. Default 64.
    pub subscriptions_each: usize,
    /// Maximum number of resources in one subscription. Default 256.
    pub subscribed_resources: usize,
    /// Maximum total size of the URIs in one subscription, in bytes. Default 64 KiB.
    pub subscribed_bytes: usize,
    /// Idle time after which a stream sends a keep-alive. Default 15 seconds.
    pub keep_alive: Duration,
    /// Lifetime of a legacy session. Default one day.
    pub session_time: Duration,
    /// Maximum number of legacy sessions with a log level or subscriptions; further ones get HTTP 503. The same number
    /// of ended sessions is remembered. Default 65,536.
    pub sessions: usize,
    /// Maximum number of such sessions of one caller. Default 8192.
    pub sessions_each: usize,
    /// Maximum size of the URIs that legacy sessions have subscribed to, in bytes. Default 64 MiB.
    pub session_bytes: usize,
    /// Maximum size of these URIs for one caller, in bytes. Default 8 MiB.
    pub session_bytes_each: usize,
    /// Time after the end of a call for which its broken stream in a legacy session can be resumed. An anonymous client must
    /// resume within this time also while the call runs. Default one minute.
    pub resume_time: Duration,
    /// Maximum size of the events kept for one such stream, in bytes. Default 1 MiB.
    pub resume_bytes: usize,
    /// Maximum size of the events kept for all such streams, in bytes. The oldest ended streams are dropped first. Default
    /// 64 MiB.
    pub resume_bytes_all: usize,
    /// Maximum size of the events kept for the streams of one caller, in bytes. Default 16 MiB.
    pub resume_bytes_each: usize,
    /// Maximum number of messages in one batch of a legacy session. Default 100.
    pub batch: usize,
    /// The limits of one flow.
    pub flow: Limits,
}

impl ServerLimits {
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let too_small = [
            ("page_size", self.page_size == 0),
            ("keep_alive", self.keep_alive.is_zero()),
            // Session ids contain whole seconds.
            ("session_time", self.session_time.as_secs() == 0),
        ];
        match too_small.iter().find(|(_, is_too_small)| *is_too_small) {
            Some((limit, _)) => Err(BuildError::Limit(limit)),
            None => Ok(()),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 8192,
            connections_each: 4096,
            head: 64 * 1024,
            body: 4 * 1024 * 1024,
            body_all: 256 * 1024 * 1024,
            body_each: 64 * 1024 * 1024,
            body_time: Duration::from_secs(30),
            discard: 64 * 1024 * 1024,
            json_values: 100_000,
            concurrent_calls: 1024,
            concurrent_calls_each: 512,
            shed_above: 768,
            round_time: Duration::from_secs(60),
            live_calls: 1024,
            live_calls_each: 128,
            live_bytes: 256 * 1024 * 1024,
            live_bytes_each: 64 * 1024 * 1024,
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
            sessions: 65_536,
            sessions_each: 8192,
            session_bytes: 64 * 1024 * 1024,
            session_bytes_each: 8 * 1024 * 1024,
            resume_time: Duration::from_secs(60),
            resume_bytes: 1024 * 1024,
            resume_bytes_all: 64 * 1024 * 1024,
            resume_bytes_each: 16 * 1024 * 1024,
            batch: 100,
            flow: Limits::default(),
        }
    }
}
