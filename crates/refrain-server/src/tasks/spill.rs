//! Tokens that are too large to travel: they wait in the store, and what travels only names them.
//!
//! What is stored is the sealed token itself, bound as ever to its caller and call. Whoever has only its name has nothing.

use crate::dispatch::Request;
use crate::server::Server;
use refrain_core::{Binding, SealError, Snapshot};
use refrain_store::{StoreError, TaskId};
use refrain_wire::RpcError;
use std::future::Future;
use std::pin::Pin;

/// No token that travels by itself begins so: the dot is no character of its alphabet.
const PREFIX: &str = "s.";

/// A token being fetched from where it waits.
pub(crate) type Fetching = Pin<Box<dyn Future<Output = Result<String, RpcError>> + Send>>;
/// A token being put where it waits; then what travels instead of it.
pub(crate) type Spilling = Pin<Box<dyn Future<Output = Result<String, StoreError>> + Send>>;

impl Server {
    /// Puts a flow into the store whose token may not travel. Without a store, or if it is too large for that as well, it
    /// is what sealing said.
    pub(crate) fn spill(
        &self,
        binding: &Binding,
        snapshot: &Snapshot,
        version: &str,
        too_large: SealError,
    ) -> Result<Spilling, SealError> {
        let Some(tasks) = &self.0.tasks else {
            return Err(too_large);
        };
        let sealer = &self.0.sealer;
        let limit = tasks.options.journal;
        let token = sealer.seal_up_to(binding, snapshot, version, limit)?;
        let mut random = [0; 24];
        self.0.source.fill(&mut random);
        let id = TaskId::new(random).to_string();
        let keep = sealer.options().ttl + sealer.options().skew;
        let store = tasks.store.clone();
        Ok(Box::pin(async move {
            store.spill(&id, token.into_bytes(), keep).await?;
            Ok(format!("{PREFIX}{id}"))
        }))
    }

    /// Begins to fetch the token of a call, if what travelled only names it.
    pub(crate) fn fetch(&self, request: &Request<'_>) -> Option<Fetching> {
        let Request::Call(call) = request else {
            return None;
        };
        let id = call.state.as_deref()?.strip_prefix(PREFIX)?;
        let id = TaskId::parse(id)?.to_string();
        let store = self.0.tasks.as_ref()?.store.clone();
        Some(Box::pin(async move {
            let found = store.spilled(&id).await.map_err(|error| {
                tracing::error!(%error, "a token could not be fetched");
                RpcError::internal("the task store cannot be reached; try again")
            })?;
            let token = found.and_then(|token| String::from_utf8(token).ok());
            // One that is not there is refused like any other that does not open.
            Ok(token.unwrap_or_default())
        }))
    }
}
