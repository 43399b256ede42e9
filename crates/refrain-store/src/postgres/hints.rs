//! Hints between the instances of a fleet.
//!
//! Postgres serializes the commits of transactions that notify, each with its wait for the disk. So frequent writes do not
//! notify. Their hints are sent afterwards, in batches, by a statement that writes nothing and needs no disk. Listeners of
//! the same instance receive them at once. Hints are lost while there is no connection.

use super::connections::{ACQUIRE_TIMEOUT, Connections};
use super::hosts::Hosts;
use crate::sql::{TIMEOUT, run};
use crate::store::StoreError;
use crate::task::{Hint, TaskId};
use refrain_core::{Source, SystemSource};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, Executor};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tokio::task::AbortHandle;

const CHANNEL: &str = "refrain";
const NOTIFY: &str = "SELECT pg_notify($1, hint) FROM unnest($2::text[]) AS hint";

/// The minimum time between two batches of hints.
const BATCH_DELAY: Duration = Duration::from_millis(5);
/// How long a listener waits before it reconnects.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// The idle time after which a listener tests its connection. It is shorter than [`TIMEOUT`], so that the timer of an
/// operation is never the earliest one: setting the earliest timer wakes the runtime's I/O thread.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Sends hints to the listeners of this instance and to other instances. When it is dropped, queued hints are still sent.
pub(super) struct Notifier {
    local: broadcast::Sender<Hint>,
    remote: mpsc::Sender<String>,
    codec: Codec,
}

impl Notifier {
    pub(super) fn start(connections: Connections, local: broadcast::Sender<Hint>) -> Self {
        let (remote, hints) = mpsc::channel(crate::HINT_CAPACITY);
        tokio::spawn(notify(connections, hints));
        let codec = Codec::new();
        Self {
            local,
            remote,
            codec,
        }
    }

    pub(super) fn send(&self, hint: Hint) {
        // Both may fail: the queue is full, or there is no local listener.
        let _ = self.remote.try_send(self.codec.encode(&hint));
        let _ = self.local.send(hint);
    }

    /// Receives the hints of other instances until it is aborted.
    pub(super) async fn listen(&self, hosts: Hosts) -> Result<AbortHandle, StoreError> {
        let first = connect_listener(&hosts).await?;
        let (codec, hints) = (self.codec.clone(), self.local.clone());
        let listening = async move {
            let mut connected = Ok(first);
            loop {
                match connected {
                    Ok(mut listener) => {
                        let error = receive(&mut listener, &codec, &hints).await;
                        tracing::warn!(%error, "LISTEN connection lost, reconnecting");
                    }
                    Err(error) => tracing::debug!(%error, "failed to open the LISTEN connection"),
                }
                tokio::time::sleep(RECONNECT_DELAY).await;
                connected = connect_listener(&hosts).await;
            }
        };
        Ok(tokio::spawn(listening).abort_handle())
    }
}

async fn notify(connections: Connections, mut queue: mpsc::Receiver<String>) {
    let mut hints = Vec::new();
    while queue.recv_many(&mut hints, crate::HINT_CAPACITY).await > 0 {
        let notify = sqlx::query(NOTIFY).bind(CHANNEL).bind(&hints);
        let notify = connections.run(async |connection| Ok(notify.execute(connection).await?));
        if let Err::<_, StoreError>(error) = run(notify).await {
            tracing::debug!(%error, "failed to send hints");
        }
        hints.clear();
        tokio::time::sleep(BATCH_DELAY).await;
    }
}

async fn connect_listener(hosts: &Hosts) -> Result<PgListener, StoreError> {
    let (connection, options) = hosts.connect().await?;
    connection.close().await?;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_lazy_with(options.clone());
    let listener = PgListener::connect_with(&pool).await;
    let mut listener = listener.map_err(listener_error)?;
    listener.listen(CHANNEL).await.map_err(listener_error)?;
    Ok(listener)
}

/// The pool of a listener retries until [`ACQUIRE_TIMEOUT`] while the server rejects connections.
fn listener_error(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::PoolTimedOut => StoreError::Unavailable(
            format!("no connection to the database within {ACQUIRE_TIMEOUT:?}").into(),
        ),
        error => error.into(),
    }
}

/// Forwards hints until the connection is lost.
async fn receive(
    listener: &mut PgListener,
    codec: &Codec,
    hints: &broadcast::Sender<Hint>,
) -> StoreError {
    loop {
        match tokio::time::timeout(IDLE_LIMIT, listener.try_recv()).await {
            Ok(Ok(Some(received))) => {
                if let Some(hint) = codec.decode(received.payload()) {
                    // Fails if there is no listener.
                    let _ = hints.send(hint);
                }
            }
            // The connection was lost and restored.
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return listener_error(error),
            Err(_) => match tokio::time::timeout(TIMEOUT, listener.execute("SELECT 1")).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return listener_error(error),
                Err(_) => return StoreError::timed_out(TIMEOUT),
            },
        }
    }
}

/// Encodes a hint as `+` (due) or `-` (not due), `w` (written by the task's worker) or `o` (other), and the task id. A
/// [`Notifier`] appends a space and its random name, and ignores hints with that name.
#[derive(Clone)]
struct Codec {
    name: Arc<str>,
}

impl Codec {
    fn new() -> Self {
        let mut random = [0; 8];
        SystemSource::new().fill(&mut random);
        let name = format!("{:016x}", u64::from_le_bytes(random));
        Self { name: name.into() }
    }

    fn encode(&self, hint: &Hint) -> String {
        let due = if hint.due { '+' } else { '-' };
        let own = if hint.own { 'w' } else { 'o' };
        format!("{due}{own}{} {}", hint.task, self.name)
    }

    /// Decodes a hint. `None`: it is malformed, or from this instance.
    fn decode(&self, text: &str) -> Option<Hint> {
        let (kind, id) = text.split_at_checked(2)?;
        let (due, own) = match kind {
            "+w" => (true, true),
            "+o" => (true, false),
            "-w" => (false, true),
            "-o" => (false, false),
            _ => return None,
        };
        let (id, sender) = id.split_once(' ').unwrap_or((id, ""));
        let task = TaskId::parse(id)?;
        (sender != &*self.name).then_some(Hint { task, due, own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::postgres::PgConnectOptions;

    #[test]
    fn hints_of_the_same_instance_are_ignored() {
        let (here, elsewhere) = (Codec::new(), Codec::new());
        for (due, own) in [(true, true), (true, false), (false, true), (false, false)] {
            let task = TaskId::new([7; 24]);
            let hint = Hint { task, due, own };
            let text = here.encode(&hint);
            assert_eq!(here.decode(&text), None);
            assert_eq!(elsewhere.decode(&text), Some(hint));
        }
        // Hints sent by statements have no name.
        let hint = here.decode("+w07").expect("a hint");
        assert_eq!((hint.task.as_str(), hint.due, hint.own), ("07", true, true));
        assert_eq!(here.decode("+x07"), None);
        assert_eq!(here.decode("+"), None);
    }

    #[tokio::test]
    async fn error_of_an_unreachable_database_has_the_time_limit() {
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(1);
        let pool = PgPoolOptions::new().acquire_timeout(Duration::from_millis(1));
        let listener = PgListener::connect_with(&pool.connect_lazy_with(options)).await;
        let error = listener.map_err(listener_error).expect_err("no server");
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        let text = "store unavailable: no connection to the database within 5s";
        assert_eq!(error.to_string(), text);
    }
}
