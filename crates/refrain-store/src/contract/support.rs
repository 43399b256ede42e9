//! What the checks have in common.

use crate::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, NewTask, Next, Store, StoreError,
    Task, TaskId, TaskStore,
};
use refrain_core::{FlowId, Principal, Source, SystemSource};
use std::fmt::Debug;
use std::time::Duration;
use tokio::sync::broadcast;

pub(super) const HOUR: Duration = Duration::from_secs(3600);
/// What a check waits for happens at once, or never.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn alice() -> Principal {
    Principal::new("alice")
}

pub(super) fn bob() -> Principal {
    Principal::new("bob")
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemSource::new().fill(&mut bytes);
    bytes
}

pub(super) fn id() -> TaskId {
    TaskId::new(random())
}

pub(super) fn flow() -> FlowId {
    FlowId::from_bytes(random())
}

/// A task of Alice that nobody runs yet.
pub(super) fn new() -> NewTask {
    NewTask {
        id: id(),
        flow: flow(),
        owner: alice(),
        tool: "tool".to_owned(),
        call: b"call".to_vec(),
        journal: b"journal".to_vec(),
        status_message: None,
        ttl: HOUR,
        poll_interval: Duration::from_millis(500),
        claimed: None,
    }
}

pub(super) fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), value.as_bytes().to_vec());
    pairs.iter().map(pair).collect()
}

pub(super) fn keys(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// A commit that goes on so.
pub(super) fn next(next: Next) -> Commit {
    Commit {
        next,
        ..Commit::default()
    }
}

/// A commit that publishes asks.
pub(super) fn publish(asks: &[(&str, &str)]) -> Commit {
    Commit {
        publish: pairs(asks),
        ..Commit::default()
    }
}

/// Makes a task; it must be new.
pub(super) async fn create(store: &dyn Store, new: NewTask) -> Task {
    match store.create(new).await {
        Ok(Created::New(task, _)) => task,
        other => panic!("the task was not made: {other:?}"),
    }
}

/// Makes a task that a worker has for an hour.
pub(super) async fn create_leased(store: &dyn Store) -> Lease {
    let mut new = new();
    new.claimed = Some(("maker".to_owned(), HOUR));
    lease_of(store.create(new).await)
}

pub(super) fn lease_of(created: Result<Created, StoreError>) -> Lease {
    match created {
        Ok(Created::New(_, Some(lease))) => lease,
        other => panic!("no lease was given: {other:?}"),
    }
}

pub(super) async fn get(store: &dyn Store, id: &TaskId) -> Task {
    let task = store.get(id, &alice()).await.expect("the store answers");
    task.expect("the task is there")
}

/// Takes up to this many tasks of the tool `tool`, for so long.
pub(super) async fn claim_for(store: &dyn Store, most: usize, lease: Duration) -> Vec<Claimed> {
    let tools = keys(&["tool"]);
    let claim = Claim {
        worker: "worker",
        tools: &tools,
        lease,
        most,
    };
    store.claim(claim).await.expect("the store answers")
}

/// Takes the one task that is due.
pub(super) async fn claim(store: &dyn Store) -> Claimed {
    let mut claimed = claim_for(store, 10, HOUR).await;
    assert_eq!(claimed.len(), 1, "one task is due");
    claimed.remove(0)
}

pub(super) async fn assert_none_due(store: &dyn Store) {
    let claimed = claim_for(store, 10, HOUR).await;
    assert!(claimed.is_empty(), "no task is due: {claimed:?}");
}

/// Takes a task as soon as one is due.
pub(super) async fn claim_soon(store: &dyn Store) -> Claimed {
    let soon = async {
        loop {
            if let Some(claimed) = claim_for(store, 1, HOUR).await.pop() {
                return claimed;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let soon = tokio::time::timeout(PATIENCE, soon).await;
    soon.expect("a task is due within a minute")
}

pub(super) async fn commit(store: &dyn Store, lease: &Lease, commit: Commit) -> Committed {
    let committed = store.commit(lease, commit).await;
    committed.expect("the lease is held")
}

#[track_caller]
pub(super) fn assert_is_lost<T: Debug>(done: &Result<T, StoreError>) {
    assert!(matches!(done, Err(StoreError::Lost)), "{done:?}");
}

pub(super) async fn assert_lost(store: &dyn Store, lease: &Lease) {
    let journal = Some(b"stale".to_vec());
    let stale = Commit {
        journal,
        ..publish(&[("stale", "?")])
    };
    assert_is_lost(&store.commit(lease, stale).await);
    assert_is_lost(&store.answers(lease).await);
    let leases = [lease.clone()];
    assert_eq!(
        store.extend(&leases, HOUR).await.expect("no error"),
        Vec::new()
    );
}

/// Answers as Alice.
pub(super) async fn answer(store: &dyn Store, id: &TaskId, answers: &[(&str, &str)]) {
    let there = store.answer(id, &alice(), pairs(answers)).await;
    assert!(there.expect("no error"), "the task is there");
}

pub(super) async fn answers(store: &dyn Store, lease: &Lease) -> Vec<(String, Vec<u8>)> {
    store.answers(lease).await.expect("the lease is held")
}

pub(super) async fn revision(store: &dyn TaskStore, id: &TaskId) -> u64 {
    let ids = [id.clone()];
    let revisions = store.revisions(&ids).await.expect("the store answers");
    assert_eq!(revisions.len(), 1, "the task is there");
    assert_eq!(revisions[0].0, *id);
    revisions[0].1
}

/// Waits until this hint comes.
pub(super) async fn wait_for(hints: &mut broadcast::Receiver<Hint>, wanted: &Hint) {
    let wait = async { while hints.recv().await.expect("hints go on") != *wanted {} };
    let came = tokio::time::timeout(PATIENCE, wait).await;
    came.unwrap_or_else(|_| panic!("no hint came: {wanted:?}"));
}
