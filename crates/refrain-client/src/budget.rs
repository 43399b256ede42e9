//! A limit for the memory of incomplete HTTP responses, shared by several clients.

use crate::error::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit for the bytes of HTTP responses in memory. Clones share the budget.
///
/// ```
/// use refrain_client::{ByteBudget, Client};
///
/// let all = ByteBudget::new(512 << 20);
/// let alice = Client::builder().response_budget(all.part(64 << 20));
/// let bob = Client::builder().response_budget(all.part(64 << 20));
/// ```
#[derive(Clone, Debug)]
pub struct ByteBudget(Arc<Level>);

#[derive(Debug)]
struct Level {
    limit: usize,
    used: AtomicUsize,
    parent: Option<ByteBudget>,
}

impl ByteBudget {
    /// A budget of this many bytes.
    pub fn new(limit: usize) -> Self {
        Self::with_parent(limit, None)
    }

    /// A smaller budget within this one, for example for one caller. Its bytes count in both.
    pub fn part(&self, limit: usize) -> Self {
        Self::with_parent(limit, Some(self.clone()))
    }

    /// Returns whether no other clone, no [`part`](Self::part) and no client uses this budget.
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn with_parent(limit: usize, parent: Option<Self>) -> Self {
        Self(Arc::new(Level {
            limit,
            used: AtomicUsize::new(0),
            parent,
        }))
    }

    fn reserve(&self, bytes: usize) -> Result<(), ErrorKind> {
        let Level {
            limit,
            used,
            parent,
        } = &*self.0;
        let reserved = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|used| used <= limit)
        });
        if reserved.is_err() {
            return Err(ErrorKind::too_large(
                "set of concurrent responses",
                *limit,
                "bytes",
                "ClientBuilder::response_budget",
            ));
        }
        let reserved = parent
            .as_ref()
            .map_or(Ok(()), |parent| parent.reserve(bytes));
        reserved.inspect_err(|_| {
            used.fetch_sub(bytes, Ordering::Relaxed);
        })
    }

    fn release(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.0.parent {
            parent.release(bytes);
        }
    }
}

/// The bytes of one response. Released on drop.
#[derive(Debug)]
pub(crate) struct ReservedBytes {
    budget: Option<ByteBudget>,
    bytes: usize,
}

impl ReservedBytes {
    pub(crate) fn new(budget: Option<ByteBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), ErrorKind> {
        if let Some(budget) = &self.budget {
            match bytes.checked_sub(self.bytes) {
                Some(more) => budget.reserve(more)?,
                None => budget.release(self.bytes - bytes),
            }
            self.bytes = bytes;
        }
        Ok(())
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.release(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_cannot_use_more_than_its_own_limit_or_the_rest_of_the_whole() {
        let all = ByteBudget::new(100);
        let (mut first, mut second) = (
            ReservedBytes::new(Some(all.part(80))),
            ReservedBytes::new(Some(all.part(80))),
        );
        assert!(first.resize(81).is_err());
        assert!(first.resize(80).is_ok());
        assert!(second.resize(21).is_err());
        assert!(second.resize(20).is_ok());
        assert!(first.resize(10).is_ok());
        assert!(second.resize(80).is_ok());
        drop(second);
        assert_eq!(all.0.used.load(Ordering::Relaxed), 10);
    }
}
