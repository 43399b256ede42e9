//! Access tokens of an authorization server: JWTs, verified with its public keys.

mod fetch;
mod jwk;
mod keys;
mod validation;

use super::url::{SafeUrl, UrlError};
use super::{AuthFuture, AuthRejection, Authenticator, Caller, bearer_token};
use fetch::Document;
use http::HeaderMap;
use jsonwebtoken::crypto::aws_lc;
use keys::{Keys, Origin};
use refrain_core::Principal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use validation::{Requirements, TokenError};

/// How often a file is read.
const FILE_LOOK: Duration = Duration::from_secs(1);
/// The age at which keys are fetched again.
const URL_AGE: Duration = Duration::from_secs(600);
/// The least time between two fetches.
const URL_INTERVAL: Duration = Duration::from_secs(5);
/// Ten years: more could precede 1970.
const LARGEST_LEEWAY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Where the public keys of an authorization server are: its JWK set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwks {
    /// A file, which is read again every second while there are requests.
    File(PathBuf),
    /// An `https` URL, or plain `http` on this machine. Redirects are not followed.
    Url(String),
}

/// Authenticates callers by access tokens that one authorization server issues for this server.
///
/// The token is a JWT in the `Authorization` header. Its signature (RSA, ECDSA or Ed25519; never an HMAC), issuer,
/// audience and times are checked. The principal consists of issuer and subject, so that a refreshed token continues the
/// same calls. The scopes are those of the `scope` or `scp` claim. Access ends when the token expires, leeway included.
///
/// ```
/// # use std::time::Duration;
/// use refrain_server::{Jwks, JwtVerifier, ResourceMetadata, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (issuer, resource) = ("https://login.example.com", "https://mcp.example.com/mcp");
/// # let directory = std::env::temp_dir().join(format!("refrain-jwks-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// # let file = directory.join("jwks.json");
/// # std::fs::write(&file, r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#)?;
/// let verifier = JwtVerifier::builder(issuer, resource, Jwks::File(file))
///     .leeway(Duration::from_secs(10))
///     .build()?;
/// let server = Server::builder("files", "1.0")
///     .authenticator(verifier)
///     .resource_metadata(ResourceMetadata::new(resource, [issuer]))
///     .scopes(["files:read"])
///     .build()?;
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JwtVerifier {
    requirements: Arc<Requirements>,
    keys: Arc<Keys>,
}

/// Builds a [`JwtVerifier`].
#[derive(Clone, Debug)]
pub struct JwtVerifierBuilder {
    issuer: String,
    audiences: Vec<String>,
    jwks: Jwks,
    leeway: Duration,
    max_age: Option<Duration>,
    interval: Option<Duration>,
}

/// Why a [`JwtVerifier`] cannot be built.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JwtVerifierError {
    /// The issuer is empty, or has white space or a `#` in it.
    #[error("invalid issuer {issuer:?}: expected the URL in the tokens' `iss` claim")]
    Issuer {
        /// The issuer.
        issuer: String,
    },
    /// An audience is empty.
    #[error("empty audience: expected the `aud` claim of the tokens for this server")]
    Audience,
    /// The keys cannot be fetched from this URL.
    #[error("could not fetch keys from {url:?}: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// Why it is invalid.
        reason: UrlError,
    },
    /// The file cannot be read, or there is no usable key in it.
    #[error("could not read keys from {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What failed.
        reason: String,
    },
}

/// `main` prints this when it returns the error.
impl std::fmt::Debug for JwtVerifierError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl JwtVerifier {
    /// A verifier of tokens of this issuer for this audience. The audience is the URL of the MCP endpoint, unless the
    /// authorization server has another name for it.
    pub fn builder(
        issuer: impl Into<String>,
        audience: impl Into<String>,
        jwks: Jwks,
    ) -> JwtVerifierBuilder {
        JwtVerifierBuilder {
            issuer: issuer.into(),
            audiences: vec![audience.into()],
            jwks,
            leeway: Duration::from_secs(30),
            max_age: None,
            interval: None,
        }
    }

    async fn verify(&self, headers: &HeaderMap) -> Result<Caller, AuthRejection> {
        let token = bearer_token(headers)?;
        self.caller(token).await.map_err(|bad| {
            tracing::debug!(reason = %bad, "an access token was refused");
            match bad {
                TokenError::NoKeys => AuthRejection::Unavailable {
                    reason: "the keys of the authorization server cannot be had; try again later"
                        .into(),
                    retry_after: self.keys.interval,
                },
                bad => AuthRejection::InvalidToken(bad.public().into()),
            }
        })
    }

    async fn caller(&self, token: &str) -> Result<Caller, TokenError> {
        let header = validation::header(token)?;
        // Before the key is looked up, because an unknown key makes the keys be fetched again.
        let validation = self.requirements.validation(header.alg)?;
        let key = self.keys.find(header.kid.as_deref(), header.alg).await?;
        let claims = self.requirements.check(token, &key, validation)?;
        let subject = claims.sub.as_deref().filter(|sub| !sub.is_empty());
        let subject = subject.ok_or(TokenError::Subject)?;
        Ok(Caller {
            // The issuer contains no #, so that no two subjects have the same principal.
            principal: Principal::new(format!("{}#{subject}", claims.iss)),
            scopes: claims.scopes().collect(),
            expires: self.requirements.expiry(&claims),
        })
    }
}

impl JwtVerifierBuilder {
    /// Another accepted audience.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.audiences.push(audience.into());
        self
    }

    /// How far the clocks of both servers may be apart, in whole seconds up to ten years. Default 30 seconds.
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// The age at which keys are fetched or read again. Default ten minutes for a URL, a second for a file.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// The least time between two attempts to read the keys. Default five seconds for a URL, a second for a file.
    pub fn min_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Checks the settings, and reads the keys if they are in a file. Keys at a URL are fetched for the first request.
    ///
    /// Makes `aws-lc-rs` the cryptography provider of the crate `jsonwebtoken` in this process, unless it already has one.
    pub fn build(self) -> Result<JwtVerifier, JwtVerifierError> {
        let Self { issuer, .. } = self;
        if issuer.is_empty() || issuer.contains(|c: char| c == '#' || c.is_whitespace()) {
            return Err(JwtVerifierError::Issuer { issuer });
        }
        if self.audiences.iter().any(String::is_empty) {
            return Err(JwtVerifierError::Audience);
        }
        let (origin, max_age, interval) = match self.jwks.clone() {
            Jwks::File(path) => (Origin::File(path), FILE_LOOK, FILE_LOOK),
            Jwks::Url(url) => match SafeUrl::parse(&url).and_then(Document::new) {
                Ok(document) => (Origin::Url(Box::new(document)), URL_AGE, URL_INTERVAL),
                Err(reason) => return Err(JwtVerifierError::Url { url, reason }),
            },
        };
        let max_age = self.max_age.unwrap_or(max_age);
        let keys = Keys::new(origin, max_age, self.interval.unwrap_or(interval));
        if let (Err(error), Jwks::File(path)) = (keys.read_file(), self.jwks) {
            let reason = error.to_string();
            return Err(JwtVerifierError::File { path, reason });
        }
        // Without a choice, the library panics if another crate enables a second provider.
        let _ = aws_lc::DEFAULT_PROVIDER.install_default();
        let leeway = self.leeway.min(LARGEST_LEEWAY).as_secs();
        Ok(JwtVerifier {
            requirements: Arc::new(Requirements::new(issuer, self.audiences, leeway)),
            keys: Arc::new(keys),
        })
    }
}

impl Authenticator for JwtVerifier {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a> {
        Box::pin(self.verify(headers))
    }
}

impl std::fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JwtVerifier")
            .field("issuer", &self.requirements.issuer)
            .field("audiences", &self.requirements.audiences)
            .finish_non_exhaustive()
    }
}
