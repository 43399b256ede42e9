//! Tasks that are made and moved by hand, as a worker would, and a store that fails when it is told to.

use super::{CAPABILITIES, Request, within};
use refrain_core::{FlowId, Principal};
use refrain_server::TaskOptions;
use refrain_store::{
    Claim, Claimed, Commit, Committed, Created, Hint, Lease, ListTasks, MemoryStore, NewTask, Next,
    StoreError, StoreFuture, Swept, Task, TaskId, TaskRow, TaskStore,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::broadcast;

pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Options that look so often that nobody waits for it.
pub(crate) fn eager() -> TaskOptions {
    TaskOptions {
        look: Duration::from_millis(10),
        ..TaskOptions::default()
    }
}

/// The same request from a client that speaks the extension.
pub(crate) fn declared(request: Request) -> Request {
    let capabilities = json!({"extensions": {TASKS: {}}});
    request.meta(CAPABILITIES, capabilities)
}

/// A request about a task from a client that speaks the extension.
pub(crate) fn about(method: &str, id: &str) -> Request {
    let request = Request::rpc(method, json!({"taskId": id}));
    declared(request.header("Mcp-Name", id))
}

/// Answers for a task.
pub(crate) fn update(id: &str, answers: Value) -> Request {
    about("tasks/update", id).param("inputResponses", answers)
}

/// What is stored of a part of a task that is not sealed.
pub(crate) fn stored(json: &Value) -> Vec<u8> {
    let mut stored = vec![0];
    stored.extend_from_slice(json.to_string().as_bytes());
    stored
}

/// A form to be filled in.
pub(crate) fn form() -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"mode": "form", "message": "Who?", "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

/// A task that this test runs by hand.
pub(crate) struct Work {
    store: Arc<dyn TaskStore>,
    pub(crate) lease: Lease,
}

/// Makes a task of the tool `work`.
pub(crate) async fn create(store: Arc<dyn TaskStore>, owner: Principal) -> Work {
    create_of("work", store, owner).await
}

/// Makes a task of the tool that has this name in the store.
pub(crate) async fn create_of(tool: &str, store: Arc<dyn TaskStore>, owner: Principal) -> Work {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let mut random = [7; 24];
    random[..8].copy_from_slice(&number.to_le_bytes());
    let mut flow = [0; 16];
    flow[..8].copy_from_slice(&number.to_le_bytes());
    let new = NewTask {
        id: TaskId::new(random),
        flow: FlowId::from_bytes(flow),
        owner,
        tool: tool.into(),
        call: Vec::new(),
        journal: Vec::new(),
        status_message: None,
        ttl: Duration::from_secs(60),
        poll_interval: Duration::from_secs(1),
        claimed: Some(("the test".into(), LONG)),
    };
    match store.create(new).await.expect("a task") {
        Created::New(_, Some(lease)) => Work { store, lease },
        other => panic!("not a new task of this test's: {other:?}"),
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

    /// Says what it is doing.
    pub(crate) async fn say(&self, message: &str) {
        let status_message = Some(message.to_owned());
        self.commit(Commit {
            status_message,
            ..Commit::default()
        })
        .await;
    }

    /// Asks something.
    pub(crate) async fn ask(&self, asks: &[(&str, Value)]) {
        let publish = asks.iter();
        let publish = publish.map(|(key, ask)| ((*key).to_owned(), stored(ask)));
        self.commit(Commit {
            publish: publish.collect(),
            ..Commit::default()
        })
        .await;
    }

    /// Goes on so.
    pub(crate) async fn next(&self, next: Next) {
        self.commit(Commit {
            next,
            ..Commit::default()
        })
        .await;
    }

    /// Ends with this result.
    pub(crate) async fn complete(&self, result: &Value) {
        self.next(Next::Complete(stored(result))).await;
    }

    /// The answers that came, as they are stored.
    pub(crate) async fn answers(&self) -> Vec<(String, Vec<u8>)> {
        let answers = self.store.answers(&self.lease).await;
        answers.expect("the lease is held")
    }

    /// The answers that came, which are not sealed.
    pub(crate) async fn plain_answers(&self) -> Vec<(String, Value)> {
        let plain = |(key, stored): (String, Vec<u8>)| {
            assert_eq!(stored[0], 0, "{key} is not sealed");
            (key, serde_json::from_slice(&stored[1..]).expect("JSON"))
        };
        self.answers().await.into_iter().map(plain).collect()
    }
}

/// A store that a test can take away, and whose hints are its own.
pub(crate) struct Shaky {
    store: Arc<dyn TaskStore>,
    fault: Mutex<Option<StoreError>>,
    stuck: AtomicBool,
    hints: broadcast::Sender<Hint>,
}

impl Shaky {
    /// Another way to this store, without hints.
    pub(crate) fn new(store: &MemoryStore) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store.clone()),
            fault: Mutex::default(),
            stuck: AtomicBool::new(false),
            hints: broadcast::Sender::new(1),
        })
    }

    /// From now on everything fails so, or nothing.
    pub(crate) fn fail(&self, fault: Option<StoreError>) {
        *self.fault.lock().expect("no test panics here") = fault;
    }

    /// From now on nothing comes to an end.
    pub(crate) fn get_stuck(&self) {
        self.stuck.store(true, Ordering::SeqCst);
    }

    /// Waits until so many listen to its hints.
    pub(crate) async fn heard_by(&self, count: usize) {
        let heard = async {
            while self.hints.receiver_count() != count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within("the watchers to come or go", heard).await;
    }

    fn through<'a, T: Send + 'a>(&'a self, done: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        if self.stuck.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let fault = match &*self.fault.lock().expect("no test panics here") {
            Some(StoreError::Unavailable(source)) => {
                StoreError::Unavailable(source.to_string().into())
            }
            Some(fault) => StoreError::Failed(fault.to_string().into()),
            None => return done,
        };
        Box::pin(std::future::ready(Err(fault)))
    }
}

impl TaskStore for Shaky {
    fn create(&self, new: NewTask) -> StoreFuture<'_, Created> {
        self.through(self.store.create(new))
    }

    fn get<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, Option<Task>> {
        self.through(self.store.get(id, owner))
    }

    fn answer<'a>(
        &'a self,
        id: &'a TaskId,
        owner: &'a Principal,
        answers: Vec<(String, Vec<u8>)>,
    ) -> StoreFuture<'a, bool> {
        self.through(self.store.answer(id, owner, answers))
    }

    fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
        self.through(self.store.cancel(id, owner))
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<Claimed>> {
        self.through(self.store.claim(claim))
    }

    fn extend<'a>(&'a self, leases: &'a [Lease], lease: Duration) -> StoreFuture<'a, Vec<Lease>> {
        self.through(self.store.extend(leases, lease))
    }

    fn commit<'a>(&'a self, lease: &'a Lease, commit: Commit) -> StoreFuture<'a, Committed> {
        self.through(self.store.commit(lease, commit))
    }

    fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        self.through(self.store.answers(lease))
    }

    fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
        self.through(self.store.revisions(tasks))
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn spill<'a>(&'a self, id: &'a str, token: Vec<u8>, keep: Duration) -> StoreFuture<'a, ()> {
        self.through(self.store.spill(id, token, keep))
    }

    fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.through(self.store.spilled(id))
    }

    fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, Swept> {
        self.through(self.store.sweep(keep, most))
    }

    fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
        self.through(self.store.list(list))
    }

    fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.through(self.store.find(id))
    }

    fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
        self.through(self.store.requeue(id))
    }
}
