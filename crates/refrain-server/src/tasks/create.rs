//! A flow becomes a task.

use super::run::Running;
use super::vault::Part;
use crate::catalog::RegisteredTool;
use crate::metrics::TaskEvent;
use crate::server::Server;
use refrain_core::{Claims, Flow, Principal, Snapshot};
use refrain_store::{Created, NewTask, StoreError, TaskId};
use refrain_wire::{Capabilities, Reply, RpcError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

/// What is known of a call that may become a task.
pub(crate) struct Seed {
    pub(crate) tool: Arc<RegisteredTool>,
    pub(crate) owner: Principal,
    pub(crate) arguments: Option<Box<RawValue>>,
    pub(crate) capabilities: Capabilities,
    pub(crate) extensions: Option<Box<RawValue>>,
}

/// A call as it is kept for whoever runs its task. New members may come; none may go.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredCall<'a> {
    #[serde(borrow)]
    pub(super) arguments: Option<Cow<'a, RawValue>>,
    pub(super) capabilities: StoredCapabilities,
    pub(super) extensions: Option<Box<RawValue>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredCapabilities {
    form: bool,
    url: bool,
    sampling: bool,
    sampling_tools: bool,
    sampling_context: bool,
    roots: bool,
}

impl From<Capabilities> for StoredCapabilities {
    fn from(of: Capabilities) -> Self {
        Self {
            form: of.form,
            url: of.url,
            sampling: of.sampling,
            sampling_tools: of.sampling_tools,
            sampling_context: of.sampling_context,
            roots: of.roots,
        }
    }
}

impl From<StoredCapabilities> for Capabilities {
    fn from(of: StoredCapabilities) -> Self {
        Self {
            form: of.form,
            url: of.url,
            sampling: of.sampling,
            sampling_tools: of.sampling_tools,
            sampling_context: of.sampling_context,
            roots: of.roots,
            tasks: true,
        }
    }
}

/// A task being made.
pub(crate) type Creating = Pin<Box<dyn Future<Output = Result<Made, StoreError>> + Send>>;

/// What came of it.
pub(crate) struct Made {
    created: Created,
    asked: Instant,
}

impl Server {
    /// The journal of a task as it is kept.
    pub(super) fn shut_journal(
        &self,
        task: &TaskId,
        snapshot: &Snapshot,
        version: &str,
    ) -> Vec<u8> {
        let issued = self.0.source.unix_seconds();
        let claims = Claims {
            issued,
            expires: u64::MAX,
            version,
        };
        self.shut(task, Part::Journal, &snapshot.encode(&claims, &[], 0))
    }

    /// Makes a task of a flow, run by this instance if `here`.
    pub(crate) fn create_task(&self, seed: &Seed, flow: &mut Flow, here: bool) -> Option<Creating> {
        let tasks = self.0.tasks.as_ref()?;
        let mut random = [0; 24];
        self.0.source.fill(&mut random);
        let id = TaskId::new(random);
        let tool = &seed.tool.tool;
        let snapshot = flow.snapshot();
        let call = StoredCall {
            arguments: seed.arguments.as_deref().map(Cow::Borrowed),
            capabilities: seed.capabilities.into(),
            extensions: seed.extensions.clone(),
        };
        let call = serde_json::to_vec(&call).expect("raw JSON and plain values can be written");
        let options = &tasks.options;
        let new = NewTask {
            flow: snapshot.flow(),
            owner: seed.owner.clone(),
            tool: tool.info.name.clone(),
            call: self.shut(&id, Part::Call, &call),
            journal: self.shut_journal(&id, &snapshot, &tool.version),
            status_message: flow.take_status(),
            ttl: tool.task.ttl.unwrap_or(options.ttl),
            poll_interval: tool.task.poll_interval.unwrap_or(options.poll_interval),
            claimed: here.then(|| (tasks.crew.worker.clone(), options.lease)),
            id,
        };
        let store = tasks.store.clone();
        Some(Box::pin(async move {
            let asked = Instant::now();
            let created = store.create(new).await?;
            Ok(Made { created, asked })
        }))
    }

    /// The reply to a call that has become a task. If it runs here, it goes on here.
    pub(crate) fn begin_task(&self, made: Made, seed: Seed, mut flow: Flow) -> Reply {
        if let Created::New(..) = made.created {
            self.0.metrics.task(TaskEvent::Created);
        }
        let task = match made.created {
            Created::New(task, Some(lease)) => {
                let left = task.ttl;
                let now = self.0.source.unix_seconds();
                flow.become_task(now.saturating_add(left.as_secs()));
                self.run_here(
                    Running::begun(seed.tool, flow, left),
                    lease,
                    task.revision,
                    made.asked,
                );
                task
            }
            Created::New(task, None) | Created::Before(task) => task,
        };
        match self.task_info(task) {
            Some(info) => Reply::Task(info.to_created()),
            None => Reply::Error(RpcError::internal("Internal error")),
        }
    }
}

/// What a caller is told when a task cannot be made.
pub(crate) fn cannot_create(error: &StoreError) -> RpcError {
    tracing::error!(%error, "a task could not be made");
    RpcError::internal(match error {
        StoreError::Unavailable(_) => "the task store cannot be reached; try again",
        _ => "Internal error",
    })
}
