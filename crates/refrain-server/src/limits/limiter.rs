//! A limited resource: a bound in total and one for each caller.

use parking_lot::Mutex;
use refrain_wire::RpcError;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, Semaphore};

/// Hands out permits for a resource.
#[derive(Debug)]
pub(crate) struct Limiter {
    resource: &'static str,
    total: Semaphore,
    most: usize,
    most_each: usize,
    /// Permits in use by callers that can be told apart.
    by_key: Mutex<HashMap<LimitKey, usize>>,
    /// Permits in use beyond the total.
    excess: AtomicUsize,
    /// Notified when the last permit is returned.
    idle: Notify,
}

/// Whose permits are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LimitKey {
    /// The principal with this id.
    Principal(Arc<str>),
    /// An anonymous client in the legacy session with this key.
    Session(Arc<str>),
}

/// No permit is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitReached {
    #[error("this instance already has its limit of {limit} {resource}; try again")]
    Total {
        limit: usize,
        resource: &'static str,
    },
    #[error("this instance already has its limit of {limit} {resource} of one caller; try again")]
    Caller {
        limit: usize,
        resource: &'static str,
    },
}

impl From<LimitReached> for RpcError {
    fn from(reached: LimitReached) -> Self {
        Self::internal(reached.to_string())
    }
}

impl Limiter {
    /// At most `most` permits, and `most_each` for one caller.
    pub(crate) fn new(resource: &'static str, most: usize, most_each: usize) -> Arc<Self> {
        let most = most.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            resource,
            total: Semaphore::new(most),
            most,
            most_each,
            by_key: Mutex::default(),
            excess: AtomicUsize::new(0),
            idle: Notify::new(),
        })
    }

    /// Takes a permit for a caller. Callers without a key share the total.
    pub(crate) fn acquire(self: &Arc<Self>, key: Option<LimitKey>) -> Result<Permit, LimitReached> {
        let resource = self.resource;
        let Ok(permit) = self.total.try_acquire() else {
            let limit = self.most;
            return Err(LimitReached::Total { limit, resource });
        };
        if let Some(key) = &key {
            let mut by_key = self.by_key.lock();
            let in_use = by_key.get(key).copied().unwrap_or_default();
            if in_use >= self.most_each {
                let limit = self.most_each;
                return Err(LimitReached::Caller { limit, resource });
            }
            by_key.insert(key.clone(), in_use + 1);
        }
        // Returned by the drop of `Permit`.
        permit.forget();
        Ok(self.permit(key, false))
    }

    /// Takes a permit for work that already began, beyond the total if there is none left.
    pub(crate) fn acquire_anyway(self: &Arc<Self>) -> Permit {
        match self.total.try_acquire() {
            Ok(permit) => {
                permit.forget();
                self.permit(None, false)
            }
            Err(_) => {
                self.excess.fetch_add(1, Ordering::AcqRel);
                self.permit(None, true)
            }
        }
    }

    fn permit(self: &Arc<Self>, key: Option<LimitKey>, is_excess: bool) -> Permit {
        Permit {
            limiter: self.clone(),
            key,
            is_excess,
        }
    }

    /// The number of permits in use.
    pub(crate) fn in_use(&self) -> usize {
        self.most - self.total.available_permits() + self.excess.load(Ordering::Acquire)
    }

    /// Waits until no permit is in use.
    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let mut idle = pin!(self.idle.notified());
            // Registered before the check, so that no notification is missed.
            idle.as_mut().enable();
            if self.in_use() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// The right to use one unit of a resource, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    key: Option<LimitKey>,
    is_excess: bool,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let limiter = &self.limiter;
        if let Some(key) = &self.key {
            let mut by_key = limiter.by_key.lock();
            if let Some(in_use) = by_key.get_mut(key) {
                *in_use -= 1;
                if *in_use == 0 {
                    by_key.remove(key);
                }
            }
        }
        if self.is_excess {
            limiter.excess.fetch_sub(1, Ordering::AcqRel);
        } else {
            limiter.total.add_permits(1);
        }
        if limiter.in_use() == 0 {
            limiter.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_bounded_in_total_and_per_caller() {
        let limiter = Limiter::new("calls", 2, 1);
        let key = |name: &str| Some(LimitKey::Principal(name.into()));
        let first = limiter.acquire(key("a")).expect("a permit");
        let reached = limiter.acquire(key("a")).expect_err("the caller's limit");
        assert_eq!(
            reached.to_string(),
            "this instance already has its limit of 1 calls of one caller; try again"
        );
        assert_eq!(limiter.in_use(), 1, "a rejected caller uses none");
        let _second = limiter.acquire(key("b")).expect("a permit");
        let reached = limiter.acquire(None).expect_err("the total");
        assert_eq!(
            reached.to_string(),
            "this instance already has its limit of 2 calls; try again"
        );
        drop(first);
        limiter.acquire(key("a")).expect("a permit again");
    }

    #[test]
    fn work_that_began_gets_a_permit_beyond_the_total() {
        let limiter = Limiter::new("calls", 1, 1);
        let first = limiter.acquire(None).expect("a permit");
        let second = limiter.acquire_anyway();
        assert_eq!(limiter.in_use(), 2);
        drop(first);
        assert_eq!(limiter.in_use(), 1);
        drop(second);
        assert_eq!(limiter.in_use(), 0);
    }
}
