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
    pub(super) fn take_exited(&mut self) -> Vec<ExclusiveConnection> {
        self.spare.retain(|spare| !spare.client.has_exited());
        let has_exited = |idle: &mut ExclusiveConnection| idle.client.has_exited();
        self.idle.extract_if(.., has_exited).collect()
    }

    /// The connections that may be closed, of this account or of any, and since when they are idle.
    pub(super) fn evictable(
        &self,
        keeps_state: bool,
        account: Option<&Principal>,
    ) -> impl Iterator<Item = (Instant, IdlePosition)> {
        let may_close = move |permit: &ConnectionPermit| {
            !keeps_state && account.is_none_or(|account| permit.is_of(account))
        };
        let idle = self.idle.iter().enumerate();
        let idle = idle
            .filter(move |(_, idle)| may_close(&idle.permit))
            .map(|(index, idle)| (idle.idle_since, IdlePosition::Exclusive(index)));
        let spare = self.spare.iter().enumerate();
        let spare = spare.filter(move |_| account.is_none());
        let spare = spare.map(|(index, spare)| (spare.started, IdlePosition::Spare(index)));
        let shared = self.shared.iter().enumerate();
        let shared = shared
            .filter(move |(_, shared)| shared.permit().is_some_and(may_close))
            .filter_map(|(index, shared)| {
                Some((shared.idle_since()?, IdlePosition::Shared(index)))
            });
        idle.chain(spare).chain(shared)
    }
}

/// The position of a connection without a call.
pub(super) enum IdlePosition {
    Exclusive(usize),
    Spare(usize),
    Shared(usize),
}
