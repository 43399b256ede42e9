//! Hints, as the instances of a fleet tell them to each other.
//!
//! Of the transactions that notify, a database commits one at a time, each with its wait for the disk. So what is written
//! often does not notify by itself: its hint is told afterwards, together with others that have gathered meanwhile, by a
//! statement that has nothing to write and waits for no disk. What is not told for want of a connection is lost, as hints
//! may be.

use super::connections::Connections;
use crate::sql::within;
use crate::store::StoreError;
use crate::task::{Hint, TaskId};
use tokio::sync::mpsc;

/// Where hints are told.
pub(super) const CHANNEL: &str = "refrain";

const TELL: &str = "SELECT pg_notify($1, said) FROM unnest($2::text[]) AS said";

/// Tells hints until it is dropped, and then those that are left.
pub(super) struct Telling(mpsc::Sender<String>);

impl Telling {
    /// Tells by one of these connections.
    pub(super) fn begin(connections: Connections) -> Self {
        let (say, said) = mpsc::channel(crate::HINTS);
        tokio::spawn(tell(connections, said));
        Self(say)
    }

    pub(super) fn tell(&self, hint: &Hint) {
        // An error means that too many wait to be told.
        let _ = self.0.try_send(written(hint));
    }
}

async fn tell(connections: Connections, mut said: mpsc::Receiver<String>) {
    let mut hints = Vec::new();
    while said.recv_many(&mut hints, crate::HINTS).await > 0 {
        if let Err(error) = within(tell_all(&connections, &hints)).await {
            tracing::debug!(%error, "hints were not told");
        }
        hints.clear();
    }
}

async fn tell_all(connections: &Connections, hints: &[String]) -> Result<(), StoreError> {
    let mut connection = connections.borrow().await?;
    sqlx::query(TELL)
        .bind(CHANNEL)
        .bind(hints)
        .execute(&mut *connection)
        .await?;
    connection.done();
    Ok(())
}

/// `+` for a task that is due or `-` for one that is not, `w` if its worker wrote it or `o` if another did, and the id.
fn written(hint: &Hint) -> String {
    let due = if hint.due { '+' } else { '-' };
    let own = if hint.own { 'w' } else { 'o' };
    format!("{due}{own}{}", hint.task)
}

/// The hint that is written so.
pub(super) fn hint(said: &str) -> Option<Hint> {
    let (what, id) = said.split_at_checked(2)?;
    let (due, own) = match what {
        "+w" => (true, true),
        "+o" => (true, false),
        "-w" => (false, true),
        "-o" => (false, false),
        _ => return None,
    };
    let task = TaskId::parse(id)?;
    Some(Hint { task, due, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_comes_as_it_was_told() {
        for (due, own) in [(true, true), (true, false), (false, true), (false, false)] {
            let task = TaskId::new([7; 24]);
            let told = Hint { task, due, own };
            assert_eq!(hint(&written(&told)), Some(told));
        }
        assert_eq!(hint("+x07"), None);
        assert_eq!(hint("+"), None);
    }
}
