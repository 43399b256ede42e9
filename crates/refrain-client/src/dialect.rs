//! What to speak with a server that is not asked.

use refrain_wire::{Draft, Revision};

/// A dialect that a client is told to speak, in place of the newest that the server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// An earlier revision.
    Revision(Revision),
    /// A draft.
    Draft(Draft),
}

impl Dialect {
    /// The dialect of this name: that of a revision, or `draft-0`, `draft-1`, `draft-2`.
    pub fn from_name(name: &str) -> Option<Self> {
        let draft = Draft::from_name(name).map(Self::Draft);
        draft.or_else(|| Revision::parse(name).map(Self::Revision))
    }

    pub(crate) fn draft(self) -> Option<Draft> {
        match self {
            Self::Draft(draft) => Some(draft),
            Self::Revision(_) => None,
        }
    }
}

impl From<Draft> for Dialect {
    fn from(draft: Draft) -> Self {
        Self::Draft(draft)
    }
}

impl From<Revision> for Dialect {
    fn from(revision: Revision) -> Self {
        Self::Revision(revision)
    }
}
