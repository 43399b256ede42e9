//! What to speak with a server that is not asked.

use refrain_wire::{Draft, Revision};
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};
use std::borrow::Cow;

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

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Revision(revision) => revision.as_str(),
            Self::Draft(draft) => draft.name(),
        }
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

/// By its name.
impl Serialize for Dialect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Dialect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'_, str>::deserialize(deserializer)?;
        Self::from_name(&name)
            .ok_or_else(|| D::Error::custom(format_args!("the dialect {name:?} is unknown")))
    }
}
