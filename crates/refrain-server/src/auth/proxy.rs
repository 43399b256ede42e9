//! Callers authenticated by a proxy.

use super::{AuthFuture, AuthRejection, Authenticator, Caller, Scopes, sha256, single};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::SHA256_OUTPUT_LEN;
use http::{HeaderMap, HeaderName, HeaderValue};
use refrain_core::Principal;
use std::future::ready;

const SHORTEST: usize = 16;

/// Authenticates the caller that a proxy names in a header, such as `X-Forwarded-User`. The proxy proves itself by a
/// secret in another header.
///
/// **A client that knows the secret can impersonate anyone.** The proxy must set both headers itself, in place of any that
/// a client sent; only the proxy should be able to reach the server; and the secret must not be sent where others can read
/// it. A request without the secret, or with one of the headers twice, is rejected.
///
/// ```
/// # use refrain_server::TrustedProxy;
/// let proxy = TrustedProxy::new("a long random secret")?
///     .user_header("x-auth-request-email")?
///     .scopes_header("x-auth-request-scopes")?;
/// assert!(!format!("{proxy:?}").contains("random"));
/// # Ok::<(), refrain_server::TrustedProxyError>(())
/// ```
#[derive(Clone)]
pub struct TrustedProxy {
    /// The digest of the secret, so that it is not in memory and is compared in constant time.
    secret: [u8; SHA256_OUTPUT_LEN],
    secret_header: HeaderName,
    user_header: HeaderName,
    scopes_header: Option<HeaderName>,
}

/// Why a [`TrustedProxy`] cannot be set up.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustedProxyError {
    /// The secret could be guessed, or does not fit into a header.
    #[error(
        "the proxy's secret needs at least {SHORTEST} visible ASCII characters: make a long random one"
    )]
    Secret,
    /// An invalid header name.
    #[error("{name:?} is not the name of a header")]
    Header {
        /// The name.
        name: String,
    },
}

/// `main` prints this when it returns the error.
impl std::fmt::Debug for TrustedProxyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl TrustedProxy {
    /// A proxy that sends this secret in the header `x-proxy-secret`, and the principal in `x-forwarded-user`.
    ///
    /// The principal is the header's text in UTF-8. White space other than plain spaces and control characters are rejected.
    pub fn new(secret: &str) -> Result<Self, TrustedProxyError> {
        let visible = |c: char| matches!(c, ' '..='~');
        let trimmed = secret == secret.trim();
        if secret.len() < SHORTEST || !trimmed || !secret.chars().all(visible) {
            return Err(TrustedProxyError::Secret);
        }
        Ok(Self {
            secret: sha256(secret.as_bytes()),
            secret_header: HeaderName::from_static("x-proxy-secret"),
            user_header: HeaderName::from_static("x-forwarded-user"),
            scopes_header: None,
        })
    }

    /// Another header for the secret.
    pub fn secret_header(mut self, name: &str) -> Result<Self, TrustedProxyError> {
        self.secret_header = header(name)?;
        Ok(self)
    }

    /// Another header for the principal.
    pub fn user_header(mut self, name: &str) -> Result<Self, TrustedProxyError> {
        self.user_header = header(name)?;
        Ok(self)
    }

    /// The header for the caller's scopes, with spaces between them. Without it no caller has any.
    pub fn scopes_header(mut self, name: &str) -> Result<Self, TrustedProxyError> {
        self.scopes_header = Some(header(name)?);
        Ok(self)
    }

    fn find(&self, headers: &HeaderMap) -> Result<Caller, AuthRejection> {
        let secret = single(headers, &self.secret_header)?;
        let is_equal = |sent: &HeaderValue| {
            verify_slices_are_equal(&self.secret, &sha256(sent.as_bytes())).is_ok()
        };
        if !secret.is_some_and(is_equal) {
            return Err(AuthRejection::Forbidden(
                "this server takes requests from its proxy only".into(),
            ));
        }
        let user = text(headers, &self.user_header)?.filter(|user| !user.is_empty());
        let missing = "the proxy does not say who is calling";
        let user = user.ok_or(AuthRejection::Missing(missing.into()))?;
        // Invisible characters would make two principals look the same.
        if user.contains(|c: char| c != ' ' && (c.is_whitespace() || c.is_control())) {
            let name = &self.user_header;
            let reason = format!("the {name} header has white space or control characters in it");
            return Err(AuthRejection::Malformed(reason.into()));
        }
        let scopes = match &self.scopes_header {
            Some(name) => text(headers, name)?.map(Scopes::parse),
            None => None,
        };
        Ok(Caller {
            principal: Principal::new(user),
            scopes: scopes.unwrap_or(Scopes::none()),
            expires: None,
        })
    }
}

fn header(name: &str) -> Result<HeaderName, TrustedProxyError> {
    name.parse().map_err(|_| TrustedProxyError::Header {
        name: name.to_owned(),
    })
}

/// The text of a header, if the request has it.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, AuthRejection> {
    let Some(value) = single(headers, name)? else {
        return Ok(None);
    };
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(AuthRejection::Malformed(
            format!("the {name} header is not text").into(),
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
        Box::pin(ready(self.find(headers)))
    }
}
