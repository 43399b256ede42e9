//! Limits of one instance: settings, permits and load shedding.
//!
//! | module | contents |
//! | --- | --- |
//! | `settings` | [`ServerLimits`] |
//! | `limiter` | permits, limited in total and per caller |
//! | `live` | permits of calls in memory |
//! | `open_files` | limits that follow from the number of files that the process may open |
//! | `fair_queue` | a queue in which callers take turns |

mod fair_queue;
mod limiter;
mod live;
mod open_files;
mod settings;

pub(crate) use fair_queue::{FairQueue, QueuePermit};
pub(crate) use limiter::{LimitKey, LimitReached, Limiter, Permit, quarter};
pub(crate) use live::{CallPermits, LivePermit};
pub(crate) use open_files::{PortKind, file_limit, relay_limits};
pub use settings::ServerLimits;
pub(crate) use settings::settings;

use live::WaitingCalls;
use parking_lot::Mutex;
use refrain_core::Pressure;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

/// Work on more bytes takes turns with that of other callers, in the queue `large_work`.
pub(crate) const LARGE_WORK: usize = 32 << 10;

/// The limits of one instance and their permits. Dereferences to the settings.
#[derive(Debug)]
pub(crate) struct InstanceLimits {
    settings: ServerLimits,
    /// Calls in flight and requests that count as calls.
    pub(crate) calls: Arc<Limiter>,
    /// Calls whose home is memory.
    pub(crate) live: Arc<Limiter>,
    live_bytes: Arc<Limiter>,
    waiting: Mutex<WaitingCalls>,
    /// Ended live calls whose last reply is kept.
    kept_replies: Arc<Limiter>,
    pub(crate) subscriptions: Arc<Limiter>,
    /// Bytes of request bodies that did not arrive at once.
    pub(crate) bodies: Arc<Limiter>,
    /// Bytes of large responses that clients have not read.
    pub(crate) responses: Arc<Limiter>,
    /// Limits the large requests, tokens and tasks that are parsed, opened or sealed at the same time to the number of
    /// cores. A caller with many of them delays only itself.
    pub(crate) large_work: Arc<FairQueue>,
    /// The turns of pipelined requests, which a client sends without reading responses: one at a time is started.
    pub(crate) pipelined_requests: Arc<FairQueue>,
    is_draining: AtomicBool,
    /// Whether callers can be authenticated. If so, a part of each limit is reserved for authenticated callers.
    pub(crate) has_authenticator: bool,
}

impl InstanceLimits {
    pub(crate) fn new(settings: ServerLimits, has_authenticator: bool) -> Arc<Self> {
        let limiter = |resource, limit, each| {
            Limiter::new(resource, limit, each).reserve_for_principals(has_authenticator)
        };
        let byte_limiter = |resource, limit, each| {
            Limiter::leaving_room(resource, limit, each).reserve_for_principals(has_authenticator)
        };
        let (live, live_each) = (settings.live_calls, settings.live_calls_each);
        let body_all = settings.body_all.max(settings.body);
        let body_each = settings.body_each.max(settings.body);
        Arc::new(Self {
            calls: limiter(
                "calls",
                settings.concurrent_calls,
                settings.concurrent_calls_each,
            ),
            live: limiter("live calls", live, live_each),
            live_bytes: byte_limiter(
                "bytes of live calls",
                settings.live_bytes,
                settings.live_bytes_each,
            ),
            waiting: Mutex::default(),
            kept_replies: limiter("kept replies", live, live_each),
            subscriptions: limiter(
                "subscriptions",
                settings.subscriptions,
                settings.subscriptions_each,
            ),
            bodies: byte_limiter("bytes of request bodies", body_all, body_each),
            responses: byte_limiter("bytes of unread responses", body_all, body_each),
            large_work: FairQueue::new(
                available_parallelism().map_or(2, |cores| cores.get().max(2)),
            ),
            pipelined_requests: FairQueue::new(1),
            is_draining: AtomicBool::new(false),
            has_authenticator,
            settings,
        })
    }

    /// From now on, running flows are handed on at their next checkpoint.
    pub(crate) fn start_draining(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}

impl Deref for InstanceLimits {
    type Target = ServerLimits;

    fn deref(&self) -> &ServerLimits {
        &self.settings
    }
}

impl Pressure for InstanceLimits {
    fn should_hand_on(&self) -> bool {
        self.is_draining() || self.calls.in_use() > self.settings.shed_above
    }

    fn should_hand_task_on(&self) -> bool {
        self.is_draining()
    }
}
