//! Tokens that are too large to send: the store keeps the token, and the client gets a reference to it.
//!
//! The stored token is sealed and bound to its caller and call like any other. The reference alone grants no access.

use super::Tasks;
use super::request::STORE_UNAVAILABLE;
use crate::auth::Caller;
use crate::dispatch::Dispatch;
use crate::limits::LimitKey;
use refrain_core::{Binding, SealError, Snapshot, limited_event};
use refrain_store::{StoreError, TaskId};
use refrain_wire::{Call, RpcError};
use std::future::Future;
use std::pin::Pin;

/// No token starts like this: the dot is not in the base64url alphabet.
const REFERENCE_PREFIX: &str = "s.";

pub(crate) type TokenFuture = Pin<Box<dyn Future<Output = Result<String, Dispatch>> + Send>>;

impl Tasks {
    /// Writes the token of a flow to the store and returns the reference. Fails if the token exceeds the store's limit too.
    pub(crate) fn spill(
        &self,
        (binding, caller): (&Binding, &LimitKey),
        snapshot: &Snapshot,
        version: &str,
    ) -> Result<impl Future<Output = Result<String, StoreError>> + Send + use<>, SealError> {
        let sealer = &self.services.sealer;
        let token = sealer.seal_up_to(binding, snapshot, version, self.options.journal)?;
        let id = TaskId::new(self.services.random()).to_string();
        let keep = sealer.options().ttl + sealer.options().skew;
        let (store, queue) = (self.store.clone(), self.queue.clone());
        let caller = caller.clone();
        Ok(async move {
            let token = token.into_bytes();
            let account = caller.account();
            let _permit = queue.acquire(caller).await;
            store.spill(&id, &account, token, keep).await?;
            Ok(format!("{REFERENCE_PREFIX}{id}"))
        })
    }

    /// Reads the token of a call from the store. The read counts as a call in flight. `None` if
    /// the call contains no reference.
    pub(crate) fn fetch(&self, call: &Call<'_>, caller: &Caller) -> Option<TokenFuture> {
        let id = call.state.as_deref()?.strip_prefix(REFERENCE_PREFIX)?;
        let id = TaskId::parse(id)?.to_string();
        let (store, queue) = (self.store.clone(), self.queue.clone());
        let caller = caller.limit_key();
        let permit = self.services.limits.calls.acquire(caller.clone());
        Some(Box::pin(async move {
            let _call_permit = permit.map_err(|reached| Dispatch::Busy(reached.into()))?;
            let _permit = queue.acquire(caller).await;
            let found = store.spilled(&id).await.map_err(|error| {
                limited_event!(ERROR, %error, "failed to read stored token");
                RpcError::internal(STORE_UNAVAILABLE)
            })?;
            let token = found.and_then(|token| String::from_utf8(token).ok());
            // A missing token is rejected like any other invalid token.
            Ok(token.unwrap_or_default())
        }))
    }
}
