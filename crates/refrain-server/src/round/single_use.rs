//! Rounds that may be run once: what they reply is recorded, and given again to whoever asks again.

use super::Round;
use crate::server::Server;
use refrain_core::{LogError, LogKey, Recorded};
use refrain_wire::{ErrorCode, Reply, RpcError, record_reply};
use std::future::Future;
use std::pin::Pin;

/// Asks the replay log whether a round was run before.
pub(super) type Claimed = Pin<Box<dyn Future<Output = Result<Recorded, LogError>> + Send>>;
/// Records a reply.
pub(super) type Kept = Pin<Box<dyn Future<Output = ()> + Send>>;

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

    /// The same, to be waited for. A client that lacks a capability has not used the round: it may come again with one that
    /// has it.
    fn keep(&self, key: LogKey, reply: &Reply) -> Option<Kept> {
        let log = self.0.replay_log.clone()?;
        if let Reply::Error(RpcError {
            code: ErrorCode::MissingCapability,
            ..
        }) = reply
        {
            return Some(Box::pin(async move {
                if let Err(error) = log.forget(&key).await {
                    tracing::error!(%error, "a beginning could not be taken back");
                }
            }));
        }
        let recorded = record_reply(reply, &self.0.info);
        Some(Box::pin(async move {
            if let Err(error) = log.finish(&key, &recorded).await {
                tracing::error!(%error, "a reply could not be recorded");
            }
        }))
    }
}

pub(super) fn used_up() -> RpcError {
    RpcError::invalid_params(
        "this requestState is being used or its use was interrupted; it may be used only once",
    )
}
