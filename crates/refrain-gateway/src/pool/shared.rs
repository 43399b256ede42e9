//! Connections to HTTP servers, each shared by the concurrent calls of one owner.

use super::{
    AcquireError, CallEnd, ConnectionGuard, ConnectionKey, ConnectionPermit, HeldConnection, Pool,
};
use crate::backend::ConnectionPurpose;
use parking_lot::Mutex;
use refrain::auth::Principal;
use refrain::client::Client;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

pub(super) struct SharedConnection {
    pub(super) key: ConnectionKey,
    started: OnceCell<(Client, ConnectionPermit)>,
    state: Mutex<SharedState>,
}

struct SharedState {
    users: usize,
    idle_since: Instant,
}

impl SharedConnection {
    fn new(key: ConnectionKey) -> Self {
        Self {
            key,
            started: OnceCell::new(),
            state: Mutex::new(SharedState {
                users: 0,
                idle_since: Instant::now(),
            }),
        }
    }

    pub(super) fn client(&self) -> &Client {
        let started = self.started.get();
        &started.expect("the guard is returned after the start").0
    }

    pub(super) fn permit(&self) -> Option<&ConnectionPermit> {
        self.started.get().map(|(_, permit)| permit)
    }

    /// Since when the connection has no users. `None` while it is in use.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.users == 0).then_some(state.idle_since)
    }
}

/// The client of a connection without users. `None` if it has a user, or was never started.
pub(super) fn into_client(connection: Arc<SharedConnection>) -> Option<Client> {
    let (client, _permit) = Arc::into_inner(connection)?.started.into_inner()?;
    Some(client)
}

impl Pool {
    /// Waits for the shared connection with this key. If it must be started, it counts for the account.
    pub(super) async fn acquire_shared(
        self: &Arc<Self>,
        key: ConnectionKey,
        account: &Principal,
    ) -> Result<ConnectionGuard, AcquireError> {
        let connection = self.find_or_add_shared(key);
        let guard = ConnectionGuard::new(self.clone(), HeldConnection::Shared(connection.clone()));
        let key = &connection.key;
        let started = connection.started.get_or_try_init(async || {
            let permit = self.retry(account, || self.acquire_permit(account)).await?;
            let client = self
                .connector
                .connect(key.support, ConnectionPurpose::Calls)
                .await?;
            Ok::<_, AcquireError>((client, permit))
        });
        started.await?;
        Ok(guard)
    }

    /// The connection with this key, with one more user.
    fn find_or_add_shared(&self, key: ConnectionKey) -> Arc<SharedConnection> {
        let mut state = self.state.lock();
        let found = state.shared.iter().find(|shared| shared.key == key);
        let connection = match found {
            Some(found) => found.clone(),
            None => {
                let new = Arc::new(SharedConnection::new(key));
                state.shared.push(new.clone());
                new
            }
        };
        connection.state.lock().users += 1;
        connection
    }

    /// Ends one use. Removes a connection that could not be started, and a broken one unless the backend keeps state.
    pub(super) fn release_shared(&self, connection: &Arc<SharedConnection>, end: CallEnd) {
        let mut state = self.state.lock();
        let mut shared = connection.state.lock();
        shared.users -= 1;
        shared.idle_since = Instant::now();
        let could_not_start = shared.users == 0 && connection.started.get().is_none();
        drop(shared);
        let is_useless = end == CallEnd::Broken && !self.keeps_state();
        if could_not_start || is_useless {
            state
                .shared
                .retain(|shared| !Arc::ptr_eq(shared, connection));
        }
    }

    /// Closes shared connections that were idle for this time.
    pub(super) fn close_idle_shared(&self, idle: Duration) {
        let is_expired = |shared: &mut Arc<SharedConnection>| {
            let since = shared.idle_since();
            since.is_some_and(|since| since.elapsed() >= idle)
        };
        let expired: Vec<_> = self
            .state
            .lock()
            .shared
            .extract_if(.., is_expired)
            .collect();
        expired
            .into_iter()
            .for_each(|shared| self.close_shared(shared));
    }

    pub(super) fn close_shared(&self, connection: Arc<SharedConnection>) {
        if let Some(client) = into_client(connection) {
            self.limits.close(client, None);
        }
    }
}
