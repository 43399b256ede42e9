//! Callers that a trusted proxy has authenticated.

use super::{AuthFuture, AuthRejection, Authenticator, Caller, Scopes, sha256, single_header};
use crate::builder::debug_as_display;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::SHA256_OUTPUT_LEN;
use http::{HeaderMap, HeaderName, HeaderValue};
use refrain_core::Principal;
use std::future::ready;

const MIN_SECRET_CHARS: usize = 16;

/// Authenticates the caller that a proxy names in a header, such as `X-Forwarded-User`. The proxy authenticates itself
/// with a secret in another header.
///
/// **A client that knows the secret can impersonate anyone.** The proxy must overwrite both headers if a client sent them.
/// Only the proxy should be able to reach the server, over a connection that others cannot read. Requests without the
/// secret or with repeated headers are rejected.
///
/// ```
/// use refrain::auth::TrustedProxy;
///
/// let proxy = TrustedProxy::new("a long random secret")?
///     .user_header("x-auth-request-email")?
///     .scopes_header("x-auth-request-scopes")?;
/// assert!(!format!("{proxy:?}").contains("random"));
/// # Ok::<(), refrain::runtime::server::TrustedProxyError>(())
/// ```
#[derive(Clone)]
pub struct TrustedProxy {
    /// The digest of the secret, so that the secret itself is not kept in memory.
    secret: [u8; SHA256_OUTPUT_LEN],
    secret_header: HeaderName,
    user_header: HeaderName,
    scopes_header: Option<HeaderName>,
}

/// Why a [`TrustedProxy`] cannot be built.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustedProxyError {
    /// The secret is too short, contains other characters than printable ASCII, or begins or ends with a space.
    #[error(
        "invalid proxy secret: expected at least {MIN_SECRET_CHARS} printable ASCII characters, and no space at either end"
    )]
    Secret,
    /// An invalid header name.
    #[error("invalid header name {name:?}")]
    Header {
        /// The name.
        name: String,
    },
}

debug_as_display!(TrustedProxyError);

impl TrustedProxy {
    /// A proxy that sends this secret in the header `x-proxy-secret`, and the principal in `x-forwarded-user`.
    ///
    /// The principal is the UTF-8 text of the header. Control characters and white space other than spaces are rejected.
    pub fn new(secret: &str) -> Result<Self, TrustedProxyError> {
        let is_printable = |c: char| matches!(c, ' '..='~');
        let is_trimmed = secret == secret.trim();
        if secret.len() < MIN_SECRET_CHARS || !is_trimmed || !secret.chars().all(is_printable) {
            return Err(TrustedProxyError::Secret);
        }
        Ok(Self {
            secret: sha256(secret.as_bytes()),
            secret_header: HeaderName::from_static("x-proxy-secret"),
            user_header: HeaderName::from_static("x-forwarded-user"),
            scopes_header: None,
        })
    }

    /// Sets the header of the secret.
    pub fn secret_header(mut self, name: &str) -> Result<Self, TrustedProxyError> {
        self.secret_header = parse_name(name)?;
        Ok(self)
    }

    /// Sets the header of the principal.
    pub fn user_header(mut self, name: &str) -> Result<Self, TrustedProxyError> {
        self.user_header = parse_name(name)?;
        Ok(self)
    }

    /// Sets the header of the caller's scopes, separated by spaces. By default, callers have no scopes.
    pub fn scopes_header(mut self, name: &str) -> Result<Self, TrustedProxyError> {
        self.scopes_header = Some(parse_name(name)?);
        Ok(self)
    }

    fn identify(&self, headers: &HeaderMap) -> Result<Caller, AuthRejection> {
        let secret = single_header(headers, &self.secret_header)?;
        let is_equal = |sent: &HeaderValue| {
            verify_slices_are_equal(&self.secret, &sha256(sent.as_bytes())).is_ok()
        };
        if !secret.is_some_and(is_equal) {
            return Err(AuthRejection::Forbidden(
                "invalid proxy secret: send the request through the proxy".into(),
            ));
        }
        let user = header_text(headers, &self.user_header)?.filter(|user| !user.is_empty());
        let missing = || format!("missing {} header from the proxy", self.user_header);
        let user = user.ok_or_else(|| AuthRejection::Missing(missing().into()))?;
        // Different principals must not look the same.
        if user.contains(|c: char| c != ' ' && (c.is_whitespace() || c.is_control())) {
            let name = &self.user_header;
            let reason = format!("invalid {name} header: white space or control characters");
            return Err(AuthRejection::Malformed(reason.into()));
        }
        let scopes = match &self.scopes_header {
            Some(name) => header_text(headers, name)?.map(Scopes::parse),
            None => None,
        };
        Ok(Caller {
            scopes: scopes.unwrap_or(Scopes::none()),
            ..Principal::new(user).into()
        })
    }
}

fn parse_name(name: &str) -> Result<HeaderName, TrustedProxyError> {
    name.parse().map_err(|_| TrustedProxyError::Header {
        name: name.to_owned(),
    })
}

fn header_text<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, AuthRejection> {
    let Some(value) = single_header(headers, name)? else {
        return Ok(None);
    };
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(AuthRejection::Malformed(
            format!("invalid {name} header: not UTF-8").into(),
        )),
    }
}

impl std::fmt::Debug for TrustedProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrustedProxy")
            .field("secret_header", &self.secret_header)
            .field("user_header", &self.user_header)
            .field("scopes_header", &self.scopes_header)
            .finish_non_exhaustive()
    }
}

impl Authenticator for TrustedProxy {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a> {
        Box::pin(ready(self.identify(headers)))
    }
}
