//! A flow becomes a task.

use super::Tasks;
use super::driver::{Clocks, Running};
use super::request::UNREACHABLE;
use super::sealing::Part;
use crate::catalog::RegisteredTool;
use crate::limits::Permit;
use crate::metrics::TaskEvent;
use crate::retry::Backoff;
use refrain_core::{Claims, Detachment, Flow, Principal, Snapshot};
use refrain_store::{Creation, Lease, NewTask, StoreError, TaskId, TaskStore};
use refrain_wire::{Capabilities, Reply, RpcError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The data of a future task beside its flow.
pub(crate) struct Seed {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) tool: Arc<RegisteredTool>,
    pub(crate) owner: Principal,
    pub(crate) arguments: Option<Box<RawValue>>,
    pub(crate) capabilities: Capabilities,
    pub(crate) extensions: Option<Box<RawValue>>,
    /// The longest time to live that the client wants.
    pub(crate) ttl: Option<Duration>,
}

/// The stored form of a call. Members may be added, but not removed.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredCall<'a> {
    #[serde(borrow)]
    pub(super) arguments: Option<Cow<'a, RawValue>>,
    #[serde(with = "StoredCapabilities")]
    pub(super) capabilities: Capabilities,
    pub(super) extensions: Option<Box<RawValue>>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Capabilities")]
struct StoredCapabilities {
    form: bool,
    url: bool,
    sampling: bool,
    sampling_tools: bool,
    sampling_context: bool,
    roots: bool,
    /// The owner of a task supports tasks.
    #[serde(skip, default = "supported")]
    tasks: bool,
}

fn supported() -> bool {
    true
}

/// Retries of the creation of a task, and the wait before the first.
const RETRIES: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Attempts to cancel a task whose creation may have failed, a second apart.
const CANCELS: u32 = 600;

pub(crate) type Creating = Pin<Box<dyn Future<Output = Result<Made, (StoreError, Seed)>> + Send>>;

/// A task that was created, or that exists since an earlier request of the same call.
pub(crate) struct Made {
    created: Creation,
    asked: Instant,
    seed: Seed,
    detachment: Detachment,
}

impl Tasks {
    pub(super) fn seal_journal(
        &self,
        whose: (&TaskId, &Principal),
        snapshot: &Snapshot,
        version: &str,
    ) -> Vec<u8> {
        let claims = Claims {
            issued: self.services.source.unix_seconds(),
            expires: u64::MAX,
            version,
        };
        self.seal(whose, Part::Journal, &snapshot.encode(&claims, &[], 0))
    }

    fn new_task(
        &self,
        seed: &Seed,
        flow: &mut Flow,
        detachment: &Detachment,
        here: bool,
    ) -> NewTask {
        let id = TaskId::new(self.services.random());
        let tool = &seed.tool.tool;
        let snapshot = detachment.snapshot();
        let call = StoredCall {
            arguments: seed.arguments.as_deref().map(Cow::Borrowed),
            capabilities: seed.capabilities,
            extensions: seed.extensions.clone(),
        };
        let call = serde_json::to_vec(&call).expect("raw JSON and plain values can be written");
        let options = &self.options;
        let longest = tool.task.ttl.unwrap_or(options.ttl);
        let whose = (&id, &seed.owner);
        NewTask {
            flow: snapshot.flow(),
            owner: seed.owner.clone(),
            tool: self.namespace.stored_name(&tool.info.name),
            call: self.seal(whose, Part::Call, &call),
            journal: self.seal_journal(whose, snapshot, &tool.version),
            status_message: flow.take_status(),
            ttl: seed.ttl.map_or(longest, |ttl| ttl.min(longest)),
            poll_interval: tool.task.poll_interval.unwrap_or(options.poll_interval),
            claimed: here.then(|| (self.leases.worker.clone(), options.lease)),
            id,
        }
    }
}

impl Seed {
    /// Creates a task of a flow, to be run by this instance if `here`.
    pub(crate) fn create(self, flow: &mut Flow, here: bool) -> Creating {
        let detachment = flow.detachment();
        let new = self.tasks.new_task(&self, flow, &detachment, here);
        let store = self.tasks.store.clone();
        Box::pin(async move {
            let asked = Instant::now();
            match create(store, new).await {
                Ok(created) => Ok(Made {
                    created,
                    asked,
                    seed: self,
                    detachment,
                }),
                Err(error) => Err((error, self)),
            }
        })
    }
}

impl Made {
    /// The reply to a call that has become a task. If this instance runs the task, it goes on with the flow.
    pub(crate) fn run(self, mut flow: Flow, permit: Permit) -> Reply {
        let seed = self.seed;
        let (tasks, owner) = (seed.tasks.clone(), seed.owner.clone());
        let task = match self.created {
            Creation::Existing(task) => task,
            Creation::New(task, lease) => {
                tasks.services.metrics.tasks.add(TaskEvent::Created);
                if let Some(lease) = lease {
                    let now = tasks.services.source.unix_seconds();
                    flow.become_task(&self.detachment, now.saturating_add(task.ttl.as_secs()));
                    let running = Running {
                        tool: seed.tool,
                        owner: seed.owner,
                        flow,
                        attempt: 1,
                        ends: Instant::now().checked_add(task.ttl),
                        ttl: task.ttl,
                        clocks: Clocks::default(),
                        _permit: Some(permit),
                    };
                    tasks.run_here(running, lease, task.revision, self.asked);
                }
                task
            }
        };
        match tasks.task_info(task, &owner) {
            Some(info) => Reply::Task(info.to_created()),
            None => Reply::Error(RpcError::internal("Internal error")),
        }
    }
}

/// Creates a task. An unavailable store may have created it all the same, so this is retried; if the store stays
/// unavailable, the task is cancelled in the background, because no client knows of it.
async fn create(store: Arc<dyn TaskStore>, new: NewTask) -> Result<Creation, StoreError> {
    let mut backoff = Backoff::new(FIRST_WAIT, Duration::from_secs(1));
    let mut retries = 0;
    loop {
        match store.create(new.clone()).await {
            // Creation by an earlier attempt.
            Ok(Creation::Existing(task)) if task.id == new.id => {
                let (id, fence) = (new.id, 1);
                let lease = new.claimed.map(|_| Lease { task: id, fence });
                return Ok(Creation::New(task, lease));
            }
            Ok(created) => return Ok(created),
            Err(StoreError::Unavailable(_)) if retries < RETRIES => {
                retries += 1;
                backoff.wait().await;
            }
            Err(error) => {
                if let StoreError::Unavailable(_) = error {
                    tokio::spawn(take_back(store, new.id, new.owner));
                }
                return Err(error);
            }
        }
    }
}

/// Cancels a task that may have been created.
async fn take_back(store: Arc<dyn TaskStore>, id: TaskId, owner: Principal) {
    let second = Duration::from_secs(1);
    let mut backoff = Backoff::new(second, second);
    for _ in 0..CANCELS {
        if store.cancel(&id, &owner).await.is_ok() {
            return;
        }
        backoff.wait().await;
    }
    tracing::error!(task = ?id, "failed to cancel a task that may have been created");
}

/// The error for a call that cannot become a task.
pub(crate) fn cannot_create(error: &StoreError) -> RpcError {
    tracing::error!(%error, "failed to create a task");
    RpcError::internal(match error {
        StoreError::Unavailable(_) => UNREACHABLE,
        _ => "Internal error",
    })
}
