//! Rounds that run at most once: claimed in the replay log before they run, and their replies recorded for repeated
//! requests.

use crate::live::{FirstRequest, LiveCalls};
use refrain_core::{LogError, LogKey, RecordState, ReplayLog, Retention};
use refrain_wire::ratified::record_reply;
use refrain_wire::{ErrorCode, Reply, RpcError};
use serde_json::value::RawValue;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The state of the round in the log. For a call that is to be parked also the guard that makes other first requests of
/// the call wait until it is parked.
pub(super) type Claimed = (RecordState, Option<FirstRequest>);
type Claiming = Pin<Box<dyn Future<Output = Result<Claimed, LogError>> + Send>>;

/// The entry of one round in the replay log.
#[derive(Clone)]
pub(crate) struct Record {
    log: Arc<dyn ReplayLog>,
    key: LogKey,
}

impl Record {
    pub(super) fn new(log: &Arc<dyn ReplayLog>, key: LogKey) -> Self {
        let log = log.clone();
        Self { log, key }
    }

    /// Records the reply. A reply about a missing capability is not recorded: the client may repeat the round with it.
    pub(crate) fn write(
        self,
        reply: &Reply,
        server_info: &RawValue,
    ) -> impl Future<Output = ()> + Send + use<> {
        let recorded = (!lacks_capability(reply)).then(|| record_reply(reply, server_info));
        async move {
            let Some(recorded) = recorded else {
                return self.delete().await;
            };
            if let Err(error) = self.log.finish(&self.key, &recorded).await {
                tracing::error!(%error, "a reply could not be recorded");
            }
        }
    }

    /// Deletes the claim of a round that did not run, whether the result is awaited or not.
    pub(super) fn forget(self) -> JoinHandle<()> {
        tokio::spawn(async move { self.delete().await })
    }

    async fn delete(&self) {
        if let Err(error) = self.log.forget(&self.key).await {
            tracing::error!(%error, "a beginning could not be taken back");
        }
    }
}

/// Claims a round in the replay log. A claim that is dropped before its result is known is deleted when it is.
pub(super) struct Claim {
    record: Record,
    claiming: Claiming,
    is_known: bool,
}

impl Claim {
    pub(super) fn new(record: &Record, keep: Retention) -> Self {
        let Record { log, key } = record.clone();
        let claiming = async move { Ok((log.begin(&key, keep).await?, None)) };
        Self::of(record, Box::pin(claiming))
    }

    /// Claims the first round of a call that is to be parked here.
    pub(super) fn parking(calls: &Arc<LiveCalls>, record: &Record, keep: Retention) -> Self {
        let calls = calls.clone();
        let Record { log, key } = record.clone();
        let claiming = async move {
            let mut first = FirstRequest::new(&calls, key.flow());
            let mut recorded = log.begin(&key, keep).await?;
            if recorded == RecordState::Begun {
                if !first.leave_to_others().await {
                    return Ok((recorded, None));
                }
                // Another request has parked the call by now, or has deleted its claim.
                first = FirstRequest::new(&calls, key.flow());
                recorded = log.begin(&key, keep).await?;
            }
            Ok((recorded, Some(first)))
        };
        Self::of(record, Box::pin(claiming))
    }

    fn of(record: &Record, claiming: Claiming) -> Self {
        Self {
            record: record.clone(),
            claiming,
            is_known: false,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Claimed, LogError>> {
        let claimed = self.claiming.as_mut().poll(cx);
        self.is_known = claimed.is_ready();
        claimed
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_known
            && let Ok(runtime) = Handle::try_current()
        {
            let claiming = std::mem::replace(&mut self.claiming, Box::pin(pending()));
            let record = self.record.clone();
            runtime.spawn(async move {
                // The claim of another request is not touched.
                if let Ok((RecordState::Fresh, _first)) = claiming.await {
                    record.delete().await;
                }
            });
        }
    }
}

/// Is this the reply for a client that lacks a capability? The round counts as not run.
pub(crate) fn lacks_capability(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(error) if error.code == ErrorCode::MissingCapability)
}

pub(super) fn already_used() -> RpcError {
    RpcError::invalid_params(
        "this requestState is being used or its use was interrupted; it may be used only once",
    )
}
