//! Authentication and scopes of callers.
//!
//! An [`Authenticator`] maps the headers of a request to a [`Caller`]: a [`Principal`], to which tokens are bound, and the
//! granted [`Scopes`].
//!
//! | module | contents |
//! | --- | --- |
//! | `access` | the scopes that a server requires |
//! | `scopes` | the scopes that a caller was granted |
//! | `bearer` | a fixed list of bearer tokens |
//! | `jwt` | access tokens (JWTs) of an authorization server |
//! | `proxy` | callers authenticated by a proxy |
//! | `challenge` | the `WWW-Authenticate` header |
//! | `metadata` | the protected resource metadata |
//! | `url` | checked URLs of other servers |

mod access;
mod bearer;
mod challenge;
#[cfg(feature = "jwt")]
mod jwt;
mod metadata;
mod proxy;
mod scopes;
pub(crate) mod url;

pub use access::ScopeError;
pub(crate) use access::{AccessRules, Auth, MissingScopes, check_scopes};
pub use bearer::{BearerTokens, TokenListError, TokenListErrorKind};
pub(crate) use challenge::Challenge;
#[cfg(feature = "jwt")]
pub use jwt::{Jwks, JwtVerifier, JwtVerifierBuilder, JwtVerifierError};
pub use metadata::ResourceMetadata;
pub(crate) use metadata::{PublishedMetadata, WELL_KNOWN};
pub use proxy::{TrustedProxy, TrustedProxyError};
pub use scopes::Scopes;
pub use url::HttpUrlError;

use crate::limits::LimitKey;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use refrain_core::Principal;
use std::borrow::Cow;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The identity that tokens are bound to.
    pub principal: Principal,
    /// The granted scopes.
    pub scopes: Scopes,
    /// When the access expires. Subscriptions end then.
    pub expires: Option<SystemTime>,
    /// The client's address, if the transport knows it. Limits count anonymous callers by it.
    pub address: Option<IpAddr>,
}

impl Caller {
    pub(crate) fn limit_key(&self) -> LimitKey {
        LimitKey::new(&self.principal, self.address)
    }
}

/// A caller without any scope.
impl From<Principal> for Caller {
    fn from(principal: Principal) -> Self {
        Self {
            principal,
            scopes: Scopes::none(),
            expires: None,
            address: None,
        }
    }
}

/// Why a caller is not authenticated. The text is sent to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthRejection {
    /// No credentials: HTTP 401. The challenge names the resource metadata, if there is any.
    #[error("{0}")]
    Missing(Cow<'static, str>),
    /// Malformed or repeated credentials: HTTP 400 with `invalid_request`.
    #[error("{0}")]
    Malformed(Cow<'static, str>),
    /// The bearer token is invalid: HTTP 401 with `invalid_token`.
    #[error("{0}")]
    InvalidToken(Cow<'static, str>),
    /// The DPoP proof is invalid: HTTP 401 with `invalid_dpop_proof`.
    #[error("{0}")]
    InvalidProof(Cow<'static, str>),
    /// No credentials, for an authenticator whose scheme is not `Bearer`: HTTP 401 with this challenge.
    #[error("{reason}")]
    Challenged {
        /// The text for the client.
        reason: Cow<'static, str>,
        /// The value of the `WWW-Authenticate` header.
        challenge: String,
    },
    /// The caller is denied access, and other credentials would not help: HTTP 403.
    #[error("{0}")]
    Forbidden(Cow<'static, str>),
    /// The credentials cannot be verified at the moment: HTTP 503 with `Retry-After`.
    #[error("{reason}")]
    Unavailable {
        /// The text for the client.
        reason: Cow<'static, str>,
        /// When to try again.
        retry_after: Duration,
    },
}

/// The future of [`Authenticator::authenticate`].
pub type AuthFuture<'a> = Pin<Box<dyn Future<Output = Result<Caller, AuthRejection>> + Send + 'a>>;

/// Authenticates the caller of a request by its headers.
///
/// ```
/// use refrain::auth::{Authenticator, Caller, Principal};
/// use refrain::runtime::server::{AuthFuture, AuthRejection};
///
/// /// Trusts the header: only for servers that listen on a loopback address.
/// struct ByName;
///
/// impl Authenticator for ByName {
///     fn authenticate<'a>(&'a self, headers: &'a http::HeaderMap) -> AuthFuture<'a> {
///         Box::pin(async move {
///             let name = headers.get("x-user").and_then(|name| name.to_str().ok());
///             let name = name.ok_or(AuthRejection::Missing("missing X-User header".into()))?;
///             Ok(Caller { scopes: ["notes:read"].into_iter().collect(), ..Principal::new(name).into() })
///         })
///     }
/// }
/// ```
pub trait Authenticator: Send + Sync + 'static {
    /// The caller of a request with these headers.
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a>;

    /// The caller of a request with this HTTP method and these headers. Servers call this function; its default ignores the
    /// HTTP method.
    fn authenticate_request<'a>(
        &'a self,
        method: &'a Method,
        headers: &'a HeaderMap,
    ) -> AuthFuture<'a> {
        let _ = method;
        self.authenticate(headers)
    }

    /// Whether access tokens must be bound to a key (DPoP). The resource metadata and the
    /// challenges announce this to clients.
    fn requires_dpop(&self) -> bool {
        false
    }
}

/// The scheme and the access token in the `Authorization` header. `schemes` are in lower case.
fn access_token<'a>(
    headers: &'a HeaderMap,
    schemes: &[&'static str],
) -> Result<(&'static str, &'a str), AuthRejection> {
    let missing =
        || AuthRejection::Missing("missing bearer token: send an Authorization header".into());
    let value = single_header(headers, &AUTHORIZATION)?.ok_or_else(missing)?;
    let malformed = |reason: &'static str| AuthRejection::Malformed(reason.into());
    let value = value
        .to_str()
        .map_err(|_| malformed("invalid Authorization header: not ASCII"))?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    let mut accepted = schemes.iter();
    let Some(scheme) = accepted.find(|accepted| scheme.eq_ignore_ascii_case(accepted)) else {
        // The challenge names the accepted scheme.
        return Err(missing());
    };
    match token.trim() {
        "" => Err(malformed(
            "invalid Authorization header: empty bearer token",
        )),
        token => Ok((scheme, token)),
    }
}

/// The value of a header that must not be repeated.
fn single_header<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, AuthRejection> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(AuthRejection::Malformed(
            format!("repeated {name} header").into(),
        )),
    }
}

fn sha256(text: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
    let mut bytes = [0; SHA256_OUTPUT_LEN];
    bytes.copy_from_slice(digest(&SHA256, text).as_ref());
    bytes
}
