//! Hints, as the instances of a fleet tell them to each other.
//!
//! Of the transactions that notify, a database commits one at a time, each with its wait for the disk. So what is written
//! often does not notify by itself: its hint is told afterwards, together with others that have gathered meanwhile, by a
//! statement that has nothing to write and waits for no disk. Those who listen on the same instance hear it at once. What
//! is not told for want of a connection is lost, as hints may be.

use super::connections::Connections;
use crate::sql::within;
use crate::store::StoreError;
use crate::task::{Hint, TaskId};
use refrain_core::{Source, SystemSource};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

/// Where hints are told.
pub(super) const CHANNEL: &str = "refrain";
/// How long hints gather for those on other instances, if some were told just now.
const GATHER: Duration = Duration::from_millis(5);

const TELL: &str = "SELECT pg_notify($1, said) FROM unnest($2::text[]) AS said";

/// Tells hints until it is dropped, and then those that are left.
pub(super) struct Telling {
    here: broadcast::Sender<Hint>,
    elsewhere: mpsc::Sender<String>,
    words: Words,
}

impl Telling {
    /// Tells those who listen here, and others by one of these connections.
    pub(super) fn begin(connections: Connections, here: broadcast::Sender<Hint>) -> Self {
        let (elsewhere, told) = mpsc::channel(crate::HINTS);
        tokio::spawn(tell(connections, told));
        Self {
            here,
            elsewhere,
            words: Words::new(),
        }
    }

    pub(super) fn tell(&self, hint: Hint) {
        // Errors mean that too many wait to be told, and that nobody listens here.
        let _ = self.elsewhere.try_send(self.words.written(&hint));
        let _ = self.here.send(hint);
    }

    /// How hints are written here.
    pub(super) fn words(&self) -> Words {
        self.words.clone()
    }
}

async fn tell(connections: Connections, mut told: mpsc::Receiver<String>) {
    let mut hints = Vec::new();
    while told.recv_many(&mut hints, crate::HINTS).await > 0 {
        let tell = sqlx::query(TELL).bind(CHANNEL).bind(&hints);
        let told = connections.run(async |connection| Ok(tell.execute(connection).await?));
        if let Err(error) = within::<_, StoreError>(told).await {
            tracing::debug!(%error, "failed to send hints");
        }
        hints.clear();
        tokio::time::sleep(GATHER).await;
    }
}

/// How hints are written: `+` for a task that is due or `-` for one that is not, `w` if its worker wrote it or `o` if
/// another did, and the id. Then, if it was told here already, where that is.
#[derive(Clone)]
pub(super) struct Words {
    here: Arc<str>,
}

impl Words {
    fn new() -> Self {
        let mut random = [0; 8];
        SystemSource::new().fill(&mut random);
        let here = format!("{:016x}", u64::from_le_bytes(random));
        Self { here: here.into() }
    }

    fn written(&self, hint: &Hint) -> String {
        let due = if hint.due { '+' } else { '-' };
        let own = if hint.own { 'w' } else { 'o' };
        format!("{due}{own}{} {}", hint.task, self.here)
    }

    /// The hint that is written so, unless it was told here already.
    pub(super) fn read(&self, said: &str) -> Option<Hint> {
        let (what, id) = said.split_at_checked(2)?;
        let (due, own) = match what {
            "+w" => (true, true),
            "+o" => (true, false),
            "-w" => (false, true),
            "-o" => (false, false),
            _ => return None,
        };
        let id = match id.split_once(' ') {
            Some((_, told)) if told == &*self.here => return None,
            Some((id, _)) => id,
            None => id,
        };
        let task = TaskId::parse(id)?;
        Some(Hint { task, due, own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_comes_elsewhere_as_it_was_told() {
        let (here, elsewhere) = (Words::new(), Words::new());
        for (due, own) in [(true, true), (true, false), (false, true), (false, false)] {
            let task = TaskId::new([7; 24]);
            let told = Hint { task, due, own };
            let written = here.written(&told);
            assert_eq!(here.read(&written), None);
            assert_eq!(elsewhere.read(&written), Some(told));
        }
        // One that a statement tells by itself.
        let told = here.read("+w07").expect("a hint");
        assert_eq!((told.task.as_str(), told.due, told.own), ("07", true, true));
        assert_eq!(here.read("+x07"), None);
        assert_eq!(here.read("+"), None);
    }
}
