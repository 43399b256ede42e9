//! Authorization errors. They are `Clone` because all requests that wait for one authorization share its error.

use crate::error::{BoxError, after_colon, cause};
use http::StatusCode;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use url::Url;

const DESCRIPTION_MAX: usize = 300;

pub(super) type AuthResult<T> = Result<T, AuthError>;
type SharedError = Arc<dyn Error + Send + Sync>;

/// Why authorization failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The server requires an access token, and none was sent.
    #[error("the server requires an access token")]
    Unauthorized,
    /// The server rejected the access token, for this reason if it named one.
    #[error("the server rejected the access token{}", after_colon(.0.as_deref().unwrap_or_default()))]
    TokenRejected(Option<String>),
    /// The access token is not a valid header value.
    #[error(
        "invalid access token: expected at least one character, and only visible ASCII characters"
    )]
    InvalidToken,
    /// The setup of [`OAuth`](crate::OAuth) is invalid.
    #[error("invalid OAuth setup: {0}")]
    Setup(#[from] SetupError),
    /// The server named a URL to which secrets must not be sent.
    #[error(
        "unsafe URL of {what}: {url}; expected https, or http on this machine if the server is on this machine; \
         a private address only from a server at such an address or on this machine"
    )]
    UnsafeUrl {
        /// The purpose of the URL.
        what: &'static str,
        /// The URL.
        url: String,
    },
    /// There was no response.
    #[error("no response from {url}: {}", cause(.source))]
    Unreachable {
        /// The URL of the request.
        url: String,
        /// The connection error.
        source: SharedError,
    },
    /// The response of an authorization server is invalid.
    #[error("invalid response from {url}: {source}")]
    InvalidResponse {
        /// The URL of the request.
        url: String,
        /// The reason.
        source: ResponseError,
    },
    /// The server does not name an authorization server.
    #[error(
        "the server requires authorization, but neither its response nor {0} names an authorization server. If the server \
         uses OAuth, its operator must serve protected resource metadata (RFC 9728); if not, ask the operator for an access token"
    )]
    NoResourceMetadata(String),
    /// The protected resource metadata is for another server.
    #[error(
        "the server's metadata is for {resource:?}, but the server is {server}; no access token is requested \
         (`OAuthBuilder::allow_parent_resource` accepts the metadata of a parent)"
    )]
    ResourceMismatch {
        /// The server.
        server: String,
        /// The resource that the metadata is for.
        resource: String,
    },
    /// The authorization server has no metadata.
    #[error(
        "authorization server {issuer} has no metadata (RFC 8414 or OpenID Connect Discovery) at {tried}"
    )]
    NoIssuerMetadata {
        /// The authorization server.
        issuer: String,
        /// The URLs that were tried.
        tried: String,
    },
    /// The metadata is for another authorization server.
    #[error("the metadata of authorization server {expected} names another issuer: {found:?}")]
    IssuerMismatch {
        /// The authorization server that the server named.
        expected: String,
        /// The issuer in its metadata.
        found: String,
    },
    /// The authorization server lacks a feature.
    #[error("authorization server {issuer} does not support {what}")]
    Unsupported {
        /// The authorization server.
        issuer: String,
        /// The feature.
        what: &'static str,
    },
    /// The client is not registered, and the authorization server does not offer registration.
    #[error(
        "authorization server {0} does not offer client registration: register this client there and configure its \
         id, or configure a client metadata URL if the authorization server supports that"
    )]
    ClientNotRegistered(String),
    /// The client is registered with another authorization server.
    #[error(
        "the client is registered with {registered}, but the server trusts {named}: register the client with {named}; \
         its credentials are not sent to another authorization server"
    )]
    ClientIssuerMismatch {
        /// The authorization server of the registration.
        registered: String,
        /// The authorization server that the server names.
        named: String,
    },
    /// The authorization server rejected a request.
    #[error("authorization server {issuer} rejected {what}: {error}{}", in_parentheses(.description.as_deref()))]
    Denied {
        /// The authorization server.
        issuer: String,
        /// The kind of request.
        what: &'static str,
        /// The OAuth error code.
        error: String,
        /// The OAuth error description.
        description: Option<String>,
    },
    /// The redirect from the browser is invalid.
    #[error("invalid redirect from the browser: {0}; try again, and beware of a forged redirect")]
    InvalidRedirect(#[from] RedirectError),
    /// The host's browser callback failed.
    #[error("authorization in the browser failed: {0}")]
    Browser(#[source] SharedError),
    /// The stored grant for this server is missing, expired or revoked.
    #[error("the login for {0} is missing, expired or revoked")]
    LoginRequired(String),
    /// The stored grant for this server lacks a scope that a request needs.
    #[error("the login for {server} lacks a scope{}", after_colon(required))]
    ScopeRequired {
        /// The server.
        server: String,
        /// The scopes that the server named, separated by spaces.
        required: String,
        /// The scopes for a new login: those of the stored grant and the required ones, separated by spaces.
        scopes: String,
    },
    /// The host's callback returned no assertion.
    #[error("could not get an assertion for the authorization server: {0}")]
    Assertion(#[source] SharedError),
    /// The host's storage of grants could not be read.
    #[error("could not read stored grants: {0}")]
    Grants(#[source] SharedError),
    /// The access token has an unsupported type.
    #[error(
        "authorization server {issuer} issued an access token of type {kind:?}; expected Bearer or DPoP"
    )]
    TokenType {
        /// The authorization server.
        issuer: String,
        /// The type.
        kind: String,
    },
    /// The granted scopes do not suffice.
    #[error(
        "insufficient scope: the server still rejects the request with scope {0:?}; the authorization server did not \
         grant a required scope, or the server does not accept this client"
    )]
    InsufficientScope(String),
    /// A key could not be generated or used.
    #[error("signing failed: {0}")]
    Signing(#[source] SharedError),
}

/// Why a setup of [`OAuth`](crate::OAuth) is invalid.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The client metadata URL is not valid as a client id.
    #[error("client metadata URL {0} must be https, with a path and without a fragment")]
    MetadataUrl(String),
    /// The redirect URI is not safe.
    #[error(
        "redirect URI {0} must be https, or http on this machine such as http://127.0.0.1:8085/callback, \
         without a fragment"
    )]
    RedirectUri(String),
    /// The token endpoint of the identity provider is not safe.
    #[error("token endpoint {0} of the identity provider must be https, or http on this machine")]
    TokenEndpoint(String),
    /// The client of the client credentials flow cannot authenticate.
    #[error("client credentials require a client with a secret or a private key")]
    NoCredentials,
    /// The signing algorithm is unknown.
    #[error("unknown signing algorithm {0:?} of the client's private key; use ES256, for example")]
    UnknownAlgorithm(String),
    /// The signing algorithm is symmetric.
    #[error("signing algorithm {0} has no private key; use ES256, for example")]
    SymmetricAlgorithm(String),
    /// The private key cannot be read.
    #[error("the client's private key is not a PEM key for {algorithm}: {source}")]
    InvalidKey {
        /// The signing algorithm.
        algorithm: String,
        /// The parser error.
        source: jsonwebtoken::errors::Error,
    },
    /// The private key is for another algorithm.
    #[error("the client's private key does not work with {0}")]
    KeyMismatch(String),
}

/// Why a response of an authorization server is invalid. The body is omitted: it may contain secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseError {
    /// The body is too large.
    #[error("larger than {0} bytes")]
    TooLarge(usize),
    /// The body is not the expected metadata document.
    #[error("not the expected metadata: {0}")]
    NotMetadata(#[source] Arc<serde_json::Error>),
    /// The status is an error without an OAuth error body.
    #[error("status {0}{hint}", hint = if .0.is_server_error() { "; try again later" } else { "" })]
    Status(StatusCode),
    /// The response to a registration contains no client id.
    #[error("status {0} without a client id")]
    MissingClient(StatusCode),
    /// The body is not an access token.
    #[error("neither a token nor an OAuth error")]
    NotToken,
    /// The body is not an identity assertion.
    #[error("not an identity assertion")]
    NotAssertion,
}

/// Why a redirect from the browser is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectError {
    /// The state is not the state of this request.
    #[error("its state does not match this request")]
    StateMismatch,
    /// The redirect comes from another authorization server.
    #[error("its issuer (iss) is another authorization server")]
    IssuerMismatch,
    /// The issuer is missing, although the metadata announces it.
    #[error("its issuer (iss) is missing")]
    MissingIssuer,
    /// There is neither a code nor an error.
    #[error("it has neither a code nor an error")]
    MissingCode,
    /// A parameter is repeated.
    #[error("its parameter {0} is repeated")]
    RepeatedParameter(&'static str),
}

impl AuthError {
    pub(super) fn signing(error: impl Into<BoxError>) -> Self {
        Self::Signing(error.into().into())
    }

    pub(super) fn invalid_response(url: &Url, source: ResponseError) -> Self {
        let url = url.to_string();
        Self::InvalidResponse { url, source }
    }
}

#[derive(serde::Deserialize)]
pub(super) struct OAuthFailure {
    pub(super) error: String,
    pub(super) error_description: Option<String>,
}

impl OAuthFailure {
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    pub(super) fn into_error(self, issuer: &str, what: &'static str) -> AuthError {
        AuthError::Denied {
            issuer: issuer.to_owned(),
            what,
            error: sanitize(&self.error),
            description: self.error_description.as_deref().map(sanitize),
        }
    }
}

/// Removes control characters from foreign text, which could manipulate a terminal, and truncates it.
pub(super) fn sanitize(text: &str) -> String {
    let visible = text.chars().filter(|c| !c.is_control());
    visible.take(DESCRIPTION_MAX).collect()
}

fn in_parentheses(description: Option<&str>) -> impl fmt::Display {
    description.map_or_else(String::new, |text| format!(" ({text})"))
}
