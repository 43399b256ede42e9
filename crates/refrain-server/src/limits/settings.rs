//! Configurable limits of a server.

use crate::builder::BuildError;
use refrain_core::Limits;
use std::time::Duration;

/// Declares a struct of settings. The default of a field stands after `=`.
macro_rules! settings {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}
pub(crate) use settings;

settings! {
    /// The limits of a server. Unless a field says otherwise, a request over a limit gets an error that names it.
    ///
    /// A caller is an authenticated principal, or all anonymous clients at one address. An IPv6 network of 64 bits counts as
    /// one address.
    ///
    /// If the limit of one caller is below the total, a caller with `n` units gets another only if more than `n` are free.
    /// Except for bytes, a quarter of the total must also stay free. With an authenticator, a quarter of the total is
    /// reserved for authenticated callers. If live calls, their bytes or subscriptions run out, the anonymous caller with the
    /// most loses one, unless the new caller would then have more.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ServerLimits {
        /// Maximum number of open connections of one port, including streams of HTTP/2. Over it, an idle or stalled
        /// connection of the address with the most connections is closed. If it has none, the new connection is closed.
        /// Reduced to the limit of open files without a reserve of a quarter, at most 1024. The metrics port has at most a
        /// quarter of this reserve. Default 8192.
        pub connections: usize = 8192,
        /// Maximum number of open connections and streams of one address. Further connections are closed, further streams get
        /// HTTP 503. Reduced in the same ratio as `connections`. Default 4096.
        pub connections_each: usize = 4096,
        /// Maximum size of the head of a request, in bytes; a larger one gets HTTP 431. At least 8 KiB. Default 64 KiB.
        pub head: usize = 64 * 1024,
        /// Maximum size of a request body, in bytes. Default 4 MiB.
        pub body: usize = 4 * 1024 * 1024,
        /// Maximum size of all request bodies in memory, in bytes; further requests get HTTP 503. Small bodies, which arrive
        /// at once, are not counted. At least one body fits. Default 256 MiB.
        pub body_all: usize = 256 * 1024 * 1024,
        /// Maximum size of the request bodies of one caller in memory, in bytes. At least one body fits. Default 64 MiB.
        pub body_each: usize = 64 * 1024 * 1024,
        /// Time limit for a client to send a request body; then the request gets HTTP 408. Default 30 seconds.
        pub body_time: Duration = Duration::from_secs(30),
        /// Maximum size of a rejected body that is read and discarded, so that the client can read the error response. With
        /// more, the connection is closed. Without authentication, at most `body` is discarded. Default 64 MiB.
        pub discard: usize = 64 * 1024 * 1024,
        /// Maximum number of JSON values in a message. Objects, arrays and object keys count as one value each. Parsed values
        /// need up to 300 bytes of memory each, however short their text is. Default 100,000.
        pub json_values: usize = 100_000,
        /// Maximum number of calls in flight; further calls get HTTP 503. Default 1024.
        pub concurrent_calls: usize = 1024,
        /// Maximum number of calls in flight of one caller. Default 512.
        pub concurrent_calls_each: usize = 512,
        /// Number of calls in flight above which flows are handed on at their next checkpoint or step. Default 768.
        pub shed_above: usize = 768,
        /// Time limit of a round. Default 60 seconds.
        pub round_time: Duration = Duration::from_secs(60),
        /// Maximum number of calls of legacy sessions and live tools in memory; further calls get HTTP 503. Default 1024.
        pub live_calls: usize = 1024,
        /// Maximum number of such calls of one caller. Default 128.
        pub live_calls_each: usize = 128,
        /// Maximum size of the arguments, asks, answers and kept replies of such calls, in bytes; calls and answers over it get
        /// HTTP 503. Default 256 MiB.
        pub live_bytes: usize = 256 * 1024 * 1024,
        /// Maximum size of these for one caller, in bytes. Default 64 MiB.
        pub live_bytes_each: usize = 64 * 1024 * 1024,
        /// Time limit of such a call, including the time it waits for answers. Default one hour.
        pub live_time: Duration = Duration::from_secs(3600),
        /// Time at shutdown for running calls to finish and for answers to live calls to arrive. Default 30 seconds.
        pub drain_time: Duration = Duration::from_secs(30),
        /// Time between the start of the shutdown, when `/readyz` begins to fail, and the rejection of new connections. Load
        /// balancers need it to notice. While live calls need answers, connections are accepted for longer. Default one second.
        pub drain_grace: Duration = Duration::from_secs(1),
        /// Time limit for a client to send the next complete request on its connection. A slower connection is closed after
        /// this time, at the latest after twice this time. Default 60 seconds.
        pub idle_time: Duration = Duration::from_secs(60),
        /// Number of entries on one page of a list. Default 100.
        pub page_size: usize = 100,
        /// Maximum number of open subscriptions; further ones get HTTP 503. Default 1024.
        pub subscriptions: usize = 1024,
        /// Maximum number of subscriptions of one caller. Default 64.
        pub subscriptions_each: usize = 64,
        /// Maximum number of resources in one subscription. Default 256.
        pub subscribed_resources: usize = 256,
        /// Maximum total size of the URIs in one subscription, in bytes. Default 64 KiB.
        pub subscribed_bytes: usize = 64 * 1024,
        /// Idle time after which a stream sends a keep-alive. Default 15 seconds.
        pub keep_alive: Duration = Duration::from_secs(15),
        /// Lifetime of a legacy session. Default one day.
        pub session_time: Duration = Duration::from_secs(24 * 3600),
        /// Maximum number of legacy sessions with a log level or subscriptions; further ones get HTTP 503. The same number
        /// of ended sessions is remembered. Default 65,536.
        pub sessions: usize = 65_536,
        /// Maximum number of such sessions of one caller. Default 8192.
        pub sessions_each: usize = 8192,
        /// Maximum size of the URIs that legacy sessions have subscribed to, in bytes. Default 64 MiB.
        pub session_bytes: usize = 64 * 1024 * 1024,
        /// Maximum size of these URIs for one caller, in bytes. Default 8 MiB.
        pub session_bytes_each: usize = 8 * 1024 * 1024,
        /// Time after the end of a call for which its broken stream in a legacy session can be resumed. An anonymous client
        /// must resume within this time also while the call runs. Default one minute.
        pub resume_time: Duration = Duration::from_secs(60),
        /// Maximum size of the events kept for one such stream, in bytes. Default 1 MiB.
        pub resume_bytes: usize = 1024 * 1024,
        /// Maximum size of the events kept for all such streams, in bytes. The oldest ended streams are dropped first. Default
        /// 64 MiB.
        pub resume_bytes_all: usize = 64 * 1024 * 1024,
        /// Maximum size of the events kept for the streams of one caller, in bytes. Default 16 MiB.
        pub resume_bytes_each: usize = 16 * 1024 * 1024,
        /// Maximum number of messages in one batch of a legacy session. Default 100.
        pub batch: usize = 100,
        /// The limits of one flow.
        pub flow: Limits = Limits::default(),
    }
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
