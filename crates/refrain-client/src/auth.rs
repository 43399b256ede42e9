//! Authorization: what a server that is not open to everybody wants to see.
//!
//! An [`Authorize`] gives each request its headers, and hears of it when the server refused one. [`Bearer`] is one
//! access token that was made elsewhere; [`OAuth`] gets them from the server's authorization server, and new ones
//! when they expire or are not enough.

mod challenge;
mod client;
mod dpop;
mod error;
mod flow;
mod grant;
mod http;
mod loopback;
mod metadata;
mod oauth;
mod redirect;
mod register;
mod scopes;
mod server;
mod setup;
mod tokens;

pub use client::RegisteredClient;
pub use error::AuthError;
pub use grant::{Grant, Grants};
pub use loopback::Loopback;
pub use oauth::OAuth;
pub use setup::{IdentityProvider, OAuthBuilder};

use ::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use futures_util::future::BoxFuture;
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
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// Where it was sent.
    pub url: &'a Url,
    /// The headers that [`Authorize::headers`] gave it. They tell whether it was sent before the last authorization.
    pub sent: &'a HeaderMap,
    /// 401 or 403.
    pub status: StatusCode,
    /// The headers of the response, `WWW-Authenticate` among them.
    pub headers: &'a HeaderMap,
    /// How often this request was refused before.
    pub earlier: u32,
}

/// One access token for every request, made elsewhere.
pub struct Bearer(HeaderValue);

impl Bearer {
    /// Sends this token.
    pub fn new(token: &str) -> Result<Self, AuthError> {
        authorization("Bearer", token).map(Self)
    }
}

/// The value of an `Authorization` header. It is kept out of logs.
fn authorization(scheme: &str, token: &str) -> Result<HeaderValue, AuthError> {
    let is_visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::try_from(format!("{scheme} {token}")).ok();
    let mut value = value.filter(|_| is_visible).ok_or(AuthError::BadToken)?;
    value.set_sensitive(true);
    Ok(value)
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
