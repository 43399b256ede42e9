//! Restores the flow of a claimed task, or releases or fails the task.

use super::Tasks;
use super::commit::state_change;
use super::create::StoredCall;
use super::driver::{RunningTask, TaskTimers};
use super::failures::{expired, outcome_unknown, too_many_attempts};
use super::sealing::TaskPart;
use crate::live::Subscribed;
use crate::request_span::open_task;
use crate::rounds::{FlowSpec, Target};
use refrain_core::{Principal, Snapshot, Start, limited_event};
use refrain_store::{ClaimedTask, Next, StoreError, TaskId};
use refrain_wire::{RpcError, otel, parse_value};
use serde_json::json;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;
use tracing::Span;

/// The reason why a claimed task cannot run here. Unless it failed, another instance may be able to run it.
#[derive(Debug, thiserror::Error)]
enum TaskResumeError {
    #[error("{}", .0.message)]
    Failed(RpcError),
    // Only tasks of registered tools are claimed, so the tool was removed in the meantime.
    #[error("the tool is not registered")]
    Tool,
    #[error("the stored task cannot be opened; check that the keys have not changed")]
    Sealed,
    #[error("the stored call has an unknown format")]
    Call,
    #[error("a stored answer cannot be opened; check that the keys have not changed")]
    Answer,
    #[error("the stored arguments have an unknown format")]
    Arguments,
}

impl Tasks {
    /// Runs a claimed task, or commits why it cannot run here.
    pub(super) async fn start_claimed(
        self: &Arc<Self>,
        claimed: ClaimedTask,
        requested_at: Instant,
    ) {
        let (lease, revision) = (claimed.lease.clone(), claimed.revision);
        let owner = claimed.owner.clone();
        let commit = match self.resume(claimed) {
            Ok(running) => return self.run_here(running, lease, revision, requested_at),
            Err(TaskResumeError::Failed(error)) => self.fail((&lease.task, &owner), &error),
            Err(reason) => {
                limited_event!(ERROR, task = ?lease.task, %reason, "failed to resume task");
                state_change(Next::Suspend(Some(self.options.retry_at_most)))
            }
        };
        match self.store.commit(&lease, commit.clone()).await {
            Ok(_) => self.count_event(&commit.next),
            Err(StoreError::Lost) => {}
            // Another worker claims the task after the lease expires.
            Err(error) => {
                limited_event!(WARN, task = ?lease.task, %error, "failed to write task");
            }
        }
    }

    fn resume(&self, claimed: ClaimedTask) -> Result<RunningTask, TaskResumeError> {
        let owned = (&claimed.lease.task, &claimed.owner);
        let journal = self.open(owned, TaskPart::Journal, claimed.journal);
        let snapshot = journal.as_deref().and_then(Snapshot::decode).map(|it| it.1);
        let snapshot = snapshot.filter(|snapshot| snapshot.flow() == claimed.flow);
        let call = self.open(owned, TaskPart::Call, claimed.call);
        let call: Option<Result<StoredCall<'_>, _>> = call.as_deref().map(serde_json::from_slice);
        // The handler of a live call was in the memory of an instance that lost the lease.
        if let Some(Ok(StoredCall { live: true, .. })) = call {
            return Err(TaskResumeError::Failed(outcome_unknown()));
        }
        let last_error = claimed.last_error.as_deref();
        if claimed.left.is_zero() {
            let open: Vec<&str> = snapshot.iter().flat_map(Snapshot::open_keys).collect();
            return Err(TaskResumeError::Failed(expired(
                claimed.ttl,
                &open,
                last_error,
            )));
        }
        if claimed.attempt > self.options.attempts {
            return Err(TaskResumeError::Failed(too_many_attempts(
                claimed.attempt - 1,
                last_error,
            )));
        }
        let name = self.namespace.tool_of(&claimed.tool).unwrap_or_default();
        let tool = self.catalog.entries().tools.get(name).cloned();
        let tool = tool.ok_or(TaskResumeError::Tool)?;
        let (Some(snapshot), Some(call)) = (snapshot, call) else {
            return Err(TaskResumeError::Sealed);
        };
        let call = call.map_err(|_| TaskResumeError::Call)?;
        let answers = self.open_answers(owned, claimed.answers)?;
        let arguments = call.arguments.as_deref();
        let arguments = arguments.map_or(Ok(json!({})), |raw| parse_value(raw.get()));
        let arguments = arguments.map_err(|_| TaskResumeError::Arguments)?;
        let mut start = Start::task(snapshot, &answers);
        let now = self.services.source.unix_seconds();
        start.extend_deadline(now.saturating_add(claimed.left.as_secs()));
        let span = open_span(&claimed.lease.task, name, &mut start);
        let spec = FlowSpec {
            target: Target::Tool(tool.clone()),
            name: Cow::Borrowed(name),
            principal: claimed.owner.clone(),
            address: claimed.account.account_address(),
            capabilities: call.capabilities,
            extensions: call.extensions.map(|raw| raw.get().into()),
            meta: call.meta.map(|raw| raw.get().into()),
            notes: Subscribed::default(),
            can_detach: true,
        };
        Ok(RunningTask {
            flow: span.in_scope(|| self.flows.start(&spec, arguments, start)),
            span,
            tool,
            owner: claimed.owner,
            slot: Some(self.leases.take_slot(&claimed.account)),
            attempt: claimed.attempt,
            deadline: Instant::now().checked_add(claimed.left),
            ttl: claimed.ttl,
            timers: TaskTimers::default(),
            is_live: false,
            _permit: None,
        })
    }

    fn open_answers(
        &self,
        owned: (&TaskId, &Principal),
        stored: Vec<(String, Vec<u8>)>,
    ) -> Result<Vec<(String, String)>, TaskResumeError> {
        let open = |(key, stored): (String, Vec<u8>)| {
            let opened = self.open(owned, TaskPart::Answer(&key), stored);
            let answer = opened.and_then(|opened| String::from_utf8(opened).ok());
            Ok((key, answer.ok_or(TaskResumeError::Answer)?))
        };
        stored.into_iter().map(open).collect()
    }
}

/// Opens the span of a resumed task, with a link to the call that created the task.
fn open_span(task: &TaskId, tool: &str, start: &mut Start) -> Span {
    let flow = start.flow();
    let trace = start.trace();
    let created_by = (!trace.is_generated()).then(|| trace.parent());
    let span = open_task(task, tool, flow, created_by);
    if let Some(exported) = otel::context(&span).and_then(|context| context.parent) {
        trace.set_exported(exported);
    }
    span
}
