//! Tokens that are too large to travel: they are put into the store, and a reference travels instead.
//!
//! The stored token is sealed and bound to its caller and call as ever. The reference alone gives access to nothing.

use super::Tasks;
use super::request::UNREACHABLE;
use refrain_core::{Binding, SealError, Snapshot};
use refrain_store::{StoreError, TaskId};
use refrain_wire::{Call, RpcError};
use std::future::Future;
use std::pin::Pin;

/// Starts a reference. No token starts like this: the dot is not in its alphabet.
const PREFIX: &str = "s.";

pub(crate) type Fetching = Pin<Box<dyn Future<Output = Result<String, RpcError>> + Send>>;

impl Tasks {
    /// Puts the token of a flow into the store. The future returns the reference. Fails if the token is too large for the
    /// store as well.
    pub(crate) fn spill(
        &self,
        binding: &Binding,
        snapshot: &Snapshot,
        version: &str,
    ) -> Result<impl Future<Output = Result<String, StoreError>> + Send + use<>, SealError> {
        let sealer = &self.services.sealer;
        let token = sealer.seal_up_to(binding, snapshot, version, self.options.journal)?;
        let id = TaskId::new(self.services.random()).to_string();
        let keep = sealer.options().ttl + sealer.options().skew;
        let store = self.store.clone();
        Ok(async move {
            store.spill(&id, token.into_bytes(), keep).await?;
            Ok(format!("{PREFIX}{id}"))
        })
    }

    /// Starts to read the token of a call from the store, if the call has a reference instead of a token.
    pub(crate) fn fetch(&self, call: &Call<'_>) -> Option<Fetching> {
        let id = call.state.as_deref()?.strip_prefix(PREFIX)?;
        let id = TaskId::parse(id)?.to_string();
        let store = self.store.clone();
        Some(Box::pin(async move {
            let found = store.spilled(&id).await.map_err(|error| {
                tracing::error!(%error, "failed to read a token");
                RpcError::internal(UNREACHABLE)
            })?;
            let token = found.and_then(|token| String::from_utf8(token).ok());
            // A token that is gone is rejected like any other that does not open.
            Ok(token.unwrap_or_default())
        }))
    }
}
