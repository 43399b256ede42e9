//! The scopes that a caller was granted.

use std::collections::BTreeSet;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes(Granted);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Granted {
    Everything,
    /// `None` if there are none, without an allocation.
    Only(Option<Arc<BTreeSet<String>>>),
}

impl Scopes {
    /// No scope at all.
    pub const fn none() -> Self {
        Self(Granted::Only(None))
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
            Granted::Only(scopes) => {
                Some(scopes.iter().flat_map(|it| it.iter().cloned()).collect())
            }
        }
    }

    /// Whether it contains this scope.
    pub fn has(&self, scope: &str) -> bool {
        match &self.0 {
            Granted::Everything => true,
            Granted::Only(scopes) => scopes.as_ref().is_some_and(|it| it.contains(scope)),
        }
    }
}

impl<S: Into<String>> FromIterator<S> for Scopes {
    fn from_iter<I: IntoIterator<Item = S>>(scopes: I) -> Self {
        let scopes: BTreeSet<String> = scopes.into_iter().map(Into::into).collect();
        Self(Granted::Only(
            (!scopes.is_empty()).then(|| Arc::new(scopes)),
        ))
    }
}
