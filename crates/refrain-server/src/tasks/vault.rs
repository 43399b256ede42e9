//! What tasks hold, as it lies in the store: as it is, or sealed.
//!
//! The first byte says which, so that sealing can be switched on and off while there are tasks.

use crate::server::Server;
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
    fn place(self, task: &TaskId) -> Vec<u8> {
        let (part, key) = match self {
            Self::Call => ("call", ""),
            Self::Journal => ("journal", ""),
            Self::Ask(key) => ("ask", key),
            Self::Answer(key) => ("answer", key),
            Self::Outcome => ("outcome", ""),
        };
        format!("refrain task {task} {part} {key}").into_bytes()
    }
}

impl Server {
    /// What is stored of a part of a task.
    pub(crate) fn shut(&self, task: &TaskId, part: Part<'_>, content: &[u8]) -> Vec<u8> {
        let seal = self
            .0
            .tasks
            .as_ref()
            .is_some_and(|tasks| tasks.options.seal);
        let (first, content) = if seal {
            let sealed = self.0.sealer.seal_bytes(&part.place(task), content);
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
        task: &TaskId,
        part: Part<'_>,
        mut stored: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let reason = match stored.first() {
            Some(&PLAIN) => {
                stored.remove(0);
                return Some(stored);
            }
            Some(&SEALED) => {
                stored.remove(0);
                match self.0.sealer.open_bytes(&part.place(task), stored) {
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
