//! The store in memory keeps to the contract, and goes by the clock it is given.

use refrain_store::{MemoryStore, Store, contract};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_keeps_to_the_contract() {
    contract::all(async || Arc::new(MemoryStore::new()) as Arc<dyn Store>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn its_clones_are_one_store() {
    contract::shared(async || {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        (store.clone(), store)
    })
    .await;
}
