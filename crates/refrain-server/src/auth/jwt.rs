//! Access tokens of an authorization server: JWTs, verified with its public keys.

mod demands;
mod fetch;
mod jwk;
mod jws;
mod keys;

use super::web::{UrlError, web};
use super::{AuthFuture, Authenticator, Caller, Refused, Scopes, bearer_token};
use demands::Demands;
use fetch::Document;
use http::HeaderMap;
use jsonwebtoken::crypto::aws_lc;
use jwk::NoKey;
use jws::{Bad, Claims, Texts};
use keys::{Keys, Origin};
use refrain_core::Principal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often a file is looked at.
const FILE_LOOK: Duration = Duration::from_secs(1);
/// The age at which keys from elsewhere are fetched again.
const URL_AGE: Duration = Duration::from_secs(600);
/// The least time between two fetches.
const URL_INTERVAL: Duration = Duration::from_secs(5);
/// The largest leeway: ten years. More would go back before 1970.
const LARGEST_LEEWAY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Where the public keys of an authorization server are: its JWK set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwks {
    /// In a file. It is read again when it changes.
    File(PathBuf),
    /// At this `https` URL; plain `http` is accepted for this machine only. Redirects are not followed.
    Url(String),
}

/// Lets callers in who have an access token of one authorization server, made out for this server.
///
/// The token is a JWT in the `Authorization` header. Its signature (RSA, ECDSA or Ed25519; never an HMAC), its issuer,
/// its audience and its times are checked. The principal is made of the issuer and the subject, so a refreshed token
/// goes on with the calls of the one before it. The scopes are those of its `scope` or `scp` claim, and the caller ends
/// when the token does, leeway included.
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
    demands: Arc<Demands>,
    keys: Arc<Keys>,
}

/// Puts a [`JwtVerifier`] together.
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
    #[error("the issuer {issuer:?} is none: it is the URL that tokens have in their `iss` claim")]
    Issuer {
        /// The issuer.
        issuer: String,
    },
    /// An audience is empty: tokens for anybody would be accepted.
    #[error("an audience is empty: it is what tokens for this server have in their `aud` claim")]
    Audience,
    /// The keys cannot be fetched from this URL.
    #[error("the keys cannot be had from {url:?}: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        reason: UrlError,
    },
    /// The file cannot be read, or there is no usable key in it.
    #[error("the keys cannot be had from {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// What `main` shows when it returns this error.
impl std::fmt::Debug for JwtVerifierError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl JwtVerifier {
    /// A verifier of tokens that this issuer made out for this audience, which is the URL of the MCP endpoint as clients
    /// know it, unless the authorization server has another name for it.
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

    async fn verify(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        let token = bearer_token(headers)?;
        self.caller(token).await.map_err(|bad| {
            tracing::debug!(reason = %bad, "an access token was refused");
            match bad {
                Bad::Key(NoKey::NoKeys) => Refused::Unavailable {
                    reason: "the keys of the authorization server cannot be had; try again later"
                        .into(),
                    retry_after: self.keys.interval(),
                },
                bad => Refused::InvalidToken(bad.told().into()),
            }
        })
    }

    async fn caller(&self, token: &str) -> Result<Caller, Bad> {
        let header = jws::header(token)?;
        // Before a key is looked for: an unknown one is a reason to fetch the keys again.
        let validation = self.demands.of(header.alg)?;
        let key = self.keys.find(header.kid.as_deref(), header.alg).await?;
        let claims = self.demands.check(token, &key, validation)?;
        let subject = claims.sub.as_deref().filter(|sub| !sub.is_empty());
        let subject = subject.ok_or(Bad::Subject)?;
        Ok(Caller {
            // The issuer has no # in it, so the first one ends it: no two subjects are the same principal.
            principal: Principal::new(format!("{}#{subject}", claims.iss)),
            scopes: scopes(&claims),
            expires: self.demands.end(&claims),
        })
    }
}

/// The scopes of a token, in any of the forms that authorization servers write them.
fn scopes(claims: &Claims) -> Scopes {
    let texts = claims.scope.iter().chain(&claims.scp);
    texts
        .flat_map(Texts::as_slice)
        .flat_map(|text| text.split_ascii_whitespace())
        .collect()
}

impl JwtVerifierBuilder {
    /// Another audience that tokens may be made out for.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.audiences.push(audience.into());
        self
    }

    /// How far the clocks of the authorization server and this one may be apart, in whole seconds up to ten years. Default
    /// 30 seconds.
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// The age at which keys are fetched again, or a file is looked at again. Default ten minutes for a URL, a second
    /// for a file.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// The least time between two attempts to read the keys, however many tokens name unknown ones. Default five seconds
    /// for a URL, a second for a file.
    pub fn min_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Checks what was given, and reads the keys if they are in a file. Those at a URL are fetched for the first request.
    ///
    /// The crate `jsonwebtoken` has one provider of cryptography for the whole process, and this makes it the one of
    /// `aws-lc-rs` unless there is one already. A program that wants another installs it before.
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
            Jwks::Url(url) => match web(&url).and_then(Document::new) {
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
        // Another crate of the program may have switched on a second implementation; without a choice there would be a
        // panic. Whoever has chosen already is left alone.
        let _ = aws_lc::DEFAULT_PROVIDER.install_default();
        let leeway = self.leeway.min(LARGEST_LEEWAY).as_secs();
        Ok(JwtVerifier {
            demands: Arc::new(Demands::new(issuer, self.audiences, leeway)),
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
            .field("issuer", &self.demands.issuer)
            .field("audiences", &self.demands.audiences)
            .finish_non_exhaustive()
    }
}
