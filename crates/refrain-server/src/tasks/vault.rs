//! What tasks hold, as it lies in the store: as it is, or sealed.
//!
//! The first byte says which. Where tasks are sealed, what is not is refused: whoever can write into the store could
//! otherwise put anything there.

use crate::server::Server;
use refrain_core::Principal;
use refrain_store::TaskId;

const PLAIN: u8 = 0;
const SEALED: u8 = 1;

/// Which part of a task something is. What is sealed as one opens as no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    Call,
    Journal,
    Ask(&'a str),
    Answer(&'a str),
    Outcome,
}

impl Part<'_> {
    fn place(self, task: &TaskId, owner: &Principal) -> Vec<u8> {
        let (part, key) = match self {
            Self::Call => ("call", ""),
            Self::Journal => ("journal", ""),
            Self::Ask(key) => ("ask", key),
            Self::Answer(key) => ("answer", key),
            Self::Outcome => ("outcome", ""),
        };
        let (named, owner) = match owner.id() {
            Some(owner) => ("of", owner),
            None => ("of nobody", ""),
        };
        format!("task {task} {part} {}:{key} {named} {owner}", key.len()).into_bytes()
    }
}

impl Server {
    fn seals_tasks(&self) -> bool {
        let tasks = self.0.tasks.as_ref();
        tasks.is_some_and(|tasks| tasks.options.seal)
    }

    /// What is stored of a part of a task.
    pub(crate) fn shut(
        &self,
        (task, owner): (&TaskId, &Principal),
        part: Part<'_>,
        content: &[u8],
    ) -> Vec<u8> {
        let (first, content) = if self.seals_tasks() {
            let sealed = self.0.sealer.seal_bytes(&part.place(task, owner), content);
            (SEALED, sealed)
        } else {
            (PLAIN, content.to_vec())
        };
        let mut stored = content;
        stored.insert(0, first);
        stored
    }

    /// A part of a task, of what was stored. `None` if it does not open; the log says why.
    pub(crate) fn unshut(
        &self,
        (task, owner): (&TaskId, &Principal),
        part: Part<'_>,
        mut stored: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let reason = match stored.first() {
            Some(&PLAIN) if self.seals_tasks() => "it is not sealed".to_owned(),
            Some(&PLAIN) => {
                stored.remove(0);
                return Some(stored);
            }
            Some(&SEALED) => {
                stored.remove(0);
                match self.0.sealer.open_bytes(&part.place(task, owner), stored) {
                    Ok(content) => return Some(content),
                    Err(reason) => reason.to_string(),
                }
            }
            _ => "it is of a version that is not known here".to_owned(),
        };
        tracing::error!(?task, ?part, %reason, "what a task holds does not open");
        None
    }
}
