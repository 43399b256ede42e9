//! Permits for a resource, limited in total and per caller.

use parking_lot::Mutex;
use refrain_wire::RpcError;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, Semaphore};

#[derive(Debug)]
pub(crate) struct Limiter {
    resource: &'static str,
    total: Semaphore,
    limit: usize,
    limit_per_caller: usize,
    /// Permits in use, by caller.
    by_key: Mutex<HashMap<LimitKey, usize>>,
    /// Permits in use above the total.
    excess: AtomicUsize,
    /// Notified when the last permit is returned.
    idle: Notify,
}

/// A caller whose permits are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LimitKey {
    /// A principal, by id.
    Principal(Arc<str>),
    /// An anonymous client, by the key of its legacy session.
    Session(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitReached {
    #[error("this instance is at its limit of {limit} {resource}; try again later")]
    Total {
        limit: usize,
        resource: &'static str,
    },
    #[error("this caller is at its limit of {limit} {resource} on this instance; try again later")]
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
    pub(crate) fn new(resource: &'static str, limit: usize, limit_per_caller: usize) -> Arc<Self> {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            resource,
            total: Semaphore::new(limit),
            limit,
            limit_per_caller,
            by_key: Mutex::default(),
            excess: AtomicUsize::new(0),
            idle: Notify::new(),
        })
    }

    /// Takes a permit. Without a key, only the total is checked.
    pub(crate) fn acquire(self: &Arc<Self>, key: Option<LimitKey>) -> Result<Permit, LimitReached> {
        let resource = self.resource;
        let Ok(permit) = self.total.try_acquire() else {
            let limit = self.limit;
            return Err(LimitReached::Total { limit, resource });
        };
        if let Some(key) = &key {
            let mut by_key = self.by_key.lock();
            let in_use = by_key.get(key).copied().unwrap_or_default();
            if in_use >= self.limit_per_caller {
                let limit = self.limit_per_caller;
                return Err(LimitReached::Caller { limit, resource });
            }
            by_key.insert(key.clone(), in_use + 1);
        }
        // Returned when `Permit` is dropped.
        permit.forget();
        Ok(self.permit(key, false))
    }

    /// Takes a permit for work that already started, above the total if necessary.
    pub(crate) fn acquire_unlimited(self: &Arc<Self>) -> Permit {
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

    pub(crate) fn in_use(&self) -> usize {
        self.limit - self.total.available_permits() + self.excess.load(Ordering::Acquire)
    }

    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let mut idle = pin!(self.idle.notified());
            // Enabled before the check, so that no notification is missed.
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
    fn permits_are_limited_in_total_and_per_caller() {
        let limiter = Limiter::new("calls", 2, 1);
        let key = |name: &str| Some(LimitKey::Principal(name.into()));
        let first = limiter.acquire(key("a")).expect("a permit is available");
        let reached = limiter
            .acquire(key("a"))
            .expect_err("the caller is at its limit");
        assert_eq!(
            reached.to_string(),
            "this caller is at its limit of 1 calls on this instance; try again later"
        );
        assert_eq!(limiter.in_use(), 1, "a rejected caller takes no permit");
        let _second = limiter.acquire(key("b")).expect("a permit is available");
        let reached = limiter.acquire(None).expect_err("the total is reached");
        assert_eq!(
            reached.to_string(),
            "this instance is at its limit of 2 calls; try again later"
        );
        drop(first);
        limiter.acquire(key("a")).expect("the permit was returned");
    }

    #[test]
    fn started_work_gets_a_permit_above_the_total() {
        let limiter = Limiter::new("calls", 1, 1);
        let first = limiter.acquire(None).expect("a permit is available");
        let second = limiter.acquire_unlimited();
        assert_eq!(limiter.in_use(), 2);
        drop(first);
        assert_eq!(limiter.in_use(), 1);
        drop(second);
        assert_eq!(limiter.in_use(), 0);
    }
}
