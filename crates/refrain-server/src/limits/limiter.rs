//! Permits for a resource, limited in total and per caller.

use parking_lot::Mutex;
use refrain_core::{Principal, client_network};
use refrain_wire::RpcError;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Limiter {
    resource: &'static str,
    limit: usize,
    limit_per_caller: usize,
    sharing: Sharing,
    /// Units that anonymous callers cannot use.
    reserved_for_principals: usize,
    units: Mutex<Units>,
    /// Notified when the last permit is returned.
    idle: Notify,
}

#[derive(Debug)]
struct Units {
    free: usize,
    /// Units in use above the limit.
    excess: usize,
    /// Units in use, by caller.
    by_key: HashMap<LimitKey, usize>,
}

/// How many units one caller may have while others need some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Up to its own limit.
    Fixed,
    /// At most as many as are free, so that some are left for every further caller.
    LeavesRoom,
    /// Like `LeavesRoom`, and a caller that has units also leaves a quarter of the limit to callers without any. Otherwise
    /// many callers with a few units each would use all of them.
    LeavesQuarter,
}

/// The part of a limit that is reserved for new or authenticated callers.
pub(crate) fn quarter(limit: usize) -> usize {
    limit / 4
}

/// A caller whose permits are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LimitKey {
    Principal(Principal),
    /// Anonymous clients at one address, or in one IPv6 network of 64 bits.
    Address(IpAddr),
    /// All anonymous clients whose address is unknown.
    Anonymous,
}

/// Hashes an address with a single write, which is faster than the derived implementation.
impl Hash for LimitKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Principal(principal) => principal.hash(state),
            Self::Address(IpAddr::V4(address)) => state.write_u32(address.to_bits()),
            Self::Address(IpAddr::V6(address)) => state.write_u128(address.to_bits()),
            Self::Anonymous => {}
        }
    }
}

impl LimitKey {
    pub(crate) fn is_anonymous(&self) -> bool {
        !matches!(self, Self::Principal(_))
    }

    pub(crate) fn new(principal: &Principal, address: Option<IpAddr>) -> Self {
        match (principal.id(), address) {
            (Some(_), _) => Self::Principal(principal.clone()),
            (None, Some(address)) => Self::address(address),
            (None, None) => Self::Anonymous,
        }
    }

    /// The account in the store that counts the caller's tasks.
    pub(crate) fn account(&self) -> Principal {
        match self {
            Self::Principal(principal) => principal.clone(),
            Self::Address(address) => Principal::anonymous().account(Some(*address)),
            Self::Anonymous => Principal::anonymous(),
        }
    }

    pub(crate) fn address(address: IpAddr) -> Self {
        Self::Address(client_network(address))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitReached {
    #[error("this instance is at its limit of {limit} {resource}; try again later")]
    Total {
        limit: usize,
        resource: &'static str,
    },
    #[error(
        "this instance is at its limit of {limit} {resource} for anonymous callers; try again later"
    )]
    Anonymous {
        limit: usize,
        resource: &'static str,
    },
    #[error("this caller is at its limit of {limit} {resource} on this instance; try again later")]
    Caller {
        limit: usize,
        resource: &'static str,
    },
    #[error(
        "this caller already has {in_use} {resource} on this instance: the remaining ones are reserved for other callers; try again later"
    )]
    Share {
        in_use: usize,
        resource: &'static str,
    },
}

impl LimitReached {
    /// Whether the units of other callers caused the error.
    pub(crate) fn is_caused_by_others(self) -> bool {
        !matches!(self, Self::Caller { .. })
    }
}

impl From<LimitReached> for RpcError {
    fn from(reached: LimitReached) -> Self {
        Self::internal(reached.to_string())
    }
}

impl Limiter {
    /// A limiter that leaves room for further callers, unless one caller may use all units.
    pub(crate) fn new(resource: &'static str, limit: usize, limit_per_caller: usize) -> Self {
        Self::with_sharing(resource, limit, limit_per_caller, Sharing::LeavesQuarter)
    }

    /// A limiter whose callers have at most as many units as are free. No quarter is left to new callers.
    pub(crate) fn leaving_room(
        resource: &'static str,
        limit: usize,
        limit_per_caller: usize,
    ) -> Self {
        Self::with_sharing(resource, limit, limit_per_caller, Sharing::LeavesRoom)
    }

    /// A limiter whose callers have the same limit, however many units are free.
    pub(crate) fn fixed(resource: &'static str, limit: usize, per_caller: usize) -> Self {
        Self::with_sharing(resource, limit, per_caller, Sharing::Fixed)
    }

    fn with_sharing(
        resource: &'static str,
        limit: usize,
        limit_per_caller: usize,
        sharing: Sharing,
    ) -> Self {
        Self {
            resource,
            limit,
            limit_per_caller,
            sharing: match limit_per_caller < limit {
                true => sharing,
                false => Sharing::Fixed,
            },
            reserved_for_principals: 0,
            units: Mutex::new(Units {
                free: limit,
                excess: 0,
                by_key: HashMap::new(),
            }),
            idle: Notify::new(),
        }
    }

    /// Reserves a quarter of the units for authenticated callers, if callers share them and the server has an authenticator.
    pub(crate) fn reserve_for_principals(mut self, has_authenticator: bool) -> Arc<Self> {
        if has_authenticator && self.sharing != Sharing::Fixed {
            self.reserved_for_principals = quarter(self.limit);
        }
        Arc::new(self)
    }

    pub(crate) fn acquire(self: &Arc<Self>, key: LimitKey) -> Result<Permit, LimitReached> {
        self.acquire_many(key, 1)
    }

    /// Takes a permit for several units of the resource.
    pub(crate) fn acquire_many(
        self: &Arc<Self>,
        key: LimitKey,
        units: u32,
    ) -> Result<Permit, LimitReached> {
        self.reserve(&key, units)?;
        Ok(self.permit(key, units, false))
    }

    fn reserve(&self, key: &LimitKey, units: u32) -> Result<(), LimitReached> {
        let resource = self.resource;
        let reserved = match key.is_anonymous() {
            true => self.reserved_for_principals,
            false => 0,
        };
        let (units, limit) = (units as usize, self.limit_per_caller);
        let mut all = self.units.lock();
        let Some(still_free) = all.free.checked_sub(units) else {
            let limit = self.limit;
            return Err(LimitReached::Total { limit, resource });
        };
        let free = all.free.saturating_sub(reserved);
        if units > limit {
            return Err(LimitReached::Caller { limit, resource });
        }
        if reserved > 0 && units > free {
            let limit = self.limit - reserved;
            return Err(LimitReached::Anonymous { limit, resource });
        }
        match all.by_key.entry(key.clone()) {
            Entry::Occupied(in_use) if in_use.get() + units > limit => {
                return Err(LimitReached::Caller { limit, resource });
            }
            Entry::Occupied(in_use)
                if units > 0
                    && !self.leaves_enough(free, self.limit - reserved, *in_use.get(), units) =>
            {
                let in_use = *in_use.get();
                return Err(LimitReached::Share { in_use, resource });
            }
            Entry::Occupied(mut in_use) => *in_use.get_mut() += units,
            Entry::Vacant(entry) => {
                entry.insert(units);
            }
        }
        all.free = still_free;
        Ok(())
    }

    /// Whether a caller with `in_use` units may take `units` of the `free` ones.
    fn leaves_enough(&self, free: usize, limit: usize, in_use: usize, units: usize) -> bool {
        match self.sharing {
            Sharing::Fixed => true,
            Sharing::LeavesRoom => in_use + units <= free,
            Sharing::LeavesQuarter => in_use + units <= free && units + quarter(limit) <= free,
        }
    }

    /// Takes a permit for work that already started, above the limits if necessary.
    pub(crate) fn acquire_unlimited(self: &Arc<Self>, key: LimitKey) -> Permit {
        let mut all = self.units.lock();
        *all.by_key.entry(key.clone()).or_default() += 1;
        let is_excess = all.free == 0;
        match is_excess {
            false => all.free -= 1,
            true => all.excess += 1,
        }
        self.permit(key, 1, is_excess)
    }

    /// Takes a permit for this many bytes.
    pub(crate) fn acquire_bytes(
        self: &Arc<Self>,
        key: LimitKey,
        bytes: usize,
    ) -> Result<Permit, LimitReached> {
        self.acquire_many(key, units_of(bytes))
    }

    fn permit(self: &Arc<Self>, key: LimitKey, units: u32, is_excess: bool) -> Permit {
        Permit {
            limiter: self.clone(),
            key,
            units,
            is_excess,
        }
    }

    /// Returns units of a permit.
    fn release(&self, key: &LimitKey, units: u32, is_excess: bool) {
        let units = units as usize;
        let mut all = self.units.lock();
        if let Entry::Occupied(mut in_use) = all.by_key.entry(key.clone()) {
            *in_use.get_mut() -= units;
            if *in_use.get() == 0 {
                in_use.remove();
            }
        }
        match is_excess {
            false => all.free += units,
            true => all.excess -= units,
        }
        let is_idle = all.free == self.limit && all.excess == 0;
        drop(all);
        if is_idle {
            self.idle.notify_waiters();
        }
    }

    pub(crate) fn in_use(&self) -> usize {
        let all = self.units.lock();
        self.limit - all.free + all.excess
    }

    /// The units in use by this caller.
    pub(crate) fn in_use_by(&self, key: &LimitKey) -> usize {
        self.units
            .lock()
            .by_key
            .get(key)
            .copied()
            .unwrap_or_default()
    }

    /// Checks that the caller is below its own limit.
    pub(crate) fn check(&self, key: &LimitKey) -> Result<(), LimitReached> {
        let (limit, resource) = (self.limit_per_caller, self.resource);
        match self.in_use_by(key) < limit {
            true => Ok(()),
            false => Err(LimitReached::Caller { limit, resource }),
        }
    }

    /// The caller with the most units in use, and their number.
    pub(crate) fn largest(&self) -> Option<(LimitKey, usize)> {
        let all = self.units.lock();
        let (key, in_use) = all.by_key.iter().max_by_key(|(_, in_use)| **in_use)?;
        Some((key.clone(), *in_use))
    }

    /// The anonymous caller with the most units, if it has more than the caller `key` would have with `units` more.
    pub(crate) fn largest_anonymous(&self, key: &LimitKey, units: usize) -> Option<LimitKey> {
        let all = self.units.lock();
        let anonymous = all.by_key.iter().filter(|(key, _)| key.is_anonymous());
        let (largest, in_use) = anonymous.max_by_key(|(_, in_use)| **in_use)?;
        let own = all.by_key.get(key).copied().unwrap_or_default();
        (*in_use > own + units).then(|| largest.clone())
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

/// The units of this many bytes. A size beyond `u32` is over every limit anyway.
fn units_of(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The right to use units of a resource, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    key: LimitKey,
    units: u32,
    is_excess: bool,
}

impl Permit {
    pub(crate) fn key(&self) -> &LimitKey {
        &self.key
    }

    /// Adds units of the resource.
    pub(crate) fn grow(&mut self, units: u32) -> Result<(), LimitReached> {
        self.limiter.reserve(&self.key, units)?;
        self.units += units;
        Ok(())
    }

    pub(crate) fn grow_bytes(&mut self, bytes: usize) -> Result<(), LimitReached> {
        self.grow(units_of(bytes))
    }

    /// Returns the units above this many bytes.
    pub(crate) fn shrink_to_bytes(&mut self, bytes: usize) {
        let excess = self.units.saturating_sub(units_of(bytes));
        self.units -= excess;
        self.limiter.release(&self.key, excess, self.is_excess);
    }

    /// Adds the units of another permit for the same resource and caller.
    pub(crate) fn merge(&mut self, mut other: Self) {
        debug_assert_eq!(self.key, other.key);
        self.units += std::mem::take(&mut other.units);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.release(&self.key, self.units, self.is_excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LimitKey {
        LimitKey::Principal(Principal::new(name))
    }

    #[test]
    fn permits_are_limited_in_total_and_per_caller() {
        let limiter = Limiter::new("calls", 2, 1).reserve_for_principals(false);
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
        let reached = limiter.acquire(key("c")).expect_err("the total is reached");
        assert_eq!(
            reached.to_string(),
            "this instance is at its limit of 2 calls; try again later"
        );
        drop(first);
        limiter.acquire(key("a")).expect("the permit was returned");
    }

    #[test]
    fn permit_for_several_units_is_limited_by_their_sum() {
        let limiter = Limiter::leaving_room("bytes", 100, 60).reserve_for_principals(false);
        let mut first = limiter.acquire_many(key("a"), 40).expect("a permit");
        first
            .grow(20)
            .expect("60 units are the limit of the caller");
        first.grow(1).expect_err("the caller is at its limit");
        limiter
            .acquire_many(key("b"), 41)
            .expect_err("the total is 100 units");
        let _second = limiter.acquire_many(key("b"), 40).expect("a permit");
        drop(first);
        assert_eq!(limiter.in_use(), 40);
    }

    #[test]
    fn one_caller_has_at_most_as_many_units_as_are_free() {
        let limiter = Limiter::new("calls", 12, 11).reserve_for_principals(false);
        let acquire_all = |name: &str| {
            let permits = std::iter::repeat_with(|| limiter.acquire(key(name)));
            let permits: Vec<Permit> = permits.map_while(Result::ok).collect();
            permits
        };
        let mut held: Vec<_> = ["a", "b", "c", "d", "e"].map(acquire_all).into();
        let numbers: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(numbers, [6, 3, 1, 1, 1]);
        let first = limiter.acquire(key("a")).expect_err("the total is reached");
        assert!(matches!(first, LimitReached::Total { .. }), "{first}");
        held.remove(0);
        assert_eq!(acquire_all("b").len(), 2, "five, and four are free");
    }

    #[test]
    fn callers_with_several_calls_each_leave_a_quarter_to_new_callers() {
        let limiter = Limiter::new("calls", 1024, 512).reserve_for_principals(false);
        let callers = (0..3).flat_map(|_| 0..550);
        let permits = callers.map(|caller| limiter.acquire(key(&format!("caller {caller}"))));
        let held: Vec<_> = permits.filter_map(Result::ok).collect();
        assert_eq!(held.len(), 768);
        limiter.acquire(key("another")).expect("a permit is left");
    }

    #[test]
    fn quarter_is_reserved_for_authenticated_callers() {
        for limiter in [
            Limiter::new("calls", 16, 8),
            Limiter::leaving_room("bytes", 16, 8),
        ] {
            let limiter = limiter.reserve_for_principals(true);
            let address = |number: u32| LimitKey::address(IpAddr::from(number.to_be_bytes()));
            let permits = (0..16).map(|number| limiter.acquire(address(number)));
            let (held, rejected): (Vec<_>, Vec<_>) = permits.partition(Result::is_ok);
            assert_eq!((held.len(), rejected.len()), (12, 4));
            let reached = limiter
                .acquire(LimitKey::Anonymous)
                .expect_err("the rest is reserved");
            let resource = limiter.resource;
            let text = format!(
                "this instance is at its limit of 12 {resource} for anonymous callers; try again later"
            );
            assert_eq!(reached.to_string(), text);
            assert!(reached.is_caused_by_others());
            let permits = ["a", "b", "c", "d"].map(|name| limiter.acquire(key(name)));
            assert!(permits.iter().all(Result::is_ok), "{permits:?}");
        }
        // If one caller may use all, so may an anonymous one.
        let shared = Limiter::new("calls", 4, 4).reserve_for_principals(true);
        let permits = [(); 4].map(|()| shared.acquire(LimitKey::Anonymous));
        assert!(permits.iter().all(Result::is_ok), "{permits:?}");
    }

    #[test]
    fn caller_at_its_share_gets_an_error_that_explains_it() {
        let limiter = Limiter::new("calls", 3, 2).reserve_for_principals(false);
        let _a = limiter.acquire(key("a")).expect("a permit");
        let _b = limiter.acquire(key("b")).expect("a permit");
        let reached = limiter.acquire(key("a")).expect_err("one is left");
        assert_eq!(
            reached.to_string(),
            "this caller already has 1 calls on this instance: the remaining ones are reserved for other callers; try again later"
        );
        limiter.acquire(key("c")).expect("the last one");
        let one_caller = Limiter::new("calls", 2, 2).reserve_for_principals(false);
        let _first = one_caller.acquire(key("a")).expect("a permit");
        one_caller
            .acquire(key("a"))
            .expect("one caller may use all");
    }

    #[test]
    fn anonymous_callers_are_counted_by_address_or_together() {
        let anonymous = Principal::anonymous();
        let at = |address: &str| LimitKey::new(&anonymous, Some(address.parse().unwrap()));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
        assert_eq!(at("192.0.2.1"), at("::ffff:192.0.2.1"));
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"), "one network");
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(LimitKey::new(&anonymous, None), LimitKey::Anonymous);
        let alice = Principal::new("alice");
        let key = LimitKey::new(&alice, Some("192.0.2.1".parse().unwrap()));
        assert_eq!(key, LimitKey::Principal(alice));
    }

    #[test]
    fn started_work_gets_a_permit_above_the_total() {
        let limiter = Limiter::new("calls", 1, 1).reserve_for_principals(false);
        let first = limiter.acquire(key("a")).expect("a permit is available");
        let second = limiter.acquire_unlimited(key("a"));
        assert_eq!(limiter.in_use(), 2);
        drop(first);
        assert_eq!(limiter.in_use(), 1);
        drop(second);
        assert_eq!(limiter.in_use(), 0);
    }
}
