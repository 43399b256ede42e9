//! Callers that a proxy vouches for.

use super::{AuthFuture, Authenticator, Caller, Refused, Scopes, single};
use aws_lc_rs::digest::SHA256_OUTPUT_LEN;
use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign, verify};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use http::{HeaderMap, HeaderName};
use refrain_core::Principal;
use std::future::ready;

/// The shortest secret.
const SHORTEST: usize = 16;

/// Lets in whom a proxy names in a header, such as `X-Forwarded-User`, once the proxy has proved itself by a secret in
/// another.
///
/// **Whoever knows the secret can be anyone.** The proxy must set both headers itself, in place of any that a client sent;
/// nothing but the proxy should be able to reach the server; and the secret must not travel where others can read it. A
/// request without the secret is refused, and so is one that has any of the headers twice.
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
    secret: Digest,
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
    /// A name that no header can have.
    #[error("{name:?} is not the name of a header")]
    Header {
        /// The name.
        name: String,
    },
}

/// What `main` shows when it returns this error.
impl std::fmt::Debug for TrustedProxyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl TrustedProxy {
    /// A proxy that sends this secret in the header `x-proxy-secret`, and the principal in `x-forwarded-user`.
    ///
    /// The principal is the header's text as it came, in UTF-8. One with white space in it other than plain spaces, or
    /// with control characters, is refused.
    pub fn new(secret: &str) -> Result<Self, TrustedProxyError> {
        let visible = |c: char| matches!(c, ' '..='~');
        let trimmed = secret == secret.trim();
        if secret.len() < SHORTEST || !trimmed || !secret.chars().all(visible) {
            return Err(TrustedProxyError::Secret);
        }
        Ok(Self {
            secret: Digest::of(secret.as_bytes()),
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

    fn find(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        let secret = single(headers, &self.secret_header)?;
        if !secret.is_some_and(|secret| self.secret.is_of(secret.as_bytes())) {
            return Err(Refused::Forbidden(
                "this server takes requests from its proxy only".into(),
            ));
        }
        let user = text(headers, &self.user_header)?.filter(|user| !user.is_empty());
        let missing = || Refused::Missing("the proxy does not say who is calling".into());
        let user = user.ok_or_else(missing)?;
        // What cannot be seen would make two principals look the same.
        if user.contains(|c: char| c != ' ' && (c.is_whitespace() || c.is_control())) {
            let name = &self.user_header;
            let reason = format!("the {name} header has white space or control characters in it");
            return Err(Refused::Malformed(reason.into()));
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

/// The text of a header, if it is there, as it came: the spaces around it were no part of it.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refused> {
    let Some(value) = single(headers, name)? else {
        return Ok(None);
    };
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Refused::Malformed(
            format!("the {name} header is not text").into(),
        )),
    }
}

/// A secret in a form that does not give it away, and that others are compared with in constant time.
#[derive(Clone)]
struct Digest {
    key: Key,
    tag: [u8; SHA256_OUTPUT_LEN],
}

impl Digest {
    fn of(secret: &[u8]) -> Self {
        let mut random = [0; SHA256_OUTPUT_LEN];
        SystemRandom::new()
            .fill(&mut random)
            .expect("the system's random source works");
        let key = Key::new(HMAC_SHA256, &random);
        let mut tag = [0; SHA256_OUTPUT_LEN];
        tag.copy_from_slice(sign(&key, secret).as_ref());
        Self { key, tag }
    }

    fn is_of(&self, given: &[u8]) -> bool {
        verify(&self.key, given, &self.tag).is_ok()
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
