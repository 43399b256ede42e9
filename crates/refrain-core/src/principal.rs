//! The authenticated caller.

use std::fmt;
use std::sync::Arc;

/// The authenticated caller. Tokens are bound to it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Principal(Option<Arc<str>>);

impl Principal {
    /// Makes a caller without authentication.
    pub const fn anonymous() -> Self {
        Self(None)
    }

    /// Makes a caller with this id.
    ///
    /// ```
    /// use refrain::auth::Principal;
    ///
    /// assert_eq!(Principal::new("alice").id(), Some("alice"));
    /// ```
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(Some(id.into()))
    }

    /// Returns the id, or `None` for an anonymous caller.
    pub fn id(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id() {
            Some(id) => write!(f, "Principal({id:?})"),
            None => f.write_str("Principal(anonymous)"),
        }
    }
}
