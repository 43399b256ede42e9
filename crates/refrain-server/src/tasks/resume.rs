//! A task that was claimed is taken up again, or it is said why it cannot be.

use super::Tasks;
use super::create::StoredCall;
use super::driver::Running;
use super::failures::{too_often, too_old};
use super::sealing::Part;
use crate::live::Subscribed;
use crate::rounds::{FlowSpec, Target};
use refrain_core::{Snapshot, Start};
use refrain_store::{Claimed, Commit, Next, StoreError};
use refrain_wire::parse_value;
use serde_json::json;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

impl Tasks {
    /// Takes up a task that was claimed, or says at once why it cannot go on.
    pub(super) async fn take_up(self: &Arc<Self>, claimed: Claimed, asked: Instant) {
        let (lease, revision) = (claimed.lease.clone(), claimed.revision);
        match self.resume(claimed) {
            Ok(running) => self.run_here(running, lease, revision, asked),
            Err(commit) => {
                match self.store.commit(&lease, (*commit).clone()).await {
                    Ok(_) => self.count(&commit.next),
                    Err(StoreError::Lost) => {}
                    // Another worker takes it when the lease has run out.
                    Err(error) => {
                        tracing::warn!(task = ?lease.task, %error, "a task could not be written");
                    }
                }
            }
        }
    }

    fn resume(&self, claimed: Claimed) -> Result<Running, Box<Commit>> {
        let options = &self.options;
        let id = &claimed.lease.task;
        let last = claimed.last_error.as_deref();
        let whose = (id, &claimed.owner);
        let journal = self.open(whose, Part::Journal, claimed.journal);
        let snapshot = journal.as_deref().and_then(Snapshot::decode).map(|it| it.1);
        let snapshot = snapshot.filter(|snapshot| snapshot.flow() == claimed.flow);
        if claimed.left.is_zero() {
            let open = snapshot.iter().flat_map(Snapshot::asked);
            let error = too_old(claimed.ttl, &open.collect::<Vec<_>>(), last);
            return Err(Box::new(self.fail(whose, &error)));
        }
        if claimed.attempt > options.attempts {
            return Err(Box::new(
                self.fail(whose, &too_often(claimed.attempt - 1, last)),
            ));
        }
        // Another instance may be able to: this is no attempt.
        let put_back = |reason: &str| {
            tracing::error!(task = ?id, reason, "a task cannot be taken up here");
            Box::new(Commit {
                next: Next::SetDown(Some(options.retry_at_most)),
                ..Commit::default()
            })
        };
        // Nobody here knows the tool; claims ask only for those that are known, so it has just been removed.
        let name = self.namespace.tool_of(&claimed.tool).unwrap_or_default();
        let Some(tool) = self.catalog.entries().tools.get(name).cloned() else {
            return Err(put_back("no instance has the tool"));
        };
        let call = self.open(whose, Part::Call, claimed.call);
        let (Some(snapshot), Some(call)) = (snapshot, call) else {
            return Err(put_back(
                "what the task holds does not open; were the keys changed?",
            ));
        };
        let Ok(call) = serde_json::from_slice::<StoredCall<'_>>(&call) else {
            return Err(put_back(
                "the call was kept in a form that is not known here",
            ));
        };
        let mut answers = Vec::new();
        for (key, stored) in claimed.answers {
            let opened = self.open(whose, Part::Answer(&key), stored);
            let answer = opened.and_then(|opened| String::from_utf8(opened).ok());
            let Some(answer) = answer else {
                return Err(put_back("an answer does not open; were the keys changed?"));
            };
            answers.push((key, answer));
        }
        let arguments = call.arguments.as_deref();
        let arguments = arguments.map_or(Ok(json!({})), |raw| parse_value(raw.get()));
        let Ok(arguments) = arguments else {
            return Err(put_back(
                "the arguments were kept in a form that is not known here",
            ));
        };
        let mut start = Start::task(snapshot, &answers);
        let now = self.services.source.unix_seconds();
        start.live_until(now.saturating_add(claimed.left.as_secs()));
        self.flows.observe(&tracing::Span::current(), start.trace());
        let spec = FlowSpec {
            target: Target::Tool(tool.clone()),
            name: Cow::Borrowed(name),
            arguments,
            principal: claimed.owner.clone(),
            capabilities: call.capabilities.into(),
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
            _permit: None,
        })
    }
}
