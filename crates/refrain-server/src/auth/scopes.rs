//! The scopes that a caller was granted.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The scopes that a caller was granted, as in OAuth. Cloning is cheap.
///
/// ```
/// # use refrain_server::Scopes;
/// let scopes = Scopes::parse("files:read files:write");
/// assert!(scopes.has("files:read") && !scopes.has("files"));
/// assert!(Scopes::everything().has("files:read"));
/// assert_eq!(Scopes::none(), Scopes::parse(""));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Scopes(Granted);

#[derive(Clone, PartialEq, Eq)]
enum Granted {
    Everything,
    Nothing,
    Only(Arc<BTreeSet<String>>),
}

impl Scopes {
    /// No scope at all.
    pub const fn none() -> Self {
        Self(Granted::Nothing)
    }

    /// Every scope: for callers without authorization, as over stdio.
    pub const fn everything() -> Self {
        Self(Granted::Everything)
    }

    /// Parses scopes that are separated by spaces.
    pub fn parse(text: &str) -> Self {
        text.split_ascii_whitespace().collect()
    }

    /// Their names; `None` for every scope.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        match &self.0 {
            Granted::Everything => None,
            Granted::Nothing => Some(Vec::new()),
            Granted::Only(scopes) => Some(scopes.iter().cloned().collect()),
        }
    }

    /// Whether it contains this scope.
    pub fn has(&self, scope: &str) -> bool {
        match &self.0 {
            Granted::Everything => true,
            Granted::Nothing => false,
            Granted::Only(scopes) => scopes.contains(scope),
        }
    }
}

impl<S: Into<String>> FromIterator<S> for Scopes {
    fn from_iter<I: IntoIterator<Item = S>>(scopes: I) -> Self {
        let scopes: BTreeSet<String> = scopes.into_iter().map(Into::into).collect();
        Self(if scopes.is_empty() {
            Granted::Nothing
        } else {
            Granted::Only(Arc::new(scopes))
        })
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Granted::Everything => f.write_str("Scopes(everything)"),
            Granted::Nothing => f.write_str("Scopes()"),
            Granted::Only(scopes) => f.debug_tuple("Scopes").field(scopes).finish(),
        }
    }
}
