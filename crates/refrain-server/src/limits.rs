//! Limits of one instance: settings, permits for limited resources, and the pressure that hands flows on.
//!
//! | module | contents |
//! | --- | --- |
//! | `settings` | [`ServerLimits`], as the server is built with them |
//! | `limiter` | a bound in total and per key, with permits |

mod limiter;
mod settings;

pub(crate) use limiter::{LimitKey, LimitReached, Limiter, Permit};
pub use settings::ServerLimits;

use refrain_core::Pressure;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The limits of one instance, and its permits in use. Dereferences to the settings.
#[derive(Debug)]
pub(crate) struct Limits {
    settings: ServerLimits,
    /// Calls in flight, and requests that count as one.
    pub(crate) calls: Arc<Limiter>,
    /// Calls whose home is memory.
    pub(crate) live: Arc<Limiter>,
    pub(crate) subscriptions: Arc<Limiter>,
    draining: AtomicBool,
}

impl Limits {
    pub(crate) fn new(settings: ServerLimits) -> Arc<Self> {
        Arc::new(Self {
            calls: Limiter::new("calls", settings.concurrent_calls, usize::MAX),
            live: Limiter::new("live calls", settings.live_calls, settings.live_calls_each),
            subscriptions: Limiter::new(
                "subscriptions",
                settings.subscriptions,
                settings.subscriptions_each,
            ),
            draining: AtomicBool::new(false),
            settings,
        })
    }

    /// Hands running flows on at their next checkpoint from now on.
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

impl Deref for Limits {
    type Target = ServerLimits;

    fn deref(&self) -> &ServerLimits {
        &self.settings
    }
}

impl Pressure for Limits {
    fn should_hand_on(&self) -> bool {
        self.is_draining() || self.calls.in_use() > self.settings.shed_above
    }

    fn should_hand_task_on(&self) -> bool {
        self.is_draining()
    }
}
