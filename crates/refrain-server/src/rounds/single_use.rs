//! Rounds that run at most once.
//!
//! Such a round is claimed in the replay log before it runs. Its reply is recorded there for repeated requests.

use crate::live::{FirstRequest, LiveCalls};
use crate::services::Services;
use refrain_core::{
    Flow, LogError, LogKey, Principal, RecordState, ReplayLog, Retention, limited_event,
};
use refrain_wire::ratified::record_reply;
use refrain_wire::{ErrorCode, Reply, RpcError};
use serde_json::value::RawValue;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The state of the round in the log and, for a live call, the guard that makes repeated requests wait.
pub(super) type ClaimResult = (RecordState, Option<FirstRequest>);
type ClaimFuture = Pin<Box<dyn Future<Output = Result<ClaimResult, LogError>> + Send>>;

/// The record of a round in the replay log.
#[derive(Clone)]
pub(crate) struct ReplayRecord {
    log: Arc<dyn ReplayLog>,
    key: LogKey,
    /// The account whose quota the record counts for.
    account: Principal,
}

impl ReplayRecord {
    pub(super) fn new(log: &Arc<dyn ReplayLog>, key: LogKey, account: Principal) -> Self {
        let log = log.clone();
        Self { log, key, account }
    }

    async fn begin(&self, retention: Retention) -> Result<RecordState, LogError> {
        self.log.begin(&self.key, &self.account, retention).await
    }

    /// Records the reply. If the round does not count as run, deletes the claim instead, so that the client can repeat it.
    pub(crate) fn write(
        self,
        reply: &Reply,
        server_info: &RawValue,
    ) -> impl Future<Output = ()> + Send + use<> {
        let recorded = counts_as_run(reply).then(|| record_reply(reply, server_info));
        async move {
            let Some(recorded) = recorded else {
                return self.delete().await;
            };
            if let Err(error) = self.log.finish(&self.key, &recorded).await {
                limited_event!(ERROR, %error, "failed to record reply");
            }
        }
    }

    /// Deletes, in the background, the claim of a round that did not run.
    pub(super) fn spawn_delete(self) -> JoinHandle<()> {
        tokio::spawn(async move { self.delete().await })
    }

    async fn delete(&self) {
        if let Err(error) = self.log.forget(&self.key).await {
            limited_event!(ERROR, %error, "failed to delete claim");
        }
    }
}

/// Deletes, in the background, the `once` records of an ended call that no request can repeat.
pub(crate) fn delete_once_records(services: &Services, flow: &Flow) {
    let keys = flow.deletable_records();
    let Some(log) = services.replay_log.clone().filter(|_| !keys.is_empty()) else {
        return;
    };
    tokio::spawn(async move {
        for key in keys {
            if let Err(error) = log.forget(&key).await {
                limited_event!(WARN, %error, "failed to delete record of once");
            }
        }
    });
}

/// A claim of a round in the replay log. If it is dropped while pending, the claim is deleted in the background.
pub(super) struct ReplayClaim {
    record: ReplayRecord,
    future: ClaimFuture,
    is_done: bool,
}

impl ReplayClaim {
    pub(super) fn new(record: &ReplayRecord, retention: Retention) -> Self {
        let begun = record.clone();
        let future = async move { Ok((begun.begin(retention).await?, None)) };
        Self::from_future(record, Box::pin(future))
    }

    /// Claims the first round of a live call.
    pub(super) fn for_live(
        calls: &Arc<LiveCalls>,
        record: &ReplayRecord,
        retention: Retention,
    ) -> Self {
        let calls = calls.clone();
        let begun = record.clone();
        let future = async move {
            let flow = begun.key.flow();
            let mut first = FirstRequest::new(&calls, flow);
            let mut recorded = begun.begin(retention).await?;
            if recorded == RecordState::Begun {
                if !first.wait_for_others().await {
                    return Ok((recorded, None));
                }
                // By now the other request parked the call or deleted its claim.
                first = FirstRequest::new(&calls, flow);
                recorded = begun.begin(retention).await?;
            }
            Ok((recorded, Some(first)))
        };
        Self::from_future(record, Box::pin(future))
    }

    fn from_future(record: &ReplayRecord, future: ClaimFuture) -> Self {
        Self {
            record: record.clone(),
            future,
            is_done: false,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ClaimResult, LogError>> {
        let claimed = self.future.as_mut().poll(cx);
        self.is_done = claimed.is_ready();
        claimed
    }
}

impl Drop for ReplayClaim {
    fn drop(&mut self) {
        if !self.is_done
            && let Ok(runtime) = Handle::try_current()
        {
            let future = std::mem::replace(&mut self.future, Box::pin(pending()));
            let record = self.record.clone();
            runtime.spawn(async move {
                // A claim that is not fresh belongs to another request.
                if let Ok((RecordState::Fresh, _first)) = future.await {
                    record.delete().await;
                }
            });
        }
    }
}

/// Whether the round counts as run. It does not if the client lacks a capability or the handler reports a busy resource.
pub(crate) fn counts_as_run(reply: &Reply) -> bool {
    match reply {
        Reply::Error(error) => error.code != ErrorCode::MissingCapability,
        Reply::Busy { .. } => false,
        _ => true,
    }
}

/// The error for a token that another request has used.
pub(super) fn already_used() -> RpcError {
    RpcError::invalid_params(
        "this requestState can be used only once, and another request is using it or was interrupted",
    )
}
