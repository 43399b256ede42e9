//! A fixed list of bearer tokens.

use super::access::{ScopeError, check_scope};
use super::{AuthFuture, AuthRejection, Authenticator, Caller, bearer_token, sha256};
use http::HeaderMap;
use refrain_core::Principal;
use std::collections::HashMap;
use std::future::ready;

/// A line of a token file that is not `PRINCIPAL TOKEN [SCOPE …]`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the tokens: {reason}")]
pub struct BadToken {
    /// The number of the line, from 1.
    pub line: usize,
    /// The defect.
    pub reason: BadTokenReason,
}

/// The defect of a line of a token file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTokenReason {
    /// The token is missing.
    #[error("expected `PRINCIPAL TOKEN [SCOPE …]`")]
    NoToken,
    /// The token could be guessed.
    #[error("a token needs at least 16 characters")]
    TooShort,
    /// An earlier line has the same token.
    #[error("this token is there twice")]
    Duplicate,
    /// A scope is invalid.
    #[error(transparent)]
    Scope(#[from] ScopeError),
}

/// `main` prints this when it returns the error.
impl std::fmt::Debug for BadToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A fixed list of bearer tokens, each with its principal and its scopes. Only digests of the tokens are kept.
///
/// ```
/// # use refrain_server::BearerTokens;
/// let tokens = BearerTokens::new()
///     .with("alice", "s3cret-s3cret-s3cret")
///     .with_scopes("bob", "t0ken-t0ken-t0ken", ["files:read"]);
/// assert!(!format!("{tokens:?}").contains("s3cret"));
/// ```
#[derive(Clone, Default)]
pub struct BearerTokens {
    callers: HashMap<[u8; 32], Caller>,
}

impl BearerTokens {
    /// An empty list, which rejects every caller.
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts `token` as the principal, without any scope.
    pub fn with(self, principal: &str, token: &str) -> Self {
        self.with_scopes(principal, token, [""; 0])
    }

    /// Accepts `token` as the principal, with these scopes.
    pub fn with_scopes<S: Into<String>>(
        mut self,
        principal: &str,
        token: &str,
        scopes: impl IntoIterator<Item = S>,
    ) -> Self {
        let caller = Caller {
            principal: Principal::new(principal),
            scopes: scopes.into_iter().collect(),
            expires: None,
        };
        self.callers.insert(sha256(token.as_bytes()), caller);
        self
    }

    /// Parses lines of `PRINCIPAL TOKEN [SCOPE …]`; empty lines and lines that start with `#` are skipped.
    pub fn parse(text: &str) -> Result<Self, BadToken> {
        let mut tokens = Self::new();
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split_whitespace();
            let Some(principal) = words.next().filter(|word| !word.starts_with('#')) else {
                continue;
            };
            let bad = |reason| BadToken {
                line: number + 1,
                reason,
            };
            let token = words.next().ok_or_else(|| bad(BadTokenReason::NoToken))?;
            if token.len() < 16 {
                return Err(bad(BadTokenReason::TooShort));
            }
            if tokens.callers.contains_key(&sha256(token.as_bytes())) {
                return Err(bad(BadTokenReason::Duplicate));
            }
            let scopes: Vec<&str> = words.collect();
            for scope in &scopes {
                check_scope(scope).map_err(|error| bad(error.into()))?;
            }
            tokens = tokens.with_scopes(principal, token, scopes);
        }
        Ok(tokens)
    }

    fn find(&self, headers: &HeaderMap) -> Result<Caller, AuthRejection> {
        let token = bearer_token(headers)?;
        // Looked up by digest, so that the time reveals nothing about the tokens.
        self.callers
            .get(&sha256(token.as_bytes()))
            .cloned()
            .ok_or(AuthRejection::InvalidToken(
                "the bearer token is not known".into(),
            ))
    }
}

impl std::fmt::Debug for BearerTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.callers.values()).finish()
    }
}

impl Authenticator for BearerTokens {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a> {
        Box::pin(ready(self.find(headers)))
    }
}
