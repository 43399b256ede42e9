//! The connections of a store.
//!
//! sqlx has a pool of its own, but that one asks the server after every use whether the connection is still one: twice the
//! round trips, and a task for each. Here a connection is given back only after an operation that went well, the latest is
//! used first, and only one that was idle for a while is asked.

use crate::store::StoreError;
use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, Executor};
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// How long to wait for a connection.
pub(super) const WAIT: Duration = Duration::from_secs(5);
/// One that was idle for longer is tried before it is used.
const FRESH: Duration = Duration::from_secs(1);
/// One that was idle for longer is closed.
const STALE: Duration = Duration::from_secs(600);

pub(super) struct Connections {
    options: PgConnectOptions,
    places: Semaphore,
    /// Those that nobody uses, and since when. The latest is the last.
    idle: Mutex<Vec<(PgConnection, Instant)>>,
}

impl Connections {
    /// So many at most.
    pub(super) fn new(options: PgConnectOptions, most: usize) -> Self {
        Self {
            options,
            places: Semaphore::new(most),
            idle: Mutex::default(),
        }
    }

    /// Runs one operation. Its connection is used again if it succeeds, else closed: the state is unknown then.
    pub(super) async fn run<T, E>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, StoreError>
    where
        StoreError: From<E>,
    {
        let mut connection = self.borrow().await?;
        let done = work(&mut connection).await?;
        connection.done();
        Ok(done)
    }

    /// A connection for one operation.
    pub(super) async fn borrow(&self) -> Result<Borrowed<'_>, StoreError> {
        let busy = "all connections are in use";
        let place = soon(busy, async { Ok(self.places.acquire().await) }).await?;
        let place = place.map_err(|error| StoreError::Unavailable(error.into()))?;
        let connection = match self.take_idle().await {
            Some(connection) => connection,
            None => soon("timeout while connecting to the database", self.connect()).await?,
        };
        Ok(Borrowed {
            connection,
            home: self,
            _place: place,
        })
    }

    async fn take_idle(&self) -> Option<PgConnection> {
        let (mut connection, since) = self.idle.lock().pop()?;
        if since.elapsed() < FRESH {
            return Some(connection);
        }
        let alive = soon("no response to a ping", async {
            Ok(connection.ping().await?)
        })
        .await;
        if alive.is_err() {
            // What ended this one has ended those that were idle for longer, too.
            self.idle.lock().clear();
            return None;
        }
        Some(connection)
    }

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        let mut connection = PgConnection::connect_with(&self.options).await?;
        // The server gives up before we do.
        connection.execute("SET statement_timeout = '10s'").await?;
        Ok(connection)
    }

    fn give_back(&self, connection: PgConnection) {
        let mut idle = self.idle.lock();
        idle.retain(|(_, since)| since.elapsed() < STALE);
        idle.push((connection, Instant::now()));
    }
}

/// Does something within [`WAIT`].
async fn soon<T>(
    what: &str,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let done = tokio::time::timeout(WAIT, work).await;
    done.unwrap_or_else(|_| Err(StoreError::Unavailable(what.into())))
}

/// A connection in use. One that is not said to be [`done`](Self::done) is in an unknown state, and closed.
pub(super) struct Borrowed<'a> {
    connection: PgConnection,
    home: &'a Connections,
    _place: SemaphorePermit<'a>,
}

impl Borrowed<'_> {
    /// The operation went well: others may use it.
    pub(super) fn done(self) {
        self.home.give_back(self.connection);
    }
}

impl Deref for Borrowed<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Borrowed<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}
