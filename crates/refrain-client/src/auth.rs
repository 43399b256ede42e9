//! Authorization of HTTP requests.
//!
//! [`Authorize`] adds headers to each request, and handles 401 and 403 responses. [`Bearer`] sends a fixed access token.
//! [`OAuth`] gets tokens from the server's authorization server, and renews them.
//!
//! | module | owns |
//! | --- | --- |
//! | `oauth` | settings, and the state of each server |
//! | `server` | the current grant of one server, and when to replace it |
//! | `flow` | the flows that get a grant |
//! | `challenge`, `metadata`, `client`, `redirect`, `tokens`, `dpop` | the steps of a flow |
//! | `http` | requests to authorization servers, and the check of their URLs |

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
mod server;
mod tokens;

pub use client::RegisteredClient;
pub use error::{AuthError, RedirectError, ResponseError, SetupError};
pub use grant::{Grant, Grants};
pub use loopback::Loopback;
pub use oauth::{IdentityProvider, OAuth, OAuthBuilder};

use ::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use challenge::AuthChallenge;
use futures_util::future::BoxFuture;
use std::fmt;
use url::Url;

/// Authorizes the requests to a server.
pub trait Authorize: Send + Sync + 'static {
    /// The headers for a request to this URL.
    fn headers<'a>(
        &'a self,
        method: &'a Method,
        url: &'a Url,
    ) -> BoxFuture<'a, Result<HeaderMap, AuthError>>;

    /// Handles a 401 or 403 response. Returns whether to send the request again with new headers.
    fn handle_rejection<'a>(
        &'a self,
        rejection: RejectedRequest<'a>,
    ) -> BoxFuture<'a, Result<bool, AuthError>>;
}

/// A request that the server rejected with 401 or 403.
#[derive(Clone, Copy, Debug)]
pub struct RejectedRequest<'a> {
    /// The URL of the request.
    pub url: &'a Url,
    /// The headers from [`Authorize::headers`].
    pub sent: &'a HeaderMap,
    /// 401 or 403.
    pub status: StatusCode,
    /// The headers of the response, including `WWW-Authenticate`.
    pub headers: &'a HeaderMap,
    /// How often this request was rejected before.
    pub previous: u32,
}

impl RejectedRequest<'_> {
    /// Whether the access token is the reason. For 403, only if the token lacks a scope.
    fn is_about_token(&self, challenge: &AuthChallenge) -> bool {
        let lacks_scope = challenge.error.as_deref() == Some("insufficient_scope");
        self.status != StatusCode::FORBIDDEN || lacks_scope
    }

    /// The error of a request that is not sent again.
    fn error(&self, challenge: &AuthChallenge) -> AuthError {
        match self.sent.contains_key(header::AUTHORIZATION) {
            true => AuthError::TokenRejected(challenge.description.clone()),
            false => AuthError::Unauthorized,
        }
    }
}

/// A fixed access token.
///
/// ```
/// # fn run() -> Result<(), refrain_client::AuthError> {
/// use refrain_client::{Bearer, Client};
/// let builder = Client::builder().authorize(Bearer::new("the-access-token")?);
/// # Ok(())
/// # }
/// # run().unwrap();
/// ```
pub struct Bearer(HeaderValue);

impl Bearer {
    /// Sends this token. It must consist of visible ASCII characters.
    pub fn new(token: &str) -> Result<Self, AuthError> {
        authorization("Bearer", token).map(Self)
    }
}

fn authorization(scheme: &str, token: &str) -> Result<HeaderValue, AuthError> {
    let is_visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::try_from(format!("{scheme} {token}")).ok();
    let mut value = value
        .filter(|_| is_visible)
        .ok_or(AuthError::InvalidToken)?;
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

    fn handle_rejection<'a>(
        &'a self,
        rejection: RejectedRequest<'a>,
    ) -> BoxFuture<'a, Result<bool, AuthError>> {
        let challenge = AuthChallenge::read(rejection.headers);
        Box::pin(async move {
            match rejection.is_about_token(&challenge) {
                true => Err(rejection.error(&challenge)),
                false => Ok(false),
            }
        })
    }
}
