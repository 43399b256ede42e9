//! A queue for permits of a shared resource, in which callers take turns.
//!
//! A caller has at most as many permits as are free, so a further caller usually gets one. If all are in use, each waiting
//! caller gets one permit before any of them gets a second one. So a caller with many operations delays only itself.

use super::limiter::LimitKey;
use parking_lot::Mutex;
use refrain_http::run_blocking;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::oneshot;

#[derive(Debug)]
pub(crate) struct FairQueue {
    capacity: Capacity,
    state: Mutex<QueueState>,
}

/// The numbers of permits, in total and per caller.
#[derive(Clone, Copy, Debug)]
struct Capacity {
    total: usize,
    each: usize,
}

#[derive(Debug, Default)]
struct QueueState {
    in_use: usize,
    callers: HashMap<LimitKey, CallerQueue>,
    /// The callers with waiting operations; the first one is next.
    order: VecDeque<LimitKey>,
}

#[derive(Debug, Default)]
struct CallerQueue {
    in_use: usize,
    waiting: VecDeque<oneshot::Sender<QueuePermit>>,
}

/// The right to use the resource, until it is dropped.
#[derive(Debug)]
pub(crate) struct QueuePermit {
    queue: Arc<FairQueue>,
    key: LimitKey,
}

impl FairQueue {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Self::with_capacity(Capacity { total, each: total })
    }

    /// A queue in which each caller has at most one permit.
    pub(crate) fn with_one_each(total: usize) -> Arc<Self> {
        Self::with_capacity(Capacity { total, each: 1 })
    }

    fn with_capacity(capacity: Capacity) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { capacity, state })
    }

    /// Waits for a permit. The user of the queue limits the number of waiting operations.
    pub(crate) async fn acquire(self: &Arc<Self>, key: LimitKey) -> QueuePermit {
        let permit = self.wait_for_permit(key).await;
        // Without this yield, a caller whose operations never wait would run all of them before other callers.
        tokio::task::yield_now().await;
        permit
    }

    async fn wait_for_permit(self: &Arc<Self>, key: LimitKey) -> QueuePermit {
        let waiting = {
            let mut state = self.state.lock();
            let is_free = state.is_free_for(&key, self.capacity);
            let caller = state.callers.entry(key.clone()).or_default();
            if is_free && caller.waiting.is_empty() {
                caller.in_use += 1;
                state.in_use += 1;
                return self.permit(key);
            }
            let (sender, waiting) = oneshot::channel();
            // Removes cancelled operations before the queue would grow.
            if caller.waiting.len() == caller.waiting.capacity() {
                caller.waiting.retain(|waiting| !waiting.is_closed());
            }
            caller.waiting.push_back(sender);
            if !state.order.contains(&key) {
                state.order.push_back(key);
            }
            waiting
        };
        waiting
            .await
            .expect("the queue keeps a sender until it has sent a permit")
    }

    /// Runs an operation, and holds the permit until the operation waits for the first time. After that, it must not use the
    /// resource.
    pub(crate) async fn run_until_pending<F: Future>(
        permit: QueuePermit,
        operation: F,
    ) -> F::Output {
        let mut operation = pin!(operation);
        let mut permit = Some(permit);
        poll_fn(|cx| {
            let polled = operation.as_mut().poll(cx);
            drop(permit.take());
            polled
        })
        .await
    }

    /// Waits for a permit, and runs `work` with it on a blocking thread.
    pub(crate) async fn run<T: Send + 'static>(
        self: Arc<Self>,
        key: LimitKey,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        run_blocking(async move { self.acquire(key).await }, work).await
    }

    fn permit(self: &Arc<Self>, key: LimitKey) -> QueuePermit {
        let queue = self.clone();
        QueuePermit { queue, key }
    }

    fn release(self: &Arc<Self>, key: &LimitKey) {
        let mut state = self.state.lock();
        state.in_use -= 1;
        if let Entry::Occupied(mut caller) = state.callers.entry(key.clone()) {
            caller.get_mut().in_use -= 1;
            if caller.get().in_use == 0 && caller.get().waiting.is_empty() {
                caller.remove();
            }
        }
        let mut granted = Vec::new();
        while let Some((key, sender)) = state.next(self.capacity) {
            granted.push((self.permit(key), sender));
        }
        // Dropping the permit of a cancelled operation takes the lock.
        drop(state);
        for (permit, sender) in granted {
            let _ = sender.send(permit);
        }
    }
}

impl QueueState {
    /// Whether the caller has fewer permits than are free, and may have another one.
    fn is_free_for(&self, key: &LimitKey, capacity: Capacity) -> bool {
        let in_use = self.callers.get(key).map_or(0, |caller| caller.in_use);
        in_use < capacity.each.min(capacity.total - self.in_use)
    }

    /// Takes a permit for the next waiting operation, if one is free for its caller.
    fn next(&mut self, capacity: Capacity) -> Option<(LimitKey, oneshot::Sender<QueuePermit>)> {
        loop {
            let mut order = self.order.iter();
            let at = order.position(|key| self.is_free_for(key, capacity))?;
            let key = self.order.remove(at)?;
            let caller = self.callers.get_mut(&key)?;
            let mut waiting = std::iter::from_fn(|| caller.waiting.pop_front());
            let next = waiting.find(|waiting| !waiting.is_closed());
            if !caller.waiting.is_empty() {
                self.order.push_back(key.clone());
            }
            if let Some(sender) = next {
                caller.in_use += 1;
                self.in_use += 1;
                return Some((key, sender));
            }
            // All its operations were cancelled.
            if caller.in_use == 0 {
                self.callers.remove(&key);
            }
        }
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.queue.release(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_core::Principal;
    use std::pin::Pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};
    use std::thread;

    type PendingPermit<'a> = Pin<Box<dyn Future<Output = QueuePermit> + 'a>>;

    fn key(name: &str) -> LimitKey {
        LimitKey::Principal(Principal::new(name))
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Starts operations of a caller. Returns the permits of operations that need not wait, and the waiting operations.
    fn enter<'a>(
        queue: &'a Arc<FairQueue>,
        name: &str,
        count: usize,
    ) -> (Vec<QueuePermit>, VecDeque<PendingPermit<'a>>) {
        let (mut permits, mut waiting) = (Vec::new(), VecDeque::new());
        for _ in 0..count {
            let mut entering: PendingPermit<'a> = Box::pin(queue.wait_for_permit(key(name)));
            match poll(&mut entering) {
                Some(permit) => permits.push(permit),
                None => waiting.push_back(entering),
            }
        }
        (permits, waiting)
    }

    #[test]
    fn caller_with_many_operations_leaves_permits_to_others() {
        let queue = FairQueue::new(8);
        let (many, waiting) = enter(&queue, "a", 100);
        assert_eq!((many.len(), waiting.len()), (4, 96));
        let (other, _) = enter(&queue, "b", 1);
        assert_eq!(other.len(), 1);
    }

    #[test]
    fn caller_may_be_limited_to_one_operation() {
        let queue = FairQueue::with_one_each(8);
        let (mut held, mut waiting) = enter(&queue, "a", 3);
        assert_eq!((held.len(), waiting.len()), (1, 2));
        let (other, _) = enter(&queue, "b", 1);
        assert_eq!(other.len(), 1);
        held.clear();
        assert!(poll(&mut waiting[0]).is_some());
        assert!(poll(&mut waiting[1]).is_some(), "the first has ended");
    }

    #[test]
    fn waiting_callers_take_turns() {
        let queue = FairQueue::new(2);
        let (mut held, mut many) = enter(&queue, "a", 10);
        let (second, mut few) = enter(&queue, "b", 2);
        assert_eq!((held.len(), second.len()), (1, 1), "all permits are in use");
        let (none, mut last) = enter(&queue, "c", 1);
        assert!(none.is_empty());
        held.clear();
        let first = poll(&mut many[0]).expect("the first in the order");
        assert!(poll(&mut many[1]).is_none());
        drop(first);
        assert!(poll(&mut many[1]).is_none(), "it is the turn of the others");
        drop(second);
        // The caller b had its permit until now, and c comes next.
        let permits = [poll(&mut few[0]), poll(&mut last[0])];
        assert!(permits.iter().all(Option::is_some), "{permits:?}");
        assert!(poll(&mut many[1]).is_none());
    }

    #[tokio::test]
    async fn operations_that_never_wait_leave_turns_to_others() {
        let queue = FairQueue::new(8);
        let order = Arc::new(Mutex::new(Vec::new()));
        let names = std::iter::repeat_n("a", 100).chain(["b"]);
        let operations = names.map(|name| {
            let (queue, order) = (queue.clone(), order.clone());
            tokio::spawn(async move {
                let _permit = queue.acquire(key(name)).await;
                order.lock().push(name);
            })
        });
        for operation in operations.collect::<Vec<_>>() {
            operation.await.expect("no panic");
        }
        let order = order.lock();
        let turn = order.iter().position(|name| *name == "b");
        assert!(turn <= Some(8), "{order:?}");
    }

    #[tokio::test]
    async fn work_holds_its_permit_until_it_is_done() {
        let queue = FairQueue::new(2);
        let (release, released) = mpsc::channel::<()>();
        let (begin, begun) = oneshot::channel();
        let here = thread::current().id();
        let work = move || {
            let _ = begin.send(thread::current().id() != here);
            let _ = released.recv();
        };
        let working = tokio::spawn(queue.clone().run(key("a"), work));
        assert!(begun.await.expect("it starts"), "it ran on this thread");
        // The work goes on after its caller has gone.
        working.abort();
        assert!(working.await.is_err());
        assert_eq!(queue.state.lock().in_use, 1);
        drop(release);
        assert_eq!(queue.clone().run(key("a"), || 7).await, 7);
    }

    #[test]
    fn cancelled_operations_return_their_permits() {
        let queue = FairQueue::new(2);
        let (held, mut waiting) = enter(&queue, "a", 5);
        waiting.drain(..2);
        drop(held);
        // A permit that was sent, but never received, is returned.
        waiting.pop_front();
        let permit = poll(&mut waiting[0]).expect("a permit");
        drop((permit, waiting));
        let state = queue.state.lock();
        assert_eq!(state.in_use, 0);
        assert!(
            state.callers.is_empty() && state.order.is_empty(),
            "{state:?}"
        );
    }
}
