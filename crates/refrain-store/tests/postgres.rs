//! The store in a database keeps to the contract, alone and in a fleet.

use refrain_store::cluster::Cluster;
use refrain_store::{PgStore, Store, contract};
use std::sync::Arc;

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(PgStore::open(url).await.expect("it opens"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_keeps_to_the_contract() {
    let cluster = Cluster::shared().unwrap();
    contract::all(async || open(&cluster.database().await.unwrap()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_keeps_to_the_contract() {
    let cluster = Cluster::shared().unwrap();
    contract::shared(async || {
        let url = cluster.database().await.unwrap();
        (open(&url).await, open(&url).await)
    })
    .await;
}
