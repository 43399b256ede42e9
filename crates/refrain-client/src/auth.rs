//! Authorization: what a server that is not open to everybody wants to see.
//!
//! An [`Authorize`] gives each request its headers, and hears of it when the server refused one.

use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use std::fmt;
use url::Url;

/// What authorizes the requests to a server.
pub trait Authorize: Send + Sync + 'static {
    /// The headers for a request to this URL.
    fn headers<'a>(
        &'a self,
        method: &'a Method,
        url: &'a Url,
    ) -> BoxFuture<'a, Result<HeaderMap, AuthError>>;

    /// The server refused a request with 401 or 403. Says whether to send it again, with new headers.
    fn refused<'a>(&'a self, refusal: Refusal<'a>) -> BoxFuture<'a, Result<bool, AuthError>>;
}

/// A request that the server refused.
#[derive(Debug)]
pub struct Refusal<'a> {
    /// Where it was sent.
    pub url: &'a Url,
    /// 401 or 403.
    pub status: StatusCode,
    /// The headers of the response, `WWW-Authenticate` among them.
    pub headers: &'a HeaderMap,
    /// How often this request was refused before.
    pub earlier: u32,
}

/// Why there is no authorization.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The server wants an access token and none was given, or it did not take the one it was given.
    #[error("the server wants another access token than it was given")]
    Refused,
    /// The token cannot be put into a header.
    #[error("an access token has only visible ASCII characters")]
    BadToken,
}

/// One access token for every request, made elsewhere.
pub struct Bearer(HeaderValue);

impl Bearer {
    /// Sends this token.
    pub fn new(token: &str) -> Result<Self, AuthError> {
        let is_visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::try_from(format!("Bearer {token}")).ok();
        let mut value = value.filter(|_| is_visible).ok_or(AuthError::BadToken)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(..)")
    }
}

impl Authorize for Bearer {
    fn headers<'a>(
        &'a self,
        _method: &'a Method,
        _url: &'a Url,
    ) -> BoxFuture<'a, Result<HeaderMap, AuthError>> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, self.0.clone());
        Box::pin(async { Ok(headers) })
    }

    fn refused<'a>(&'a self, _refusal: Refusal<'a>) -> BoxFuture<'a, Result<bool, AuthError>> {
        Box::pin(async { Err(AuthError::Refused) })
    }
}
