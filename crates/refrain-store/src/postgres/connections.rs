//! A connection pool.
//!
//! The pool of sqlx tests a connection after every use, which doubles the round trips and spawns
//! Tokio tasks. This pool keeps a connection only after a successful operation, prefers the one
//! used last, and tests only those idle for a while.

use super::hosts::Hosts;
use crate::store::StoreError;
use parking_lot::Mutex;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The time limit of each part of acquiring a connection: waiting for a permit, testing an idle connection, connecting.
pub(super) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is tested before use.
const MAX_UNTESTED_IDLE: Duration = Duration::from_secs(1);
/// A connection that was idle for longer is closed when another one is returned to the pool.
const MAX_IDLE: Duration = Duration::from_secs(600);

pub(super) struct Connections {
    hosts: Hosts,
    permits: Semaphore,
    /// Idle connections, the latest last.
    idle: Mutex<Vec<(PgConnection, Instant)>>,
}

impl Connections {
    pub(super) fn new(hosts: Hosts, most: usize) -> Self {
        Self {
            hosts,
            permits: Semaphore::new(most),
            idle: Mutex::default(),
        }
    }

    /// Runs one operation. If it fails, the state of its connection is unknown, and the connection is closed. So are the idle
    /// ones, since the server may have stopped or become read-only.
    pub(super) async fn run<T, E: From<StoreError>>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        let (mut connection, _permit) = self.acquire().await?;
        let done = work(&mut connection).await;
        self.release(done.is_ok().then_some(connection));
        done
    }

    async fn acquire(&self) -> Result<(PgConnection, SemaphorePermit<'_>), StoreError> {
        let permit = async { Ok(self.permits.acquire().await) };
        let permit = within_limit("all connections are in use", permit).await?;
        let permit = permit.map_err(|error| StoreError::Unavailable(error.into()))?;
        let connection = match self.take_idle().await {
            Some(connection) => connection,
            None => self.hosts.connect().await?.0,
        };
        Ok((connection, permit))
    }

    async fn take_idle(&self) -> Option<PgConnection> {
        let (mut connection, since) = self.idle.lock().pop()?;
        if since.elapsed() < MAX_UNTESTED_IDLE {
            return Some(connection);
        }
        let ping = async { Ok(connection.ping().await?) };
        if within_limit("no response to a ping", ping).await.is_err() {
            // The other connections were idle for longer and are probably lost as well.
            self.idle.lock().clear();
            return None;
        }
        Some(connection)
    }

    /// Returns a connection to the pool. `None`: its operation failed.
    fn release(&self, connection: Option<PgConnection>) {
        let mut idle = self.idle.lock();
        let limit = match connection {
            Some(_) => MAX_IDLE,
            None => Duration::ZERO,
        };
        idle.retain(|(_, since)| since.elapsed() < limit);
        idle.extend(connection.map(|connection| (connection, Instant::now())));
    }
}

/// Runs an operation within [`ACQUIRE_TIMEOUT`]. After a timeout, `message` is the error.
async fn within_limit<T>(
    message: &str,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let done = tokio::time::timeout(ACQUIRE_TIMEOUT, work).await;
    done.unwrap_or_else(|_| Err(StoreError::Unavailable(message.into())))
}
