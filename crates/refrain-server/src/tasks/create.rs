//! Turns a flow into a task.

use super::Tasks;
use super::driver::{RunningTask, TaskTimers};
use super::leases::TaskSlot;
use super::request::store_error;
use super::sealing::TaskPart;
use crate::backoff::Backoff;
use crate::catalog::RegisteredTool;
use crate::limits::{LimitKey, LivePermit, Permit};
use crate::metrics::TaskEvent;
use crate::request_span::open_task;
use refrain_core::{Claims, Detachment, Flow, Principal, Snapshot, limited_event};
use refrain_store::{Creation, Lease, NewTask, StoreError, TaskId, TaskStore};
use refrain_wire::{Capabilities, Reply, RpcError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The reason why a flow becomes a task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DetachReason {
    /// The tool was registered with `task` or `task_required`.
    Tool,
    /// The handler called `cx.detach()`.
    Handler,
    /// The round ran longer than `task_after`.
    Time,
}

/// The permit of the call that became a task.
pub(crate) enum CallPermit {
    Call(#[expect(dead_code, reason = "held until the task ends here")] Permit),
    /// For a handler that stays in memory.
    Live(#[expect(dead_code, reason = "held until the task ends")] LivePermit),
}

/// The data for creating a task, apart from the flow.
pub(crate) struct TaskSeed {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) tool: Arc<RegisteredTool>,
    pub(crate) owner: Principal,
    pub(crate) caller: LimitKey,
    pub(crate) arguments: Option<Box<RawValue>>,
    pub(crate) capabilities: Capabilities,
    pub(crate) extensions: Option<Box<RawValue>>,
    /// The members of `_meta` that are not reserved.
    pub(crate) meta: Option<Box<RawValue>>,
    /// The maximum time to live that the client requested.
    pub(crate) ttl: Option<Duration>,
}

/// The stored form of a call. For compatibility, members are added but never removed.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredCall<'a> {
    #[serde(borrow)]
    pub(super) arguments: Option<Cow<'a, RawValue>>,
    #[serde(with = "StoredCapabilities")]
    pub(super) capabilities: Capabilities,
    pub(super) extensions: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) meta: Option<Box<RawValue>>,
    /// Whether the handler stays in the memory of the instance that created the task, and never runs again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) live: bool,
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
    /// Not stored: the owner of a task always supports tasks.
    #[serde(skip, default = "always_true")]
    tasks: bool,
}

fn always_true() -> bool {
    true
}

/// Maximum number of retries to create a task.
const MAX_RETRIES: u32 = 4;
/// The wait before the first retry.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Maximum number of attempts, one second apart, to cancel a task that may exist although its
/// creation failed.
const CANCEL_ATTEMPTS: u32 = 600;

pub(crate) type Creating =
    Pin<Box<dyn Future<Output = Result<CreatedTask, (StoreError, TaskSeed)>> + Send>>;

/// A new task, or the existing task of an earlier request of the same call.
pub(crate) struct CreatedTask {
    created: Creation,
    /// A time before the store granted the lease. The lease counts from then, so that this
    /// instance never holds it for too long.
    requested_at: Instant,
    slot: Option<TaskSlot>,
    seed: TaskSeed,
    detachment: Detachment,
}

impl Tasks {
    pub(super) fn seal_journal(
        &self,
        owned: (&TaskId, &Principal),
        snapshot: &Snapshot,
        version: &str,
    ) -> Vec<u8> {
        let claims = Claims {
            issued: self.services.source.unix_seconds(),
            expires: u64::MAX,
            version,
        };
        self.seal(owned, TaskPart::Journal, &snapshot.encode(&claims, &[], 0))
    }

    fn new_task(
        &self,
        seed: &TaskSeed,
        flow: &mut Flow,
        detachment: &Detachment,
        runs_here: bool,
    ) -> NewTask {
        let id = TaskId::new(self.services.random());
        let tool = &seed.tool.tool;
        let snapshot = detachment.snapshot();
        let call = StoredCall {
            arguments: seed.arguments.as_deref().map(Cow::Borrowed),
            capabilities: seed.capabilities,
            extensions: seed.extensions.clone(),
            meta: seed.meta.clone(),
            live: tool.live,
        };
        let call = serde_json::to_vec(&call).expect("raw JSON and plain values serialize");
        let options = &self.options;
        let max_ttl = tool.task.ttl.unwrap_or(options.ttl);
        let owned = (&id, &seed.owner);
        NewTask {
            flow: snapshot.flow(),
            owner: seed.owner.clone(),
            account: seed.caller.account(),
            tool: self.namespace.stored_name(&tool.info.name),
            call: self.seal(owned, TaskPart::Call, &call),
            journal: self.seal_journal(owned, snapshot, &tool.version),
            status_message: flow.take_status().map(|status| status.text),
            ttl: seed.ttl.map_or(max_ttl, |ttl| ttl.min(max_ttl)),
            poll_interval: tool.task.poll_interval.unwrap_or(options.poll_interval),
            claimed: runs_here.then(|| (self.leases.worker.clone(), options.lease)),
            webhooks: self.endpoint_names(),
            id,
        }
    }
}

impl TaskSeed {
    /// The size of the parts that the client sent, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        let parts = [&self.arguments, &self.extensions, &self.meta];
        let parts = parts.into_iter().flatten();
        parts.map(|raw| raw.get().len()).sum()
    }

    /// Creates a task for the flow. If a slot is free, this instance runs the task. Otherwise it waits in the store.
    ///
    /// With `runs_here`, the task runs here even without a slot, because its handler is already in memory. The permit of its
    /// call limits it.
    pub(crate) fn create(self, flow: &mut Flow, runs_here: bool) -> Creating {
        // Taken before the store operation, so that tasks created concurrently count.
        let slot = self.tasks.try_slot(&self.caller);
        let runs_here = runs_here || slot.is_some();
        let detachment = flow.detachment();
        let new = self.tasks.new_task(&self, flow, &detachment, runs_here);
        let (tasks, caller) = (self.tasks.clone(), self.caller.clone());
        Box::pin(async move {
            let requested_at = Instant::now();
            match tasks.create(new, caller).await {
                Ok(created) => Ok(CreatedTask {
                    created,
                    requested_at,
                    slot,
                    seed: self,
                    detachment,
                }),
                Err(error) => {
                    if let StoreError::Quota(_) = error {
                        self.tasks.services.metrics.tasks.add(TaskEvent::OverQuota);
                    }
                    Err((error, self))
                }
            }
        })
    }
}

impl CreatedTask {
    /// Starts the task if this instance runs it, and returns the reply to the call.
    pub(crate) fn run(self, mut flow: Flow, permit: CallPermit) -> Reply {
        let seed = self.seed;
        let (tasks, owner) = (seed.tasks.clone(), seed.owner.clone());
        let task = match self.created {
            Creation::Existing(task) => task,
            Creation::New(task, lease) => {
                tasks.services.metrics.tasks.add(TaskEvent::Created);
                if let Some(lease) = lease {
                    let now = tasks.services.source.unix_seconds();
                    flow.become_task(&self.detachment, now.saturating_add(task.ttl.as_secs()));
                    let (id, tool) = (&task.id, &seed.tool.tool.info.name);
                    let span = open_task(id, tool, flow.id(), flow.trace().exported());
                    let running = RunningTask {
                        span,
                        slot: self.slot,
                        is_live: seed.tool.tool.live,
                        tool: seed.tool,
                        owner: seed.owner,
                        flow,
                        attempt: 1,
                        deadline: Instant::now().checked_add(task.ttl),
                        ttl: task.ttl,
                        timers: TaskTimers::default(),
                        _permit: Some(permit),
                    };
                    tasks.run_here(running, lease, task.revision, self.requested_at);
                }
                task
            }
        };
        match tasks.task_info(task, &owner) {
            Some(info) => Reply::Task(info.to_created()),
            None => Reply::Error(RpcError::internal("Internal error")),
        }
    }

    /// Cancels a new task in the background, because its call was cancelled in the meantime.
    pub(crate) fn abandon(self) {
        if let Creation::New(task, _) = self.created {
            let (store, owner) = (self.seed.tasks.store.clone(), self.seed.owner);
            tokio::spawn(cancel_orphan(store, task.id, owner));
        }
    }
}

impl Tasks {
    /// Creates a task, with retries: an unavailable store may still have created it. If the store stays unavailable, cancels
    /// the possible task in the background, because no client knows its id.
    async fn create(&self, new: NewTask, caller: LimitKey) -> Result<Creation, StoreError> {
        let mut backoff = Backoff::new(FIRST_WAIT, Duration::from_secs(1));
        let mut retries = 0;
        loop {
            let permit = self.queue.acquire(caller.clone()).await;
            let created = self.store.create(new.clone()).await;
            drop(permit);
            match created {
                // An earlier attempt created it.
                Ok(Creation::Existing(task)) if task.id == new.id => {
                    let (id, fence) = (new.id, 1);
                    let lease = new.claimed.map(|_| Lease { task: id, fence });
                    return Ok(Creation::New(task, lease));
                }
                Ok(created) => return Ok(created),
                Err(StoreError::Unavailable(_)) if retries < MAX_RETRIES => {
                    retries += 1;
                    backoff.wait().await;
                }
                Err(error) => {
                    if let StoreError::Unavailable(_) = error {
                        let store = self.store.clone();
                        tokio::spawn(cancel_orphan(store, new.id, new.owner));
                    }
                    return Err(error);
                }
            }
        }
    }
}

/// Cancels a task that may exist although its creation failed.
async fn cancel_orphan(store: Arc<dyn TaskStore>, id: TaskId, owner: Principal) {
    let second = Duration::from_secs(1);
    let mut backoff = Backoff::new(second, second);
    for _ in 0..CANCEL_ATTEMPTS {
        if store.cancel(&id, &owner).await.is_ok() {
            return;
        }
        backoff.wait().await;
    }
    limited_event!(ERROR, task = ?id, "failed to cancel orphaned task");
}

/// Logs a failed task creation and returns the error for the call.
pub(crate) fn creation_error(error: &StoreError) -> RpcError {
    if !matches!(error, StoreError::Quota(_)) {
        limited_event!(ERROR, %error, "failed to create task");
    }
    store_error(error)
}
