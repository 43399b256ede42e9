//! Hints between the instances of a fleet.
//!
//! A database commits transactions that notify one at a time, each with its wait for the disk. So frequent writes do not
//! notify: their hints are sent afterwards, together with others that have gathered, by a statement that writes nothing
//! and waits for no disk. Listeners of the same instance get them at once. Hints are lost while there is no connection.

use super::connections::{Connections, WAIT};
use crate::sql::{TIMEOUT, run};
use crate::store::StoreError;
use crate::task::{Hint, TaskId};
use refrain_core::{Source, SystemSource};
use sqlx::Executor;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tokio::task::AbortHandle;

const CHANNEL: &str = "refrain";
const NOTIFY: &str = "SELECT pg_notify($1, hint) FROM unnest($2::text[]) AS hint";

/// How long hints gather for other instances after some were sent.
const GATHER: Duration = Duration::from_millis(5);
/// How long a listener waits before it connects again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a listener receives nothing before it tests its connection. It is shorter than [`TIMEOUT`]: a runtime that
/// wakes for this anyway sets no timer for the limit of each operation.
const SILENCE: Duration = Duration::from_secs(10);

/// Sends hints to the listeners of this instance and to other instances. Hints that are left when it is dropped are sent.
pub(super) struct Notifier {
    here: broadcast::Sender<Hint>,
    elsewhere: mpsc::Sender<String>,
    codec: Codec,
}

impl Notifier {
    pub(super) fn start(connections: Connections, here: broadcast::Sender<Hint>) -> Self {
        let (elsewhere, hints) = mpsc::channel(crate::HINTS);
        tokio::spawn(notify(connections, hints));
        let codec = Codec::new();
        Self {
            here,
            elsewhere,
            codec,
        }
    }

    pub(super) fn send(&self, hint: Hint) {
        // Errors mean that too many hints wait, and that there is no listener here.
        let _ = self.elsewhere.try_send(self.codec.encode(&hint));
        let _ = self.here.send(hint);
    }

    /// Receives the hints of other instances, until it is aborted.
    pub(super) async fn listen(
        &self,
        options: PgConnectOptions,
    ) -> Result<AbortHandle, StoreError> {
        let first = connect_listener(options.clone()).await?;
        let (codec, hints) = (self.codec.clone(), self.here.clone());
        let listening = async move {
            let mut connected = Ok(first);
            loop {
                match connected {
                    Ok(mut listener) => {
                        let error = receive(&mut listener, &codec, &hints).await;
                        tracing::warn!(%error, "the connection that listens for hints was lost");
                    }
                    Err(error) => tracing::debug!(%error, "no connection to listen for hints"),
                }
                tokio::time::sleep(PAUSE).await;
                connected = connect_listener(options.clone()).await;
            }
        };
        Ok(tokio::spawn(listening).abort_handle())
    }
}

async fn notify(connections: Connections, mut queue: mpsc::Receiver<String>) {
    let mut hints = Vec::new();
    while queue.recv_many(&mut hints, crate::HINTS).await > 0 {
        let notify = sqlx::query(NOTIFY).bind(CHANNEL).bind(&hints);
        let notify = connections.run(async |connection| Ok(notify.execute(connection).await?));
        if let Err::<_, StoreError>(error) = run(notify).await {
            tracing::debug!(%error, "failed to send hints");
        }
        hints.clear();
        tokio::time::sleep(GATHER).await;
    }
}

async fn connect_listener(options: PgConnectOptions) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(WAIT)
        .connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Passes on hints until the connection is lost.
async fn receive(
    listener: &mut PgListener,
    codec: &Codec,
    hints: &broadcast::Sender<Hint>,
) -> sqlx::Error {
    loop {
        match tokio::time::timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(received))) => {
                if let Some(hint) = codec.decode(received.payload()) {
                    // An error means that there is no listener.
                    let _ = hints.send(hint);
                }
            }
            // The connection was lost and restored.
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return error,
            Err(_) => match tokio::time::timeout(TIMEOUT, listener.execute("SELECT 1")).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return error,
                Err(_) => return sqlx::Error::PoolTimedOut,
            },
        }
    }
}

/// The text of a hint: `+` if the task is due or `-` if not, `w` if its worker wrote it or `o` if not, and its id. A
/// [`Notifier`] adds a space and its own random name, by which it ignores its own hints.
#[derive(Clone)]
struct Codec {
    here: Arc<str>,
}

impl Codec {
    fn new() -> Self {
        let mut random = [0; 8];
        SystemSource::new().fill(&mut random);
        let here = format!("{:016x}", u64::from_le_bytes(random));
        Self { here: here.into() }
    }

    fn encode(&self, hint: &Hint) -> String {
        let due = if hint.due { '+' } else { '-' };
        let own = if hint.own { 'w' } else { 'o' };
        format!("{due}{own}{} {}", hint.task, self.here)
    }

    /// `None` for a malformed hint, or one of this instance.
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
        (sender != &*self.here).then_some(Hint { task, due, own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_decoded_by_other_instances_only() {
        let (here, elsewhere) = (Codec::new(), Codec::new());
        for (due, own) in [(true, true), (true, false), (false, true), (false, false)] {
            let task = TaskId::new([7; 24]);
            let hint = Hint { task, due, own };
            let text = here.encode(&hint);
            assert_eq!(here.decode(&text), None);
            assert_eq!(elsewhere.decode(&text), Some(hint));
        }
        // A statement that notifies by itself adds no name.
        let hint = here.decode("+w07").expect("a hint");
        assert_eq!((hint.task.as_str(), hint.due, hint.own), ("07", true, true));
        assert_eq!(here.decode("+x07"), None);
        assert_eq!(here.decode("+"), None);
    }
}
