//! A set of scopes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Scopes, each once. On the wire they are words with spaces between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Scopes(BTreeSet<String>);

impl Scopes {
    pub(super) fn parse(text: &str) -> Self {
        text.split_ascii_whitespace().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains_all(&self, other: &Self) -> bool {
        other.0.is_subset(&self.0)
    }

    pub(super) fn with(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl<S: AsRef<str>> FromIterator<S> for Scopes {
    fn from_iter<I: IntoIterator<Item = S>>(scopes: I) -> Self {
        let scopes = scopes.into_iter();
        Self(scopes.map(|scope| scope.as_ref().to_owned()).collect())
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, scope) in self.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{scope}")?;
        }
        Ok(())
    }
}
