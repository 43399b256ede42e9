//! Tasks that a test creates and runs manually, in place of a worker.

pub(crate) use refrain_testkit::net::{FaultyStore, TASKS_EXTENSION};

use super::{Instance, Request, result};
use refrain_core::{Cx, FlowId, Principal, Result};
use refrain_server::TaskOptions;
use refrain_store::{
    Commit, Creation, Lease, MemoryStore, NewTask, Next, StoreFuture, StoreLayer, TaskId, TaskStore,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Options with a short poll interval.
pub(crate) fn eager() -> TaskOptions {
    TaskOptions {
        store_poll: Duration::from_millis(10),
        ..TaskOptions::default()
    }
}

/// The same request from a client that declares the tasks extension.
pub(crate) fn declared(request: Request) -> Request {
    request.declares_tasks()
}

/// A request about a task from a client that declares the tasks extension.
pub(crate) fn about(method: &str, id: &str) -> Request {
    Request::task(method, id)
}

/// Answers for a task.
pub(crate) fn update(id: &str, answers: Value) -> Request {
    about("tasks/update", id).param("inputResponses", answers)
}

/// The state of a task.
pub(crate) async fn get(instance: &Instance, id: &str) -> Value {
    let reply = instance.send(&about("tasks/get", id)).await.reply();
    result(&reply).clone()
}

/// The handler of the tool `work`.
pub(crate) async fn work(_: Cx) -> Result<&'static str> {
    Ok("worked")
}

/// The stored form of unsealed JSON.
pub(crate) fn stored(json: &Value) -> Vec<u8> {
    let mut stored = vec![0];
    stored.extend_from_slice(json.to_string().as_bytes());
    stored
}

/// A form ask.
pub(crate) fn form() -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"mode": "form", "message": "Who?", "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

/// A task whose lease the test holds.
pub(crate) struct Work {
    store: Arc<dyn TaskStore>,
    pub(crate) lease: Lease,
}

/// Creates a task of the tool `work`.
pub(crate) async fn create(store: Arc<dyn TaskStore>, owner: Principal) -> Work {
    create_of("work", store, owner).await
}

/// Creates a task of the tool `work` for the anonymous principal.
pub(crate) async fn create_anonymous(store: &MemoryStore) -> Work {
    create(Arc::new(store.clone()), Principal::anonymous()).await
}

/// Creates a task of the tool with this name in the store.
pub(crate) async fn create_of(tool: &str, store: Arc<dyn TaskStore>, owner: Principal) -> Work {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut random = [7; 24];
    random[..8].copy_from_slice(&number.to_le_bytes());
    let mut flow = [0; 16];
    flow[..8].copy_from_slice(&number.to_le_bytes());
    let new = NewTask {
        id: TaskId::new(random),
        flow: FlowId::from_bytes(flow),
        account: owner.clone(),
        owner,
        tool: tool.into(),
        call: Vec::new(),
        journal: Vec::new(),
        status_message: None,
        ttl: Duration::from_secs(60),
        poll_interval: Duration::from_secs(1),
        claimed: Some(("the test".into(), LONG)),
        webhooks: Vec::new(),
    };
    match store.create(new).await.expect("a task") {
        Creation::New(_, Some(lease)) => Work { store, lease },
        other => panic!("expected a new task with a lease, not {other:?}"),
    }
}

impl Work {
    pub(crate) fn id(&self) -> &str {
        self.lease.task.as_str()
    }

    pub(crate) async fn commit(&self, commit: Commit) {
        let committed = self.store.commit(&self.lease, commit).await;
        committed.expect("the lease is held");
    }

    /// Commits a status message.
    pub(crate) async fn say(&self, message: &str) {
        let status_message = Some(message.to_owned());
        self.commit(Commit {
            status_message,
            ..Commit::default()
        })
        .await;
    }

    /// Publishes asks.
    pub(crate) async fn ask(&self, asks: &[(&str, Value)]) {
        let publish = asks.iter();
        let publish = publish.map(|(key, ask)| ((*key).to_owned(), stored(ask)));
        self.commit(Commit {
            publish: publish.collect(),
            ..Commit::default()
        })
        .await;
    }

    /// Commits the next state.
    pub(crate) async fn next(&self, next: Next) {
        self.commit(Commit {
            next,
            ..Commit::default()
        })
        .await;
    }

    /// Completes the task with this result.
    pub(crate) async fn complete(&self, result: &Value) {
        self.next(Next::Complete(stored(result))).await;
    }

    /// The stored answers.
    pub(crate) async fn answers(&self) -> Vec<(String, Vec<u8>)> {
        let answers = self.store.answers(&self.lease).await;
        answers.expect("the lease is held")
    }

    /// The decoded answers, which must not be sealed.
    pub(crate) async fn plain_answers(&self) -> Vec<(String, Value)> {
        let plain = |(key, stored): (String, Vec<u8>)| {
            assert_eq!(stored[0], 0, "{key} is not sealed");
            (key, serde_json::from_slice(&stored[1..]).expect("JSON"))
        };
        self.answers().await.into_iter().map(plain).collect()
    }
}

/// A store that counts how often whole tasks are read, and in which a read needs a permit.
pub(crate) struct ReadingStore {
    store: MemoryStore,
    permits: Semaphore,
    reads: AtomicUsize,
}

impl ReadingStore {
    pub(crate) fn new(store: &MemoryStore, permits: usize) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            permits: Semaphore::new(permits),
            reads: AtomicUsize::new(0),
        })
    }

    /// The number of reads that have started.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    /// Allows further reads.
    pub(crate) fn allow(&self, reads: usize) {
        self.permits.add_permits(reads);
    }
}

impl StoreLayer for ReadingStore {
    fn store(&self) -> &dyn TaskStore {
        &self.store
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        operation: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        if name != "get" {
            return operation;
        }
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let permit = self.permits.acquire().await;
            permit.expect("it is open").forget();
            operation.await
        })
    }
}
