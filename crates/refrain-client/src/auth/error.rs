//! Errors of authorization. They are cloned for every request that waited for the same authorization.

use crate::error::cause;
use http::StatusCode;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use url::Url;

/// The longest foreign text that is repeated in a message.
const QUOTE_MAX: usize = 300;

pub(super) type BoxError = Box<dyn Error + Send + Sync>;
pub(super) type AuthResult<T> = Result<T, AuthError>;
type SharedError = Arc<dyn Error + Send + Sync>;

/// Why there is no authorization.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The server wants an access token and none was given, or it did not take the one it was given.
    #[error(
        "the server wants an access token; none was given, or it did not take the one it was given"
    )]
    Refused,
    /// The token cannot be put into a header.
    #[error("an access token has only visible ASCII characters")]
    BadToken,
    /// The authorization was set up in a way that cannot work.
    #[error("the authorization is not set up right: {0}")]
    Setup(#[from] SetupError),
    /// The server named a URL that no secret may be sent to.
    #[error(
        "{what} is {url}, which is not used: it must be https, or http on this machine for a server on this machine"
    )]
    UnsafeUrl {
        /// The purpose of the URL.
        what: &'static str,
        /// The URL.
        url: String,
    },
    /// There was no response.
    #[error("no answer from {url}: {}", cause(.source))]
    Unreachable {
        /// The URL of the request.
        url: String,
        /// The error of the connection.
        source: Arc<reqwest::Error>,
    },
    /// The response cannot be used.
    #[error("the answer of {url} is of no use: {source}")]
    BadAnswer {
        /// The URL of the request.
        url: String,
        /// The defect.
        source: ResponseError,
    },
    /// The server does not say which authorization server it trusts.
    #[error(
        "the server wants authorization and does not say from whom: neither its refusal nor {0} names an \
         authorization server. Its operator has to serve protected resource metadata (RFC 9728)"
    )]
    NoResourceMetadata(String),
    /// The metadata is that of another server.
    #[error(
        "the server's metadata is for {resource:?}, but the server is {server}: an access token is not asked for"
    )]
    OtherResource {
        /// The server.
        server: String,
        /// The resource that the metadata is for.
        resource: String,
    },
    /// The authorization server has no metadata.
    #[error(
        "the authorization server {issuer} has no metadata (RFC 8414 or OpenID Connect Discovery) at {tried}"
    )]
    NoIssuerMetadata {
        /// The authorization server.
        issuer: String,
        /// The URLs that were tried.
        tried: String,
    },
    /// The metadata is that of another authorization server.
    #[error(
        "the metadata of the authorization server {expected} says it is {found:?}: it is not used"
    )]
    OtherIssuer {
        /// The authorization server that was asked.
        expected: String,
        /// The issuer in its metadata.
        found: String,
    },
    /// The authorization server lacks a feature.
    #[error("the authorization server {issuer} does not offer {what}")]
    Unsupported {
        /// The authorization server.
        issuer: String,
        /// The feature.
        what: &'static str,
    },
    /// The authorization server does not know this client, and offers no registration.
    #[error(
        "the authorization server {0} does not register clients by itself: register this client there and \
         give its id, or give the URL of a client metadata document if the authorization server takes them"
    )]
    NoClient(String),
    /// The client is registered with another authorization server than the one the server names.
    #[error(
        "the client is registered with {registered}, and the server now trusts {named}: register the client there. \
         Its credentials are not shown to another authorization server"
    )]
    ClientOfOther {
        /// The authorization server of the registration.
        registered: String,
        /// The authorization server that the server names.
        named: String,
    },
    /// The authorization server refused a request.
    #[error("the authorization server {issuer} refused {what}: {error}{}", described(.description.as_deref()))]
    Denied {
        /// The authorization server.
        issuer: String,
        /// The subject of the request.
        what: &'static str,
        /// The OAuth error code.
        error: String,
        /// The OAuth error description.
        description: Option<String>,
    },
    /// The redirect of the browser does not answer this request.
    #[error(
        "what came back from the browser is not used: {0}. Try again; if it stays so, the answer may be forged"
    )]
    BadRedirect(#[from] RedirectError),
    /// The browser could not be used.
    #[error("the authorization was not given: {0}")]
    Browser(#[source] SharedError),
    /// The host gave no assertion.
    #[error("there is no assertion to show to the authorization server: {0}")]
    Assertion(#[source] SharedError),
    /// The grants that the host keeps could not be read.
    #[error("what is kept of earlier authorizations cannot be read: {0}")]
    Grants(#[source] SharedError),
    /// The access token has a type that cannot be used.
    #[error(
        "the authorization server {issuer} gave an access token of the type {kind:?}: only Bearer and DPoP can be used"
    )]
    TokenType {
        /// The authorization server.
        issuer: String,
        /// The type.
        kind: String,
    },
    /// The server wants more than the authorization server grants.
    #[error(
        "the server still refuses after scope {0:?} was asked for: the authorization server did not give what \
         this needs, or the server never gives it to this client"
    )]
    Scopes(String),
    /// A key could not be generated, or not be used.
    #[error("signing failed: {0}")]
    Signing(#[source] SharedError),
}

/// Why a setup of [`OAuth`](crate::OAuth) cannot work.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The client metadata URL is not usable as a client id.
    #[error("the client metadata URL {0} must be https and have a path, and no fragment")]
    MetadataUrl(String),
    /// The redirect URI is not safe.
    #[error(
        "the redirect URI {0} must be https, or http on this machine such as http://127.0.0.1:8085/callback, \
         without a fragment"
    )]
    RedirectUri(String),
    /// The token endpoint of the identity provider is not safe.
    #[error("the identity provider's token endpoint {0} must be https")]
    TokenEndpoint(String),
    /// The client of the client credentials flow cannot authenticate.
    #[error("client credentials need a client with a secret or a private key")]
    NoCredentials,
    /// The signing algorithm is unknown.
    #[error("the client's private key: there is no algorithm {0:?}; ES256 is one")]
    UnknownAlgorithm(String),
    /// The signing algorithm is symmetric.
    #[error("the client's private key: {0} has no private key; use ES256")]
    SymmetricAlgorithm(String),
    /// The private key cannot be read.
    #[error("the client's private key: it is no PEM of a key for {algorithm}: {source}")]
    BadKey {
        /// The signing algorithm.
        algorithm: String,
        /// The error of the parser.
        source: jsonwebtoken::errors::Error,
    },
    /// The private key is for another algorithm.
    #[error("the client's private key: it is no key for {0}")]
    OtherKey(String),
    /// The HTTP client could not be built.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] Arc<reqwest::Error>),
}

/// Why a response of an authorization server cannot be used. Its body is not repeated: it may contain secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseError {
    /// The body is too large.
    #[error("it is larger than {0} bytes and was not read further")]
    TooLarge(usize),
    /// The body is not the expected metadata document.
    #[error("it is not the metadata expected there: {0}")]
    NotMetadata(#[source] Arc<serde_json::Error>),
    /// The status is an error without an OAuth error body.
    #[error("it is {0}{hint}", hint = if .0.is_server_error() { "; try again later" } else { "" })]
    Status(StatusCode),
    /// The response to a registration has no client.
    #[error("it is {0} without a client")]
    NoClient(StatusCode),
    /// The body is not an access token.
    #[error("it is neither a token nor an error")]
    NotToken,
    /// The body is not an identity assertion.
    #[error("it is not an identity assertion")]
    NotAssertion,
}

/// Why the redirect of a browser is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectError {
    /// The state is not that of the request.
    #[error("it is not the answer to this request (state)")]
    State,
    /// The issuer is another one.
    #[error("it comes from another authorization server (iss)")]
    OtherIssuer,
    /// The issuer is missing, though the authorization server promises to send it.
    #[error("it does not say which authorization server it comes from (iss)")]
    NoIssuer,
    /// There is no result.
    #[error("it has neither a code nor an error")]
    NoCode,
    /// A parameter is repeated.
    #[error("it has {0} twice")]
    Repeated(&'static str),
}

impl AuthError {
    pub(super) fn signing(error: impl Into<BoxError>) -> Self {
        Self::Signing(error.into().into())
    }

    pub(super) fn bad_answer(url: &Url, source: ResponseError) -> Self {
        let url = url.to_string();
        Self::BadAnswer { url, source }
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

    pub(super) fn of(self, issuer: &str, what: &'static str) -> AuthError {
        AuthError::Denied {
            issuer: issuer.to_owned(),
            what,
            error: quoted(&self.error),
            description: self.error_description.as_deref().map(quoted),
        }
    }
}

/// Foreign text without control characters, which could steer a terminal, and cut to a maximum length.
pub(super) fn quoted(text: &str) -> String {
    let visible = text.chars().filter(|c| !c.is_control());
    visible.take(QUOTE_MAX).collect()
}

fn described(description: Option<&str>) -> impl fmt::Display {
    description.map_or_else(String::new, |text| format!(" ({text})"))
}
