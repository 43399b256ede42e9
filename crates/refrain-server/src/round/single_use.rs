//! Rounds that may be run once: what they reply is recorded, and given again to whoever asks again.

use super::Round;
use crate::live::Beginning;
use crate::server::Server;
use refrain_core::{Keep, LogError, LogKey, Recorded, ReplayLog};
use refrain_wire::{ErrorCode, Reply, RpcError, record_reply};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

/// What the log knows; and, where the call is to be parked, what has others of the same call wait until it is.
type Known = (Recorded, Option<Beginning>);
type Claimed = Pin<Box<dyn Future<Output = Result<Known, LogError>> + Send>>;
/// Records a reply.
pub(super) type Kept = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Asks the replay log whether a round was run before. One that is dropped before it knows is waited for all the same: what
/// it began is taken back, because nothing was run.
pub(super) struct Claim {
    log: Arc<dyn ReplayLog>,
    key: LogKey,
    claimed: Claimed,
    is_known: bool,
}

impl Claim {
    pub(super) fn new(log: &Arc<dyn ReplayLog>, key: &LogKey, keep: Keep) -> Self {
        let (begins, begun) = (log.clone(), key.clone());
        let claimed = async move { Ok((begins.begin(&begun, keep).await?, None)) };
        Self::of(log, key, Box::pin(claimed))
    }

    /// The same for a call that is to be parked here.
    pub(super) fn parking(
        server: &Server,
        log: &Arc<dyn ReplayLog>,
        key: &LogKey,
        keep: Keep,
    ) -> Self {
        let (server, begins, begun) = (server.clone(), log.clone(), key.clone());
        let claimed = async move {
            let mut beginning = Beginning::new(&server, begun.flow());
            let mut recorded = begins.begin(&begun, keep).await?;
            if recorded == Recorded::Begun {
                if !beginning.leave_to_others().await {
                    return Ok((recorded, None));
                }
                // One of them has parked it by now, or has taken its beginning back.
                beginning = Beginning::new(&server, begun.flow());
                recorded = begins.begin(&begun, keep).await?;
            }
            Ok((recorded, Some(beginning)))
        };
        Self::of(log, key, Box::pin(claimed))
    }

    fn of(log: &Arc<dyn ReplayLog>, key: &LogKey, claimed: Claimed) -> Self {
        Self {
            log: log.clone(),
            key: key.clone(),
            claimed,
            is_known: false,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Known, LogError>> {
        let claimed = self.claimed.as_mut().poll(cx);
        self.is_known = claimed.is_ready();
        claimed
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Without a runtime there is nobody left to wait.
        if !self.is_known
            && let Ok(runtime) = Handle::try_current()
        {
            let claimed = std::mem::replace(&mut self.claimed, Box::pin(pending()));
            let (log, key) = (self.log.clone(), self.key.clone());
            runtime.spawn(async move {
                // What another request began is not touched.
                if let Ok((Recorded::Fresh, _beginning)) = claimed.await {
                    forget(&*log, &key).await;
                }
            });
        }
    }
}

impl Round {
    /// Records the reply of a token that may be used once.
    pub(super) fn keep(&self, reply: &Reply) -> Option<Kept> {
        self.server.keep(self.single_use.clone()?, reply)
    }
}

impl Server {
    /// Records the reply of a round that may be run once, if there is a key for it.
    pub(crate) async fn record(&self, key: Option<LogKey>, reply: &Reply) {
        if let Some(kept) = key.and_then(|key| self.keep(key, reply)) {
            kept.await;
        }
    }

    /// The same, to be waited for.
    fn keep(&self, key: LogKey, reply: &Reply) -> Option<Kept> {
        let log = self.0.replay_log.clone()?;
        if lacks_capability(reply) {
            return Some(Box::pin(async move { forget(&*log, &key).await }));
        }
        let recorded = record_reply(reply, &self.0.info);
        Some(Box::pin(async move {
            if let Err(error) = log.finish(&key, &recorded).await {
                tracing::error!(%error, "a reply could not be recorded");
            }
        }))
    }

    /// Takes the beginning of a round back that was not run. That is done whether it is waited for or not.
    pub(super) fn take_back(&self, key: LogKey) -> Option<Kept> {
        let log = self.0.replay_log.clone()?;
        let forgetting = tokio::spawn(async move { forget(&*log, &key).await });
        Some(Box::pin(async move {
            // An error is a panic of the log, which is reported where it happens.
            let _ = forgetting.await;
        }))
    }
}

async fn forget(log: &dyn ReplayLog, key: &LogKey) {
    if let Err(error) = log.forget(key).await {
        tracing::error!(%error, "a beginning could not be taken back");
    }
}

/// Is this what a client is told that lacks a capability? It has not used the round: it may come again with one that has it.
pub(crate) fn lacks_capability(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(error) if error.code == ErrorCode::MissingCapability)
}

pub(super) fn used_up() -> RpcError {
    RpcError::invalid_params(
        "this requestState is being used or its use was interrupted; it may be used only once",
    )
}
