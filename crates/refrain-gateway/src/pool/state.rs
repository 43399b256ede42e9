//! The connections of a pool, and the choice of the one to close.

use super::limits::ConnectionPermit;
use super::shared::SharedConnection;
use super::{ConnectionKey, Owner};
use crate::support::AskSupport;
use refrain::auth::Principal;
use refrain::client::Client;
use std::sync::Arc;
use std::time::Instant;

#[derive(Default)]
pub(super) struct PoolState {
    /// Free exclusive connections, the least recently used first.
    pub(super) idle: Vec<ExclusiveConnection>,
    /// Prewarmed connections, which have no owner yet.
    pub(super) spare: Vec<SpareConnection>,
    /// One entry for each prewarmed connection that is being started.
    pub(super) spares_starting: Vec<AskSupport>,
    pub(super) shared: Vec<Arc<SharedConnection>>,
    /// The owners of connections that are in use or being started, one entry per connection.
    pub(super) busy: Vec<Owner>,
    pub(super) is_closed: bool,
}

/// An exclusive connection.
pub(super) struct ExclusiveConnection {
    pub(super) key: ConnectionKey,
    pub(super) client: Client,
    pub(super) calls: u64,
    pub(super) idle_since: Instant,
    pub(super) permit: ConnectionPermit,
}

pub(super) struct SpareConnection {
    pub(super) support: AskSupport,
    pub(super) client: Client,
    pub(super) started: Instant,
    pub(super) permit: ConnectionPermit,
}

impl ExclusiveConnection {
    pub(super) fn new(key: ConnectionKey, client: Client, permit: ConnectionPermit) -> Self {
        Self {
            key,
            client,
            calls: 0,
            idle_since: Instant::now(),
            permit,
        }
    }
}

impl PoolState {
    pub(super) fn free(&mut self, owner: &Owner) {
        if let Some(index) = self.busy.iter().position(|busy| busy == owner) {
            self.busy.swap_remove(index);
        }
    }

    /// Removes the free connections whose process has exited.
    pub(super) fn take_exited(&mut self) -> Vec<(Client, ConnectionPermit)> {
        let spare = self
            .spare
            .extract_if(.., |spare| spare.client.has_exited())
            .map(|spare| (spare.client, spare.permit));
        let idle = self
            .idle
            .extract_if(.., |idle| idle.client.has_exited())
            .map(|idle| (idle.client, idle.permit));
        spare.chain(idle).collect()
    }

    /// The connections that may be closed: since when they are idle, and whether they count for this account.
    pub(super) fn evictable(
        &self,
        keeps_state: bool,
        account: &Principal,
    ) -> impl Iterator<Item = (Instant, bool, IdlePosition)> {
        let idle = self.idle.iter().enumerate().map(|(index, idle)| {
            let is_own = idle.permit.is_of(account);
            (idle.idle_since, is_own, IdlePosition::Exclusive(index))
        });
        let spare = self.spare.iter().enumerate();
        let spare = spare.map(|(index, spare)| (spare.started, false, IdlePosition::Spare(index)));
        let shared = self.shared.iter().enumerate();
        let shared = shared.filter_map(|(index, shared)| {
            let is_own = shared.permit()?.is_of(account);
            Some((shared.idle_since()?, is_own, IdlePosition::Shared(index)))
        });
        let all = idle.chain(spare).chain(shared);
        all.filter(move |_| !keeps_state)
    }
}

/// The position of a connection without a call.
pub(super) enum IdlePosition {
    Exclusive(usize),
    Spare(usize),
    Shared(usize),
}
