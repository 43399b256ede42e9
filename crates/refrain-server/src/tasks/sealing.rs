//! The stored form of task contents: plain, or sealed if [`TaskOptions::seal`](super::TaskOptions::seal) is set.
//!
//! The first byte is the format. With sealing, plain content is rejected: otherwise anyone with write access to the store
//! could replace it.

use super::Tasks;
use refrain_core::{Principal, limited_event};
use refrain_store::TaskId;

const PLAIN: u8 = 0;
const SEALED: u8 = 1;

/// A part of a task. Content sealed as one part does not open as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskPart<'a> {
    Call,
    Journal,
    Ask(&'a str),
    Answer(&'a str),
    Outcome,
}

impl TaskPart<'_> {
    fn context(self, task: &TaskId, owner: &Principal) -> Vec<u8> {
        let (part, key) = match self {
            Self::Call => ("call", ""),
            Self::Journal => ("journal", ""),
            Self::Ask(key) => ("ask", key),
            Self::Answer(key) => ("answer", key),
            Self::Outcome => ("outcome", ""),
        };
        let (relation, owner) = match owner.id() {
            Some(owner) => ("of", owner),
            None => ("of nobody", ""),
        };
        format!("task {task} {part} {}:{key} {relation} {owner}", key.len()).into_bytes()
    }
}

impl Tasks {
    pub(super) fn seal(
        &self,
        (task, owner): (&TaskId, &Principal),
        part: TaskPart<'_>,
        content: &[u8],
    ) -> Vec<u8> {
        let (format, mut stored) = if self.options.seal {
            let context = part.context(task, owner);
            (SEALED, self.services.sealer.seal_bytes(&context, content))
        } else {
            (PLAIN, content.to_vec())
        };
        stored.insert(0, format);
        stored
    }

    /// The content of a stored part. `None` if it does not open; the reason is logged.
    pub(super) fn open(
        &self,
        (task, owner): (&TaskId, &Principal),
        part: TaskPart<'_>,
        mut stored: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let format = stored.first().copied();
        stored.drain(..1.min(stored.len()));
        let reason = match format {
            Some(PLAIN) if !self.options.seal => return Some(stored),
            Some(PLAIN) => "not sealed".to_owned(),
            Some(SEALED) => {
                let context = part.context(task, owner);
                match self.services.sealer.open_bytes(&context, stored) {
                    Ok(content) => return Some(content),
                    Err(reason) => reason.to_string(),
                }
            }
            _ => "unknown format".to_owned(),
        };
        limited_event!(ERROR, ?task, ?part, %reason, "failed to open stored task content");
        None
    }
}
