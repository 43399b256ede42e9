//! What an authorization server gave, and where a host keeps it.

use super::authorization;
use super::client::ClientId;
use super::dpop::{DpopKey, Nonces, PROOF};
use super::error::{AuthError, BoxError};
use super::scopes::Scopes;
use super::tokens::now;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, header};
use oauth2::{AccessToken, RefreshToken};
use serde::{Deserialize, Serialize};
use std::fmt;
use url::Url;

/// A token that is good for less than this is renewed before it is used, in seconds; one that was never good for much
/// longer, in its second half.
const SOON: u64 = 30;

/// What an authorization server gave this client for one server: an access token, what it takes to get the next
/// one, and the client's registration.
///
/// It is made to be kept, as JSON or in any other form serde knows. It is all secrets: keep it as such.
#[derive(Clone, Serialize, Deserialize)]
pub struct Grant {
    pub(super) issuer: String,
    pub(super) resource: String,
    pub(super) client: ClientId,
    pub(super) access_token: AccessToken,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<RefreshToken>,
    /// When it was given, in seconds since 1970.
    pub(super) obtained: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<u64>,
    /// What was asked for.
    pub(super) scopes: Scopes,
    /// The key that the tokens are bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<DpopKey>,
}

impl Grant {
    /// The authorization server that gave it.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// What it gives access to, as the server's metadata calls it.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    pub(super) fn is_good(&self) -> bool {
        self.expires.is_none_or(|expires| {
            let soon = SOON.min(expires.saturating_sub(self.obtained) / 2);
            expires > now() + soon
        })
    }

    /// The header that carries the access token.
    pub(super) fn authorization(&self) -> Result<HeaderValue, AuthError> {
        let scheme = if self.key.is_some() { "DPoP" } else { "Bearer" };
        authorization(scheme, self.access_token.secret())
    }

    /// The headers of one request.
    pub(super) fn headers(
        &self,
        method: &Method,
        url: &Url,
        nonces: &Nonces,
    ) -> Result<HeaderMap, AuthError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, self.authorization()?);
        if let Some(key) = &self.key {
            let token = Some(self.access_token.secret().as_str());
            let proof = key.proof(method, url, token, nonces.get(url).as_deref())?;
            headers.insert(PROOF, proof);
        }
        Ok(headers)
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("issuer", &self.issuer)
            .field("resource", &self.resource)
            .field("scopes", &self.scopes)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Where a host keeps what authorization servers gave, so that it lasts longer than the process.
///
/// Several processes may share one: each looks again before it bothers a person or uses a refresh token.
pub trait Grants: Send + Sync + 'static {
    /// What is kept for a server.
    fn get<'a>(&'a self, server: &'a Url) -> BoxFuture<'a, Result<Option<Grant>, BoxError>>;

    /// Keeps what was given for a server, in place of what was kept for it.
    fn put<'a>(&'a self, server: &'a Url, grant: &'a Grant) -> BoxFuture<'a, Result<(), BoxError>>;
}
