//! The connection of one call, which returns to the pool when the call ends.

use super::Pool;
use super::shared::SharedConnection;
use super::state::ExclusiveConnection;
use refrain::client::Client;
use std::sync::Arc;

/// A connection in use by a call. Without [`finish`](Self::finish) or [`set_end`](Self::set_end),
/// dropping it means that the call was abandoned.
pub(crate) struct ConnectionGuard {
    pool: Arc<Pool>,
    held: Option<HeldConnection>,
    end: CallEnd,
}

/// How the call that used a connection ended. It decides whether the connection can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The call was abandoned: it may still run at the backend.
    Abandoned,
    /// The connection has no request in flight.
    Finished,
    /// The connection failed.
    Broken,
}

pub(super) enum HeldConnection {
    Exclusive(ExclusiveConnection),
    Shared(Arc<SharedConnection>),
}

impl ConnectionGuard {
    pub(super) fn new(pool: Arc<Pool>, held: HeldConnection) -> Self {
        Self {
            pool,
            held: Some(held),
            end: CallEnd::Abandoned,
        }
    }

    pub(crate) fn client(&self) -> &Client {
        match &self.held {
            Some(HeldConnection::Exclusive(connection)) => &connection.client,
            Some(HeldConnection::Shared(connection)) => connection.client(),
            None => unreachable!("only drop takes the connection"),
        }
    }

    /// Returns the connection after a completed call.
    pub(crate) fn finish(mut self) {
        self.end = CallEnd::Finished;
    }

    /// Sets how the call counts as ended if the guard is dropped now.
    pub(crate) fn set_end(&mut self, end: CallEnd) {
        self.end = end;
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.pool.release(held, self.end);
        }
    }
}
