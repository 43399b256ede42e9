//! A store with helpers for the checks. Failed operations panic.

use crate::{
    Claim, ClaimedTask, Commit, CommitResult, Creation, Delivery, Hint, Lease, LogKey, NewTask,
    Next, RecordState, Retention, Store, StoreError, StoredTask, SweepCounts, TaskId, TaskRow,
};
use bytes::Bytes;
use refrain_core::{FlowId, Principal, Source, SystemSource};
use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

pub(super) const HOUR: Duration = Duration::from_secs(3600);
/// The time limit of one wait.
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

pub(super) fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), value.as_bytes().to_vec());
    pairs.iter().map(pair).collect()
}

/// Open asks with this content.
pub(super) fn open(asks: &[(&str, &str)]) -> Vec<(String, Bytes)> {
    let shared = pairs(asks).into_iter();
    shared.map(|(key, ask)| (key, ask.into())).collect()
}

pub(super) fn keys(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

pub(super) async fn sleep_millis(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Repeats `attempt` until it returns a value.
pub(super) async fn until<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let attempts = async {
        loop {
            if let Some(value) = attempt().await {
                return value;
            }
            sleep_millis(2).await;
        }
    };
    let value = tokio::time::timeout(PATIENCE, attempts).await;
    value.expect("the attempt succeeds within a minute")
}

/// Waits for this hint, ignoring others.
pub(super) async fn wait_for(hints: &mut broadcast::Receiver<Hint>, wanted: &Hint) {
    let wait =
        async { while hints.recv().await.expect("the channel of hints is open") != *wanted {} };
    let received = tokio::time::timeout(PATIENCE, wait).await;
    received.unwrap_or_else(|_| panic!("no hint received: {wanted:?}"));
}

#[track_caller]
pub(super) fn assert_is_lost<T: Debug>(done: &Result<T, StoreError>) {
    assert!(matches!(done, Err(StoreError::Lost)), "{done:?}");
}

/// A task of Alice without a worker.
pub(super) fn new() -> NewTask {
    NewTask {
        id: id(),
        flow: flow(),
        owner: alice(),
        account: alice(),
        tool: "tool".to_owned(),
        call: b"call".to_vec(),
        journal: b"journal".to_vec(),
        status_message: None,
        ttl: HOUR,
        poll_interval: Duration::from_millis(500),
        claimed: None,
        webhooks: Vec::new(),
    }
}

impl NewTask {
    pub(super) fn owner(mut self, owner: &Principal) -> Self {
        (self.owner, self.account) = (owner.clone(), owner.clone());
        self
    }

    /// A task of an anonymous caller, with this account.
    pub(super) fn account(mut self, account: &str) -> Self {
        (self.owner, self.account) = (Principal::anonymous(), Principal::new(account));
        self
    }

    pub(super) fn tool(self, tool: &str) -> Self {
        let tool = tool.to_owned();
        Self { tool, ..self }
    }

    pub(super) fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    pub(super) fn webhooks(self, endpoints: &[&str]) -> Self {
        let webhooks = keys(endpoints);
        Self { webhooks, ..self }
    }

    pub(super) fn claimed(self, worker: &str, lease: Duration) -> Self {
        let claimed = Some((worker.to_owned(), lease));
        Self { claimed, ..self }
    }
}

/// An empty commit of a worker that keeps the task.
pub(super) fn keep() -> Commit {
    Commit::default()
}

/// An empty commit with this continuation.
pub(super) fn next(next: Next) -> Commit {
    keep().next(next)
}

/// A commit that publishes asks with these keys.
pub(super) fn asks(keys: &[&str]) -> Commit {
    let asks: Vec<_> = keys.iter().map(|key| (*key, "?")).collect();
    publish(&asks)
}

/// A commit that publishes these asks.
pub(super) fn publish(asks: &[(&str, &str)]) -> Commit {
    let publish = pairs(asks);
    Commit { publish, ..keep() }
}

impl Commit {
    pub(super) fn next(self, next: Next) -> Self {
        Self { next, ..self }
    }

    pub(super) fn suspend(self) -> Self {
        self.next(Next::Suspend(None))
    }

    pub(super) fn taken(self, taken: &[&str]) -> Self {
        let taken = keys(taken);
        Self { taken, ..self }
    }

    pub(super) fn withdrawn(self, withdrawn: &[&str]) -> Self {
        let withdrawn = keys(withdrawn);
        Self { withdrawn, ..self }
    }

    pub(super) fn journal(self, journal: &str) -> Self {
        let journal = Some(journal.into());
        Self { journal, ..self }
    }

    pub(super) fn message(mut self, message: &str) -> Self {
        self.status_message = Some(message.to_owned());
        self
    }

    pub(super) fn progress(mut self) -> Self {
        self.progress = true;
        self
    }
}

/// A store under test.
#[derive(Clone)]
pub(super) struct Subject(pub(super) Arc<dyn Store>);

impl Subject {
    /// Creates a task, which must be new.
    pub(super) async fn create(&self, new: NewTask) -> StoredTask {
        match self.0.create(new).await {
            Ok(Creation::New(task, _)) => task,
            result => panic!("the task was not created: {result:?}"),
        }
    }

    /// Creates a task a second time; the store must return the existing one.
    pub(super) async fn create_again(&self, new: NewTask) -> StoredTask {
        match self.0.create(new).await {
            Ok(Creation::Existing(task)) => task,
            result => panic!("the task did not exist: {result:?}"),
        }
    }

    /// Creates a task that a worker already runs.
    pub(super) async fn create_claimed(&self, new: NewTask, worker: &str, time: Duration) -> Lease {
        match self.0.create(new.claimed(worker, time)).await {
            Ok(Creation::New(_, Some(lease))) => lease,
            result => panic!("no lease was granted: {result:?}"),
        }
    }

    /// Creates a task with a lease of an hour.
    pub(super) async fn lease(&self) -> Lease {
        self.create_claimed(new(), "creator", HOUR).await
    }

    /// Creates a task with a lease of an hour, and publishes asks.
    pub(super) async fn asking(&self, keys: &[&str]) -> Lease {
        let lease = self.lease().await;
        self.commit(&lease, asks(keys)).await;
        lease
    }

    pub(super) async fn get(&self, id: &TaskId) -> StoredTask {
        let task = self.0.get(id, &alice()).await.expect("no error");
        task.expect("the task exists")
    }

    /// The open asks of a task of Alice with these keys.
    pub(super) async fn open_asks(&self, id: &TaskId, keys: &[&str]) -> Vec<(String, Bytes)> {
        let found = self.0.open_asks(id, &alice(), keys).await;
        let found = found.expect("no error").expect("the task exists");
        assert_eq!(found.tool, "tool");
        found.asks
    }

    pub(super) async fn find(&self, id: &TaskId) -> TaskRow {
        let row = self.0.find(id).await.expect("no error");
        row.expect("the task exists")
    }

    pub(super) async fn revision(&self, id: &TaskId) -> u64 {
        let ids = [id.clone()];
        let revisions = self.0.revisions(&ids).await.expect("no error");
        assert_eq!(revisions.len(), 1, "the task exists");
        assert_eq!(revisions[0].0, *id);
        revisions[0].1
    }

    pub(super) async fn cancel(&self, id: &TaskId) {
        assert!(self.0.cancel(id, &alice()).await.expect("no error"));
    }

    pub(super) async fn requeue(&self, id: &TaskId) -> TaskRow {
        let row = self.0.requeue(id).await.expect("no error");
        row.expect("the task exists")
    }

    /// Claims tasks for an hour.
    pub(super) async fn claim_as(
        &self,
        worker: &str,
        tools: &[&str],
        most: usize,
    ) -> Vec<ClaimedTask> {
        self.claim_except(worker, tools, most, &[]).await
    }

    /// Claims tasks for an hour, except those of these accounts.
    pub(super) async fn claim_except(
        &self,
        worker: &str,
        tools: &[&str],
        most: usize,
        except: &[Principal],
    ) -> Vec<ClaimedTask> {
        let tools = keys(tools);
        let claim = Claim {
            worker,
            tools: &tools,
            lease: HOUR,
            most,
            except,
            anonymous: true,
        };
        self.0.claim(claim).await.expect("no error")
    }

    /// Claims tasks of authenticated callers for an hour.
    pub(super) async fn claim_authenticated(&self, most: usize) -> Vec<ClaimedTask> {
        let claim = Claim {
            worker: "worker",
            tools: &keys(&["tool"]),
            lease: HOUR,
            most,
            except: &[],
            anonymous: false,
        };
        self.0.claim(claim).await.expect("no error")
    }

    pub(super) async fn claim_up_to(&self, most: usize) -> Vec<ClaimedTask> {
        self.claim_as("worker", &["tool"], most).await
    }

    /// Claims the only task that is due.
    pub(super) async fn claim(&self) -> ClaimedTask {
        let mut claimed = self.claim_up_to(10).await;
        assert_eq!(claimed.len(), 1, "expected one due task");
        claimed.remove(0)
    }

    /// Claims a task as soon as one is due.
    pub(super) async fn claim_soon(&self) -> ClaimedTask {
        until(async || self.claim_up_to(1).await.pop()).await
    }

    pub(super) async fn assert_none_due(&self) {
        let claimed = self.claim_up_to(10).await;
        assert!(claimed.is_empty(), "expected no due task: {claimed:?}");
    }

    pub(super) async fn commit(&self, lease: &Lease, commit: Commit) -> CommitResult {
        let committed = self.0.commit(lease, commit).await;
        committed.expect("the lease is held")
    }

    /// Commits nothing but a continuation.
    pub(super) async fn then(&self, lease: &Lease, continuation: Next) {
        self.commit(lease, next(continuation)).await;
    }

    pub(super) async fn assert_lost(&self, lease: &Lease) {
        let stale = asks(&["stale"]).journal("stale");
        assert_is_lost(&self.0.commit(lease, stale).await);
        assert_is_lost(&self.0.answers(lease).await);
        assert_eq!(self.extend(&[lease], HOUR).await, []);
    }

    pub(super) async fn extend(&self, leases: &[&Lease], time: Duration) -> Vec<Lease> {
        let leases: Vec<Lease> = leases.iter().copied().cloned().collect();
        self.0.extend(&leases, time).await.expect("no error")
    }

    /// Answers as Alice.
    pub(super) async fn answer(&self, lease: &Lease, answers: &[(&str, &str)]) {
        let answered = self.0.answer(&lease.task, &alice(), pairs(answers)).await;
        assert!(answered.expect("no error"), "the task exists");
    }

    pub(super) async fn answers(&self, lease: &Lease) -> Vec<(String, Vec<u8>)> {
        self.0.answers(lease).await.expect("the lease is held")
    }

    pub(super) async fn begin(&self, key: &LogKey, keep: Retention) -> RecordState {
        self.0.begin(key, &alice(), keep).await.expect("no error")
    }

    pub(super) async fn finish(&self, key: &LogKey, value: &str) {
        self.0.finish(key, value).await.expect("no error");
    }

    pub(super) async fn spill(&self, id: &str, token: Vec<u8>, keep: Duration) {
        let spilled = self.0.spill(id, &alice(), token, keep).await;
        spilled.expect("no error");
    }

    pub(super) async fn spilled(&self, id: &str) -> Option<Vec<u8>> {
        self.0.spilled(id).await.expect("no error")
    }

    pub(super) async fn sweep(&self, keep: Duration, most: usize) -> SweepCounts {
        self.0.sweep(keep, most).await.expect("no error")
    }

    /// Claims deliveries for an hour.
    pub(super) async fn deliveries(&self, endpoint: &str) -> Vec<Delivery> {
        let claimed = self.0.claim_deliveries(endpoint, HOUR, 100).await;
        claimed.expect("no error")
    }

    pub(super) async fn trim(&self, age: Duration, rows: usize) -> u64 {
        let trimmed = self.0.trim_outbox(age, rows, 100).await;
        trimmed.expect("no error")
    }

    /// Runs `work` eight times concurrently.
    pub(super) async fn concurrently<T: Send + 'static, F>(
        &self,
        mut work: impl FnMut(Self, usize) -> F,
    ) -> Vec<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let spawned: Vec<_> = (0..8)
            .map(|n| tokio::spawn(work(self.clone(), n)))
            .collect();
        let mut done = Vec::new();
        for task in spawned {
            done.push(task.await.expect("no panic"));
        }
        done
    }

    /// Creates tasks and claims them concurrently, here and from `other`. Each must be claimed once.
    pub(super) async fn assert_each_claimed_once(&self, other: &Self, count: usize) {
        for _ in 0..count {
            self.create(new()).await;
        }
        let work = async |store: Self| {
            let mut mine = Vec::new();
            loop {
                let claimed = store.claim_up_to(3).await;
                if claimed.is_empty() {
                    return mine;
                }
                mine.extend(claimed.into_iter().map(|claimed| claimed.lease.task));
            }
        };
        let stores = [self, other];
        let claimed = self.concurrently(|_, n| work(stores[n % 2].clone())).await;
        let mut claimed = claimed.concat();
        // A worker stops when others have locked all remaining tasks, so some may still be due.
        let rest = self.claim_up_to(count).await.into_iter();
        claimed.extend(rest.map(|claimed| claimed.lease.task));
        assert_eq!(claimed.len(), count, "no task is claimed twice");
        let distinct: HashSet<_> = claimed.into_iter().collect();
        assert_eq!(distinct.len(), count, "every task is claimed");
        self.assert_none_due().await;
    }
}
