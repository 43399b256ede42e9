//! The scopes granted to a caller.

use std::collections::BTreeSet;
use std::sync::Arc;

/// The OAuth scopes granted to a caller. Cloning is cheap.
///
/// ```
/// use refrain::runtime::server::Scopes;
///
/// let scopes = Scopes::parse("files:read files:write");
/// assert!(scopes.has("files:read") && !scopes.has("files"));
/// assert!(Scopes::everything().has("files:read"));
/// assert_eq!(Scopes::none(), Scopes::parse(""));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes(ScopeSet);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ScopeSet {
    Everything,
    /// `None` for no scopes, without an allocation.
    Only(Option<Arc<BTreeSet<String>>>),
}

impl Scopes {
    /// No scopes.
    pub const fn none() -> Self {
        Self(ScopeSet::Only(None))
    }

    /// Every scope, for trusted callers such as a stdio client.
    pub const fn everything() -> Self {
        Self(ScopeSet::Everything)
    }

    /// Parses scopes separated by spaces.
    pub fn parse(text: &str) -> Self {
        text.split_ascii_whitespace().collect()
    }

    /// The names of the scopes. `None` for every scope.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        match &self.0 {
            ScopeSet::Everything => None,
            ScopeSet::Only(scopes) => {
                Some(scopes.iter().flat_map(|it| it.iter().cloned()).collect())
            }
        }
    }

    /// Whether this scope is granted.
    pub fn has(&self, scope: &str) -> bool {
        match &self.0 {
            ScopeSet::Everything => true,
            ScopeSet::Only(scopes) => scopes.as_ref().is_some_and(|it| it.contains(scope)),
        }
    }
}

impl<S: Into<String>> FromIterator<S> for Scopes {
    fn from_iter<I: IntoIterator<Item = S>>(scopes: I) -> Self {
        let scopes: BTreeSet<String> = scopes.into_iter().map(Into::into).collect();
        Self(ScopeSet::Only(
            (!scopes.is_empty()).then(|| Arc::new(scopes)),
        ))
    }
}
