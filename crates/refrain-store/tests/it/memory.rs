//! The store in memory.

use super::support::{claim, commit, new_task};
use refrain_core::Source;
use refrain_store::{ClaimedTask, Commit, MemoryStore, NewTask, Next, Store, TaskStore, contract};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_store_fulfils_the_contract() {
    contract::all(async || Arc::new(MemoryStore::new()) as Arc<dyn Store>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clones_share_their_content() {
    contract::shared(async || {
        let store = MemoryStore::new();
        let one: Arc<dyn Store> = Arc::new(store.clone());
        let other: Arc<dyn Store> = Arc::new(store);
        (one, other)
    })
    .await;
}

/// A manual clock.
struct Clock(AtomicU64);

impl Source for Clock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

async fn claim_one(store: &MemoryStore) -> Option<ClaimedTask> {
    claim(store, Duration::from_secs(30)).await.pop()
}

#[tokio::test]
async fn memory_store_uses_the_clock_of_its_source() {
    let clock = Arc::new(Clock(AtomicU64::new(1_000)));
    let store = MemoryStore::with_source(clock.clone());
    let new = NewTask {
        ttl: Duration::from_secs(1_000),
        ..new_task(1)
    };
    store.create(new).await.unwrap();
    assert_eq!(claim_one(&store).await.unwrap().attempt, 1);
    clock.0.store(1_029, Ordering::SeqCst);
    assert!(claim_one(&store).await.is_none(), "the lease is held");
    clock.0.store(1_030, Ordering::SeqCst);
    let claimed = claim_one(&store).await.unwrap();
    assert_eq!(claimed.attempt, 2);
    assert_eq!(claimed.left, Duration::from_secs(970));
    let suspension = commit(Next::Suspend(Some(Duration::from_secs(100))));
    store.commit(&claimed.lease, suspension).await.unwrap();
    clock.0.store(1_129, Ordering::SeqCst);
    assert!(claim_one(&store).await.is_none(), "the task is suspended");
    clock.0.store(1_130, Ordering::SeqCst);
    let lease = claim_one(&store).await.unwrap().lease;
    let suspension = commit(Next::Suspend(None));
    store.commit(&lease, suspension).await.unwrap();
    clock.0.store(1_999, Ordering::SeqCst);
    assert!(claim_one(&store).await.is_none(), "it waits for an answer");
    clock.0.store(2_000, Ordering::SeqCst);
    let last = claim_one(&store).await.unwrap();
    assert_eq!(last.left, Duration::ZERO, "it has expired");
}

#[tokio::test]
async fn readers_share_the_content_of_a_task() {
    let store = MemoryStore::new();
    let new = new_task(1);
    store.create(new.clone()).await.unwrap();
    let lease = claim_one(&store).await.unwrap().lease;
    let publish = Commit {
        publish: vec![("k".to_owned(), vec![7; 1 << 20])],
        ..Commit::default()
    };
    store.commit(&lease, publish).await.unwrap();
    let get = async || store.get(&new.id, &new.owner).await.unwrap().unwrap();
    let (one, two) = (get().await, get().await);
    assert_eq!(one.asks[0].1.as_ptr(), two.asks[0].1.as_ptr());
    let found = store.open_asks(&new.id, &new.owner, &["k"]).await;
    assert_eq!(
        found.unwrap().unwrap().asks[0].1.as_ptr(),
        one.asks[0].1.as_ptr()
    );
    let end = commit(Next::Complete(vec![7; 1 << 20]));
    store.commit(&lease, end).await.unwrap();
    let outcome = async || get().await.outcome.unwrap();
    assert_eq!(outcome().await.as_ptr(), outcome().await.as_ptr());
}
