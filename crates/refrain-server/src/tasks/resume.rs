//! A claimed task becomes a flow again, or is put back or failed.

use super::Tasks;
use super::commit::only;
use super::create::StoredCall;
use super::driver::{Clocks, Running};
use super::failures::{too_often, too_old};
use super::sealing::Part;
use crate::live::Subscribed;
use crate::rounds::{FlowSpec, Target};
use refrain_core::{Principal, Snapshot, Start};
use refrain_store::{ClaimedTask, Next, StoreError, TaskId};
use refrain_wire::{RpcError, parse_value};
use serde_json::json;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

/// Why a claimed task does not become a flow. Except for a task that is over, another instance may be able to run it.
#[derive(Debug, thiserror::Error)]
enum ResumeError {
    #[error("{}", .0.message)]
    Over(RpcError),
    // Claims name the registered tools, so it was removed just now.
    #[error("no instance has the tool")]
    Tool,
    #[error("what the task holds does not open; were the keys changed?")]
    Sealed,
    #[error("the call was kept in a form that is not known here")]
    Call,
    #[error("an answer does not open; were the keys changed?")]
    Answer,
    #[error("the arguments were kept in a form that is not known here")]
    Arguments,
}

impl Tasks {
    /// Runs a claimed task, or commits why it does not run here.
    pub(super) async fn take_up(self: &Arc<Self>, claimed: ClaimedTask, asked: Instant) {
        let (lease, revision) = (claimed.lease.clone(), claimed.revision);
        let owner = claimed.owner.clone();
        let commit = match self.resume(claimed) {
            Ok(running) => return self.run_here(running, lease, revision, asked),
            Err(ResumeError::Over(error)) => self.fail((&lease.task, &owner), &error),
            Err(reason) => {
                tracing::error!(task = ?lease.task, %reason, "a task cannot be taken up here");
                only(Next::Suspend(Some(self.options.retry_at_most)))
            }
        };
        match self.store.commit(&lease, commit.clone()).await {
            Ok(_) => self.count(&commit.next),
            Err(StoreError::Lost) => {}
            // Another worker claims it when the lease has expired.
            Err(error) => {
                tracing::warn!(task = ?lease.task, %error, "a task could not be written");
            }
        }
    }

    fn resume(&self, claimed: ClaimedTask) -> Result<Running, ResumeError> {
        let whose = (&claimed.lease.task, &claimed.owner);
        let journal = self.open(whose, Part::Journal, claimed.journal);
        let snapshot = journal.as_deref().and_then(Snapshot::decode).map(|it| it.1);
        let snapshot = snapshot.filter(|snapshot| snapshot.flow() == claimed.flow);
        let last = claimed.last_error.as_deref();
        if claimed.left.is_zero() {
            let open: Vec<&str> = snapshot.iter().flat_map(Snapshot::open_keys).collect();
            return Err(ResumeError::Over(too_old(claimed.ttl, &open, last)));
        }
        if claimed.attempt > self.options.attempts {
            return Err(ResumeError::Over(too_often(claimed.attempt - 1, last)));
        }
        let name = self.namespace.tool_of(&claimed.tool).unwrap_or_default();
        let tool = self.catalog.entries().tools.get(name).cloned();
        let tool = tool.ok_or(ResumeError::Tool)?;
        let call = self.open(whose, Part::Call, claimed.call);
        let (Some(snapshot), Some(call)) = (snapshot, call) else {
            return Err(ResumeError::Sealed);
        };
        let call: StoredCall<'_> = serde_json::from_slice(&call).map_err(|_| ResumeError::Call)?;
        let answers = self.open_answers(whose, claimed.answers)?;
        let arguments = call.arguments.as_deref();
        let arguments = arguments.map_or(Ok(json!({})), |raw| parse_value(raw.get()));
        let mut start = Start::task(snapshot, &answers);
        let now = self.services.source.unix_seconds();
        start.extend_deadline(now.saturating_add(claimed.left.as_secs()));
        self.flows.observe(&tracing::Span::current(), start.trace());
        let spec = FlowSpec {
            target: Target::Tool(tool.clone()),
            name: Cow::Borrowed(name),
            arguments: arguments.map_err(|_| ResumeError::Arguments)?,
            principal: claimed.owner.clone(),
            capabilities: call.capabilities,
            extensions: call.extensions,
            notes: Subscribed::default(),
            can_detach: true,
        };
        Ok(Running {
            flow: self.flows.start(spec, start),
            tool,
            owner: claimed.owner,
            attempt: claimed.attempt,
            ends: Instant::now().checked_add(claimed.left),
            ttl: claimed.ttl,
            clocks: Clocks::default(),
            _permit: None,
        })
    }

    fn open_answers(
        &self,
        whose: (&TaskId, &Principal),
        stored: Vec<(String, Vec<u8>)>,
    ) -> Result<Vec<(String, String)>, ResumeError> {
        let open = |(key, stored): (String, Vec<u8>)| {
            let opened = self.open(whose, Part::Answer(&key), stored);
            let answer = opened.and_then(|opened| String::from_utf8(opened).ok());
            Ok((key, answer.ok_or(ResumeError::Answer)?))
        };
        stored.into_iter().map(open).collect()
    }
}
