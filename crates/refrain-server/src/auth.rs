//! Who is calling.
//!
//! An [`Authenticator`] looks at a request's headers and yields a [`Principal`]. Tokens are bound to it.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use refrain_core::Principal;
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::future::{Future, ready};
use std::pin::Pin;

/// The request does not say who is calling, or not believably.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// What the client is told.
    pub reason: String,
    /// The value of the `WWW-Authenticate` header.
    pub challenge: String,
}

/// The answer of an [`Authenticator`], at its own time.
pub type AuthFuture<'a> = Pin<Box<dyn Future<Output = Result<Principal, Refused>> + Send + 'a>>;

/// Finds out who is calling from the headers of a request.
pub trait Authenticator: Send + Sync + 'static {
    /// Who sent a request with these headers?
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a>;
}

/// A line of a token file that is not `PRINCIPAL TOKEN`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the tokens: {reason}")]
pub struct BadToken {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// What `main` shows when it returns this error.
impl std::fmt::Debug for BadToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A fixed list of bearer tokens, each with its principal. Only digests of the tokens are kept.
///
/// ```
/// # use refrain_server::BearerTokens;
/// let tokens = BearerTokens::new().with("alice", "s3cret-s3cret-s3cret");
/// assert!(!format!("{tokens:?}").contains("s3cret"));
/// ```
#[derive(Clone, Default)]
pub struct BearerTokens {
    principals: HashMap<[u8; 32], Principal>,
}

impl BearerTokens {
    /// An empty list: nobody may call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the bearer of `token` in as `principal`.
    pub fn with(mut self, principal: &str, token: &str) -> Self {
        self.principals
            .insert(hash(token), Principal::new(principal));
        self
    }

    /// Reads lines of `PRINCIPAL TOKEN`; empty lines and lines that start with `#` are passed over.
    pub fn parse(text: &str) -> Result<Self, BadToken> {
        let mut tokens = Self::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |reason| BadToken {
                line: number + 1,
                reason,
            };
            let (principal, token) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| bad("expected `PRINCIPAL TOKEN`"))?;
            let token = token.trim();
            if token.len() < 16 {
                return Err(bad("a token needs at least 16 characters"));
            }
            if tokens.principals.contains_key(&hash(token)) {
                return Err(bad("this token is there twice"));
            }
            tokens = tokens.with(principal, token);
        }
        Ok(tokens)
    }

    fn find(&self, headers: &HeaderMap) -> Result<Principal, Refused> {
        let refuse = |reason: &str, challenge: &str| Refused {
            reason: reason.into(),
            challenge: challenge.into(),
        };
        let Some(value) = headers.get(AUTHORIZATION) else {
            return Err(refuse(
                "send an Authorization header with a bearer token",
                "Bearer",
            ));
        };
        let token = value
            .to_str()
            .ok()
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        // Looked up by digest: how long it takes says nothing about the tokens.
        token
            .and_then(|token| self.principals.get(&hash(token)))
            .cloned()
            .ok_or_else(|| {
                refuse(
                    "the bearer token is not known",
                    r#"Bearer error="invalid_token""#,
                )
            })
    }
}

impl std::fmt::Debug for BearerTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.principals.values()).finish()
    }
}

impl Authenticator for BearerTokens {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a> {
        Box::pin(ready(self.find(headers)))
    }
}

fn hash(token: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
}
