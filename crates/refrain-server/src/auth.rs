//! Who is calling, and what they may do.
//!
//! An [`Authenticator`] looks at a request's headers and yields a [`Caller`]: the [`Principal`] that tokens are bound
//! to, and the [`Scopes`] that were granted.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `access` | what a server demands of its callers |
//! | `scopes` | what a caller was granted |
//! | `bearer` | a fixed list of bearer tokens |
//! | `jwt` | access tokens of an authorization server |
//! | `proxy` | callers that a proxy vouches for |
//! | `challenge` | what a refused client is told |
//! | `metadata` | where clients get their tokens |

mod access;
mod bearer;
mod challenge;
#[cfg(feature = "jwt")]
mod jwt;
mod metadata;
mod proxy;
mod scopes;
pub(crate) mod web;

pub use access::ScopeError;
pub(crate) use access::{AccessRules, Auth, MissingScopes, check_scopes};
pub use bearer::{BadToken, BadTokenReason, BearerTokens};
pub(crate) use challenge::Challenge;
#[cfg(feature = "jwt")]
pub use jwt::{Jwks, JwtVerifier, JwtVerifierBuilder, JwtVerifierError};
pub use metadata::ResourceMetadata;
pub(crate) use metadata::{Published, WELL_KNOWN};
pub use proxy::{TrustedProxy, TrustedProxyError};
pub use scopes::Scopes;
pub use web::UrlError;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use refrain_core::Principal;
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

/// Who is calling, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who is calling. Tokens are bound to it.
    pub principal: Principal,
    /// What they were granted.
    pub scopes: Scopes,
    /// When that ends, if it does: what lasts longer than a request, a subscription, ends then.
    pub expires: Option<SystemTime>,
}

/// A caller without any scope.
impl From<Principal> for Caller {
    fn from(principal: Principal) -> Self {
        Self {
            principal,
            scopes: Scopes::none(),
            expires: None,
        }
    }
}

/// Why a request is not let in. The text of each is for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Nothing says who is calling: HTTP 401. The client is told where to get a token, if that is known.
    #[error("{0}")]
    Missing(Cow<'static, str>),
    /// What should say who is calling is no such thing, or is there twice: HTTP 400 with `invalid_request`.
    #[error("{0}")]
    Malformed(Cow<'static, str>),
    /// The bearer token is not accepted: HTTP 401 with `invalid_token`.
    #[error("{0}")]
    InvalidToken(Cow<'static, str>),
    /// As [`Missing`](Self::Missing), for other schemes than `Bearer`: HTTP 401 with this challenge.
    #[error("{reason}")]
    Challenged {
        /// What the client is told.
        reason: Cow<'static, str>,
        /// The value of the `WWW-Authenticate` header.
        challenge: String,
    },
    /// No credentials would help: HTTP 403.
    #[error("{0}")]
    Forbidden(Cow<'static, str>),
    /// It cannot be found out at present: HTTP 503 with `Retry-After`.
    #[error("{reason}")]
    Unavailable {
        /// What the client is told.
        reason: Cow<'static, str>,
        /// When to try again.
        retry_after: Duration,
    },
}

/// The answer of an [`Authenticator`], at its own time.
pub type AuthFuture<'a> = Pin<Box<dyn Future<Output = Result<Caller, Refused>> + Send + 'a>>;

/// Finds out who is calling from the headers of a request.
///
/// ```
/// use refrain_server::{AuthFuture, Authenticator, Caller, Refused};
/// use refrain_core::Principal;
///
/// /// Believes what it is told: for a server that only its own machine can reach.
/// struct ByName;
///
/// impl Authenticator for ByName {
///     fn authenticate<'a>(&'a self, headers: &'a http::HeaderMap) -> AuthFuture<'a> {
///         Box::pin(async move {
///             let name = headers.get("x-user").and_then(|name| name.to_str().ok());
///             let name = name.ok_or(Refused::Missing("say who you are in X-User".into()))?;
///             Ok(Caller { principal: Principal::new(name), scopes: ["notes:read"].into_iter().collect(), expires: None })
///         })
///     }
/// }
/// ```
pub trait Authenticator: Send + Sync + 'static {
    /// Who sent a request with these headers?
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a>;
}

/// The bearer token of a request.
fn bearer_token(headers: &HeaderMap) -> Result<&str, Refused> {
    let missing = || Refused::Missing("send an Authorization header with a bearer token".into());
    let value = single(headers, &AUTHORIZATION)?.ok_or_else(missing)?;
    let malformed = |reason: &'static str| Refused::Malformed(reason.into());
    let value = value
        .to_str()
        .map_err(|_| malformed("the Authorization header has characters that are not ASCII"))?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        // Another scheme is as good as none: the challenge says which one is wanted.
        return Err(missing());
    }
    match token.trim() {
        "" => Err(malformed("the Authorization header has no bearer token")),
        token => Ok(token),
    }
}

/// The one value of a header. One that is there twice could be read in two ways.
fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, Refused> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(Refused::Malformed(
            format!("the {name} header is there more than once").into(),
        )),
    }
}
