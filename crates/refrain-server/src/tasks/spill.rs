//! Tokens that are too large to send: the store keeps the token, and the client gets a reference to it.
//!
//! The stored token is sealed and bound to its caller and call like any other. The reference alone grants no access.

use super::Tasks;
use super::request::STORE_UNAVAILABLE;
use crate::auth::Caller;
use crate::dispatch::Dispatch;
use crate::limits::{LARGE_WORK, LimitKey, QueuePermit};
use refrain_core::limited_event;
use refrain_store::{StoreError, TaskId};
use refrain_wire::{Call, RpcError};
use std::future::Future;
use std::pin::Pin;

/// No token starts like this: the dot is not in the base64url alphabet.
const REFERENCE_PREFIX: &str = "s.";

pub(crate) type TokenFuture = Pin<Box<dyn Future<Output = Result<StoredToken, Dispatch>> + Send>>;

/// A token from the store, and the permit to open it if it is large.
pub(crate) struct StoredToken {
    pub(crate) token: String,
    pub(crate) permit: Option<QueuePermit>,
}

impl Tasks {
    /// Checks whether the caller may store a token of this size. It is cheaper to reject the token before it is sealed.
    pub(crate) async fn check_spill(
        &self,
        size: usize,
        caller: LimitKey,
    ) -> Result<(), StoreError> {
        let account = caller.account();
        let _permit = self.queue.acquire(caller).await;
        self.store.check_quota(&account, size).await
    }

    /// Writes a token to the store and returns the reference.
    pub(crate) async fn spill(
        &self,
        token: String,
        caller: LimitKey,
    ) -> Result<String, StoreError> {
        let options = self.services.sealer.options();
        let keep = options.ttl + options.skew;
        let id = TaskId::new(self.services.random()).to_string();
        let account = caller.account();
        let _permit = self.queue.acquire(caller).await;
        let token = token.into_bytes();
        self.store.spill(&id, &account, token, keep).await?;
        Ok(format!("{REFERENCE_PREFIX}{id}"))
    }

    /// Reads the token of a call from the store. The read counts as a call in flight. `None` if
    /// the call contains no reference.
    pub(crate) fn fetch(&self, call: &Call<'_>, caller: &Caller) -> Option<TokenFuture> {
        let id = call.state.as_deref()?.strip_prefix(REFERENCE_PREFIX)?;
        let id = TaskId::parse(id)?.to_string();
        let (store, queue) = (self.store.clone(), self.queue.clone());
        let limits = self.services.limits.clone();
        let caller = caller.limit_key();
        let permit = limits.calls.acquire(caller.clone());
        Some(Box::pin(async move {
            let _call_permit = permit.map_err(|reached| Dispatch::Busy(reached.into()))?;
            // Held until the token can be opened, so that few tokens are in memory.
            let _permit = queue.acquire(caller.clone()).await;
            let found = store.spilled(&id).await.map_err(|error| {
                limited_event!(ERROR, %error, "failed to read stored token");
                RpcError::internal(STORE_UNAVAILABLE)
            })?;
            let token = found.and_then(|token| String::from_utf8(token).ok());
            // A missing token is rejected like any other invalid token.
            let token = token.unwrap_or_default();
            let permit = match token.len() > LARGE_WORK {
                true => Some(limits.large_work.acquire(caller).await),
                false => None,
            };
            Ok(StoredToken { token, permit })
        }))
    }
}
