//! Grants of authorization servers, and the host's storage for them.

use super::authorization;
use super::client::ClientIdentity;
use super::dpop::{DpopKey, Nonces, PROOF};
use super::error::AuthResult;
use super::tokens::now;
use crate::error::BoxError;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, header};
use oauth2::{AccessToken, RefreshToken};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::future::ready;
use url::Url;

/// Tokens are refreshed this many seconds before they expire, short-lived tokens at half of their lifetime.
const REFRESH_SECONDS: u64 = 30;

/// The result of an authorization for one server: access token, refresh token and client registration.
///
/// It is the outcome of an OAuth flow, not the authorization grant (such as a code) that the flow exchanges for tokens. It can be
/// stored in any serde format. Store it as a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct Grant {
    pub(super) issuer: String,
    pub(super) resource: String,
    pub(super) client: ClientIdentity,
    pub(super) access_token: AccessToken,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<RefreshToken>,
    /// In seconds since 1970, like `expires`.
    pub(super) obtained: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<u64>,
    pub(super) scopes: GrantScopes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<DpopKey>,
}

impl Grant {
    pub(super) fn is_valid(&self) -> bool {
        self.expires.is_none_or(|expires| {
            let lifetime = expires.saturating_sub(self.obtained);
            expires > now() + REFRESH_SECONDS.min(lifetime / 2)
        })
    }

    pub(super) fn authorization(&self) -> AuthResult<HeaderValue> {
        let scheme = if self.key.is_some() { "DPoP" } else { "Bearer" };
        authorization(scheme, self.access_token.secret())
    }

    pub(super) fn headers(
        &self,
        method: &Method,
        url: &Url,
        nonces: &Nonces,
    ) -> AuthResult<HeaderMap> {
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

/// The host's storage for grants.
///
/// Several processes may share the storage: each reads it again before it runs an OAuth flow or uses a refresh token.
pub trait Grants: Send + Sync + 'static {
    /// Reads the grant for a server.
    fn get<'a>(&'a self, server: &'a Url) -> BoxFuture<'a, Result<Option<Grant>, BoxError>>;

    /// Replaces the grant for a server.
    fn put<'a>(&'a self, server: &'a Url, grant: &'a Grant) -> BoxFuture<'a, Result<(), BoxError>>;

    /// Locks the grant for a server until the returned guard is dropped. A refresh token is read, used and replaced under
    /// this lock: an authorization server may revoke the grant if two processes use the same token. By default, there is
    /// no lock.
    fn lock<'a>(&'a self, _server: &'a Url) -> BoxFuture<'a, Result<Box<dyn Send>, BoxError>> {
        Box::pin(ready(Ok(Box::new(()) as Box<dyn Send>)))
    }
}

/// A set of scopes, separated by spaces in messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct GrantScopes(pub(super) BTreeSet<String>);

impl GrantScopes {
    pub(super) fn parse(text: &str) -> Self {
        Self(text.split_ascii_whitespace().map(str::to_owned).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains_all(&self, other: &Self) -> bool {
        other.0.is_subset(&self.0)
    }

    pub(super) fn with(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
    }
}

impl fmt::Display for GrantScopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes: Vec<&str> = self.0.iter().map(String::as_str).collect();
        f.write_str(&scopes.join(" "))
    }
}
