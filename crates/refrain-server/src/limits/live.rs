//! Permits of live calls: calls in the memory of this instance between rounds.
//!
//! If a limit is used up, the anonymous caller that uses most of it loses its longest-waiting call, provided that it has more than
//! the new caller would have. So abandoned calls of anonymous callers do not block other callers.

use super::InstanceLimits;
use super::limiter::{LimitKey, LimitReached, Limiter, Permit};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Waker};

/// The right to keep a call and its bytes in memory.
pub(crate) struct LivePermit {
    limits: Arc<InstanceLimits>,
    key: LimitKey,
    held: Arc<Mutex<HeldPermits>>,
    /// The number of the current wait. `None`: the call is running.
    waiting: Option<u64>,
}

#[derive(Default)]
struct HeldPermits {
    /// `None`: the call was evicted.
    permits: Option<CallPermits>,
    /// Wakes a waiting call when it is evicted.
    waker: Option<Waker>,
}

/// Permits for a call, or its last reply, and for its bytes.
#[derive(Debug)]
pub(crate) struct CallPermits {
    _call: Permit,
    bytes: Permit,
}

/// The calls of anonymous callers that wait for an answer, the longest first.
#[derive(Default)]
pub(super) struct WaitingCalls {
    calls: BTreeMap<u64, (LimitKey, Arc<Mutex<HeldPermits>>)>,
    /// The number of waits so far.
    count: u64,
}

impl InstanceLimits {
    /// Takes a permit for a call that keeps this many bytes in memory.
    pub(crate) fn acquire_live(
        self: &Arc<Self>,
        key: LimitKey,
        bytes: usize,
    ) -> Result<LivePermit, LimitReached> {
        let call = self.acquire_or_evict(&self.live, &key, 1, || self.live.acquire(key.clone()))?;
        let permits = CallPermits {
            _call: call,
            bytes: self.acquire_live_bytes(&key, bytes)?,
        };
        Ok(LivePermit {
            limits: self.clone(),
            key,
            held: Arc::new(Mutex::new(HeldPermits {
                permits: Some(permits),
                waker: None,
            })),
            waiting: None,
        })
    }

    /// Takes a permit for more bytes of a live call.
    pub(crate) fn acquire_live_bytes(
        &self,
        key: &LimitKey,
        bytes: usize,
    ) -> Result<Permit, LimitReached> {
        self.acquire_or_evict(&self.live_bytes, key, bytes, || {
            self.live_bytes.acquire_bytes(key.clone(), bytes)
        })
    }

    /// Takes a permit to keep the last reply of a live call.
    pub(crate) fn acquire_kept_reply(
        &self,
        key: LimitKey,
        bytes: usize,
    ) -> Result<CallPermits, LimitReached> {
        Ok(CallPermits {
            _call: self.kept_replies.acquire(key.clone())?,
            bytes: self.live_bytes.acquire_bytes(key, bytes)?,
        })
    }

    /// Evicts calls of other callers while `acquire` fails because of them.
    fn acquire_or_evict<T>(
        &self,
        limiter: &Limiter,
        key: &LimitKey,
        units: usize,
        mut acquire: impl FnMut() -> Result<T, LimitReached>,
    ) -> Result<T, LimitReached> {
        loop {
            match acquire() {
                Err(reached) if reached.is_caused_by_others() => {
                    let largest = limiter.largest_anonymous(key, units).ok_or(reached)?;
                    if !self.waiting.lock().evict_oldest_of(&largest) {
                        return Err(reached);
                    }
                }
                acquired => return acquired,
            }
        }
    }
}

impl WaitingCalls {
    /// Evicts the longest-waiting call of this caller. Returns false if none of its calls waits.
    fn evict_oldest_of(&mut self, caller: &LimitKey) -> bool {
        let mut calls = self.calls.extract_if(.., |_, (key, _)| key == caller);
        let Some((_, (_, held))) = calls.next() else {
            return false;
        };
        let HeldPermits { permits, waker } = std::mem::take(&mut *held.lock());
        drop(permits);
        waker.into_iter().for_each(Waker::wake);
        true
    }
}

impl LivePermit {
    pub(crate) fn key(&self) -> &LimitKey {
        &self.key
    }

    /// Adds bytes to the permit.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), LimitReached> {
        let added = self.limits.acquire_live_bytes(&self.key, bytes)?;
        self.merge(added);
        Ok(())
    }

    pub(crate) fn merge(&mut self, bytes: Permit) {
        if let Some(permits) = &mut self.held.lock().permits {
            permits.bytes.merge(bytes);
        }
    }

    /// Marks the call as waiting for an answer. Returns true if the call was evicted and must end.
    pub(crate) fn wait(&mut self, cx: &Context<'_>) -> bool {
        if !self.key.is_anonymous() {
            return false;
        }
        let mut held = self.held.lock();
        if held.permits.is_none() {
            return true;
        }
        held.waker = Some(cx.waker().clone());
        drop(held);
        if self.waiting.is_none() {
            let mut waiting = self.limits.waiting.lock();
            waiting.count += 1;
            let number = waiting.count;
            let call = (self.key.clone(), self.held.clone());
            waiting.calls.insert(number, call);
            self.waiting = Some(number);
        }
        false
    }

    /// Marks the call as running. Its next wait has a new place in the order of eviction.
    pub(crate) fn stop_waiting(&mut self) {
        if let Some(number) = self.waiting.take() {
            self.limits.waiting.lock().calls.remove(&number);
        }
    }
}

impl Drop for LivePermit {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}

impl fmt::Debug for WaitingCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingCalls")
            .field("len", &self.calls.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ServerLimits;
    use refrain_core::Principal;

    fn limits() -> Arc<InstanceLimits> {
        let limits = ServerLimits {
            live_bytes: 100,
            live_bytes_each: 60,
            ..ServerLimits::default()
        };
        InstanceLimits::new(limits, false)
    }

    fn address(number: u8) -> LimitKey {
        LimitKey::address([192, 0, 2, number].into())
    }

    /// A call that waits for an answer.
    fn waiting(limits: &Arc<InstanceLimits>, key: LimitKey, bytes: usize) -> LivePermit {
        let mut permit = limits.acquire_live(key, bytes).expect("a permit");
        assert!(!is_evicted(&mut permit));
        permit
    }

    fn is_evicted(permit: &mut LivePermit) -> bool {
        permit.wait(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn longest_waiting_calls_are_evicted_until_the_bytes_fit() {
        let limits = limits();
        let mut calls = [20, 20, 10].map(|bytes| waiting(&limits, address(1), bytes));
        let mut other = waiting(&limits, address(2), 30);
        // The first call got an answer, so the second one waits longer.
        calls[0].stop_waiting();
        assert!(!is_evicted(&mut calls[0]));
        let new = limits.acquire_live(address(3), 25);
        let _new = new.expect("20 bytes are free, and others are evicted");
        assert_eq!(
            calls.each_mut().map(is_evicted),
            [false, true, false],
            "one is enough"
        );
        assert!(!is_evicted(&mut other));
        let reached = limits.acquire_live(address(4), 60);
        assert!(reached.is_err(), "no other caller has more than 60 bytes");
    }

    #[test]
    fn calls_of_authenticated_callers_are_not_evicted() {
        let limits = limits();
        let alice = LimitKey::Principal(Principal::new("alice"));
        let mut calls = [alice, address(1)].map(|key| waiting(&limits, key, 50));
        let bob = LimitKey::Principal(Principal::new("bob"));
        limits
            .acquire_live(bob, 40)
            .expect("another call is evicted");
        assert_eq!(calls.each_mut().map(is_evicted), [false, true]);
    }
}
