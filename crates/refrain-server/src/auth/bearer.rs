//! A list of bearer tokens.

use super::access::{ScopeError, check_scope};
use super::{AuthFuture, AuthRejection, Authenticator, Caller, access_token, sha256};
use crate::builder::debug_as_display;
use http::HeaderMap;
use parking_lot::RwLock;
use refrain_core::Principal;
use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;

/// An invalid line in a list of tokens.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", match reason { TokenListErrorKind::NoCaller => String::new(), _ => format!("line {line}: ") })]
pub struct TokenListError {
    /// The line number, from 1.
    pub line: usize,
    /// Why the line is invalid.
    pub reason: TokenListErrorKind,
}

/// Why a line in a list of tokens is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenListErrorKind {
    /// The token is missing.
    #[error("expected `PRINCIPAL ACCESS_TOKEN [SCOPE …]`")]
    NoToken,
    /// The token is too short.
    #[error("a token must have at least 16 characters")]
    TooShort,
    /// No line has a caller.
    #[error("no caller; expected lines of `PRINCIPAL ACCESS_TOKEN [SCOPE …]`")]
    NoCaller,
    /// An earlier line has the same token.
    #[error("duplicate token")]
    Duplicate,
    /// A scope is invalid.
    #[error(transparent)]
    Scope(#[from] ScopeError),
}

debug_as_display!(TokenListError);

/// A list of bearer tokens with principals and scopes. Keeps only digests of the tokens. Clones have the same list, also after
/// [`replace`](Self::replace).
///
/// ```
/// use refrain::auth::BearerTokens;
///
/// let tokens = BearerTokens::new()
///     .with("alice", "s3cret-s3cret-s3cret")
///     .with_scopes("bob", "t0ken-t0ken-t0ken", ["files:read"]);
/// assert!(!format!("{tokens:?}").contains("s3cret"));
/// ```
#[derive(Clone, Default)]
pub struct BearerTokens {
    callers: Arc<RwLock<Callers>>,
}

/// The callers by the digests of their tokens.
type Callers = HashMap<[u8; 32], Caller>;

impl BearerTokens {
    /// An empty list, which rejects all callers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts `token` as credential of the principal, without scopes.
    pub fn with(self, principal: &str, token: &str) -> Self {
        self.with_scopes(principal, token, [""; 0])
    }

    /// Accepts `token` as credential of the principal, with these scopes.
    pub fn with_scopes<S: Into<String>>(
        self,
        principal: &str,
        token: &str,
        scopes: impl IntoIterator<Item = S>,
    ) -> Self {
        let caller = Caller {
            scopes: scopes.into_iter().collect(),
            ..Principal::new(principal).into()
        };
        let mut callers = self.callers.read().clone();
        callers.insert(sha256(token.as_bytes()), caller);
        Self::from_callers(callers)
    }

    /// Accepts the tokens of another list instead, from the next request on.
    ///
    /// ```
    /// # use refrain::auth::BearerTokens;
    /// # use refrain::server::Server;
    /// let tokens = BearerTokens::new().with("alice", "s3cret-s3cret-s3cret");
    /// let server = Server::builder("docs", "1.0").authenticator(tokens.clone()).build()?;
    /// tokens.replace(&BearerTokens::parse("bob t0ken-t0ken-t0ken files:read")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace(&self, new: &Self) {
        let callers = new.callers.read().clone();
        *self.callers.write() = callers;
    }

    /// Parses lines of `PRINCIPAL ACCESS_TOKEN [SCOPE …]`. Skips empty lines and lines that start with `#`. A list without
    /// callers, such as a truncated file, is an error.
    pub fn parse(text: &str) -> Result<Self, TokenListError> {
        let mut callers = Callers::new();
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split_whitespace();
            let Some(principal) = words.next().filter(|word| !word.starts_with('#')) else {
                continue;
            };
            let invalid = |reason| TokenListError {
                line: number + 1,
                reason,
            };
            let token = words
                .next()
                .ok_or_else(|| invalid(TokenListErrorKind::NoToken))?;
            if token.len() < 16 {
                return Err(invalid(TokenListErrorKind::TooShort));
            }
            let scopes: Vec<&str> = words.collect();
            for scope in &scopes {
                check_scope(scope).map_err(|error| invalid(error.into()))?;
            }
            let caller = Caller {
                scopes: scopes.into_iter().collect(),
                ..Principal::new(principal).into()
            };
            if callers.insert(sha256(token.as_bytes()), caller).is_some() {
                return Err(invalid(TokenListErrorKind::Duplicate));
            }
        }
        if callers.is_empty() {
            return Err(TokenListError {
                line: text.lines().count().max(1),
                reason: TokenListErrorKind::NoCaller,
            });
        }
        Ok(Self::from_callers(callers))
    }

    fn from_callers(callers: Callers) -> Self {
        Self {
            callers: Arc::new(RwLock::new(callers)),
        }
    }

    fn identify(&self, headers: &HeaderMap) -> Result<Caller, AuthRejection> {
        let (_, token) = access_token(headers, &["bearer"])?;
        // A lookup by digest does not leak tokens through timing.
        let callers = self.callers.read();
        let caller = callers.get(&sha256(token.as_bytes())).cloned();
        caller.ok_or(AuthRejection::InvalidToken("unknown bearer token".into()))
    }
}

impl std::fmt::Debug for BearerTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.callers.read().values()).finish()
    }
}

impl Authenticator for BearerTokens {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a> {
        Box::pin(ready(self.identify(headers)))
    }
}
