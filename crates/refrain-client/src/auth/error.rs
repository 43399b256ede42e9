//! Why there is no authorization, and what to do about it.

use super::scopes::Scopes;
use std::error::Error;
use std::fmt;

/// The longest text of somebody else that is repeated in a message.
const QUOTE_MAX: usize = 300;

/// An error of the host's own.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

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
    /// The authorization was put together in a way that cannot work.
    #[error("the authorization is not set up right: {0}")]
    Setup(String),
    /// The server named a URL that no secret may be sent to.
    #[error(
        "{what} is {url}, which is not used: it must be https, or http on this machine for a server on this machine"
    )]
    UnsafeUrl {
        /// What the URL is for.
        what: &'static str,
        /// The URL.
        url: String,
    },
    /// There was no answer.
    #[error("no answer from {url}: {reason}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// The answer is not one.
    #[error("the answer of {url} is of no use: {reason}")]
    BadAnswer {
        /// What was asked.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server does not say which authorization server it trusts.
    #[error(
        "the server wants authorization and does not say from whom: neither its refusal nor {tried} names an \
         authorization server. Its operator has to serve protected resource metadata (RFC 9728)"
    )]
    NoResourceMetadata {
        /// Where its metadata was looked for.
        tried: String,
    },
    /// The metadata is that of another server.
    #[error(
        "the server's metadata is for {resource:?}, but the server is {server}: an access token is not asked for"
    )]
    OtherResource {
        /// The server.
        server: String,
        /// What the metadata is for.
        resource: String,
    },
    /// The authorization server does not say how it is used.
    #[error(
        "the authorization server {issuer} has no metadata (RFC 8414 or OpenID Connect Discovery) at {tried}"
    )]
    NoIssuerMetadata {
        /// The authorization server.
        issuer: String,
        /// Where its metadata was looked for.
        tried: String,
    },
    /// The metadata is that of another authorization server.
    #[error(
        "the metadata of the authorization server {expected} says it is {found:?}: it is not used"
    )]
    OtherIssuer {
        /// The authorization server that was asked.
        expected: String,
        /// Who the metadata says it is.
        found: String,
    },
    /// The authorization server cannot do what is needed.
    #[error("the authorization server {issuer} does not offer {what}")]
    Unsupported {
        /// The authorization server.
        issuer: String,
        /// What is needed.
        what: &'static str,
    },
    /// This client is not known to the authorization server, and there is no way to make it known.
    #[error(
        "the authorization server {issuer} does not register clients by itself: register this client there and \
         give its id, or give the URL of a client metadata document if the authorization server takes them"
    )]
    NoClient {
        /// The authorization server.
        issuer: String,
    },
    /// The client was registered with another authorization server than the one the server now names.
    #[error(
        "the client is registered with {registered}, and the server now trusts {named}: register the client there. \
         Its credentials are not shown to another authorization server"
    )]
    ClientOfOther {
        /// Where the client is registered.
        registered: String,
        /// Whom the server names.
        named: String,
    },
    /// The authorization server refused something.
    #[error("the authorization server {issuer} refused {what}: {error}{}", described(.description))]
    Denied {
        /// The authorization server.
        issuer: String,
        /// What it refused.
        what: &'static str,
        /// Its code for why.
        error: String,
        /// Its words for why.
        description: Option<String>,
    },
    /// What came back from the browser is not the answer to what was asked.
    #[error(
        "what came back from the browser is not used: {0}. Try again; if it stays so, the answer may be forged"
    )]
    BadRedirect(String),
    /// The browser could not be used.
    #[error("the authorization was not given: {0}")]
    Browser(#[source] BoxError),
    /// The host gave no assertion.
    #[error("there is no assertion to show to the authorization server: {0}")]
    Assertion(#[source] BoxError),
    /// What the host keeps of earlier authorizations could not be had.
    #[error("what is kept of earlier authorizations cannot be read: {0}")]
    Grants(#[source] BoxError),
    /// The access token is of a kind that cannot be used.
    #[error(
        "the authorization server {issuer} gave an access token of the type {kind:?}: only Bearer and DPoP can be used"
    )]
    TokenType {
        /// The authorization server.
        issuer: String,
        /// The type.
        kind: String,
    },
    /// The server wants more than the authorization server gives.
    #[error(
        "the server still refuses after scope {scopes:?} was asked for: the authorization server did not give what \
         this needs, or the server never gives it to this client"
    )]
    Scopes {
        /// The scopes that were asked for.
        scopes: String,
    },
    /// Another request of this client was refused at the same time, and asked for authorization in vain.
    #[error("{0}")]
    Awaited(String),
    /// A key could not be used.
    #[error("signing failed: {0}")]
    Signing(#[source] BoxError),
}

impl AuthError {
    pub(super) fn scopes(scopes: &Scopes) -> Self {
        Self::Scopes {
            scopes: scopes.to_string(),
        }
    }

    /// What the authorization server said, made fit to be shown.
    pub(super) fn denied(
        issuer: &str,
        what: &'static str,
        error: &str,
        description: Option<&str>,
    ) -> Self {
        Self::Denied {
            issuer: issuer.to_owned(),
            what,
            error: quoted(error),
            description: description.map(quoted),
        }
    }
}

/// Somebody else's text, without what could move the cursor of a terminal, and not endless.
pub(super) fn quoted(text: &str) -> String {
    let visible = text.chars().filter(|c| !c.is_control());
    visible.take(QUOTE_MAX).collect()
}

fn described(description: &Option<String>) -> impl fmt::Display {
    description
        .as_ref()
        .map_or_else(String::new, |description| format!(" ({description})"))
}
