//! Access tokens of an authorization server: JWTs verified with its public keys.

mod dpop;
mod fetch;
mod jwk;
mod keys;
mod validation;

use super::url::{HttpUrlError, SafeUrl};
use super::{AuthFuture, AuthRejection, Authenticator, Caller, access_token, single_header};
use crate::builder::debug_as_display;
use dpop::{ProofError, ProofTarget, ProofVerifier};
use fetch::JwksDocument;
use http::{HeaderMap, HeaderName, Method};
use jsonwebtoken::crypto::aws_lc;
use keys::{KeyCache, KeyReadError, KeySource};
use refrain_core::Principal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use validation::{Requirements, TokenClaims, TokenError};

const PROOF_HEADER: HeaderName = HeaderName::from_static("dpop");
const FILE_READ_INTERVAL: Duration = Duration::from_secs(1);
const URL_KEYS_MAX_AGE: Duration = Duration::from_secs(600);
const URL_MIN_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum leeway, ten years. Subtracting more could yield a time before 1970.
const MAX_LEEWAY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The location of an authorization server's JWK set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwks {
    /// A file. While requests arrive, it is read again every second.
    File(PathBuf),
    /// An `https` URL, or `http` with a loopback host. Redirects are not followed.
    Url(String),
}

/// Authenticates callers by access tokens of one authorization server.
///
/// The token is a JWT in the `Authorization` header. The verifier checks its signature (RSA, ECDSA or Ed25519, never
/// HMAC), issuer, audience and times. The principal is issuer and subject, so a refreshed token continues the same calls.
/// The scopes come from the `scope` or `scp` claim. Access ends when the token expires, plus the leeway.
///
/// A token that is bound to a key (DPoP, RFC 9449) is accepted only with a proof for the request.
///
/// ```
/// # use std::time::Duration;
/// use refrain::auth::{Jwks, JwtVerifier, ResourceMetadata};
/// use refrain::server::Server;
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
    keys: Arc<KeyCache>,
    /// `None` if the resource is not a URL.
    proofs: Option<Arc<ProofVerifier>>,
    requires_dpop: bool,
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
    resource: Option<String>,
    requires_dpop: bool,
}

/// Why a [`JwtVerifier`] cannot be built.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JwtVerifierError {
    /// The issuer is empty, or contains white space or `#`.
    #[error("invalid issuer {issuer:?}: expected the URL in the tokens' `iss` claim")]
    Issuer {
        /// The issuer.
        issuer: String,
    },
    /// An audience is empty.
    #[error("empty audience: expected the `aud` claim of the tokens for this server")]
    Audience,
    /// DPoP is required, and the resource is not a URL.
    #[error(
        "invalid resource {resource:?}: DPoP needs the public http or https URL of the endpoint"
    )]
    Resource {
        /// The resource.
        resource: String,
    },
    /// The URL of the keys is invalid.
    #[error("invalid JWKS URL {url:?}: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// Why it is invalid.
        reason: HttpUrlError,
    },
    /// The file cannot be read, or contains no usable key.
    #[error("failed to read keys from {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
}

debug_as_display!(JwtVerifierError);

impl JwtVerifier {
    /// A verifier for tokens of this issuer. The audience is usually the URL of the MCP endpoint.
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
            resource: None,
            requires_dpop: false,
        }
    }

    async fn verify(&self, method: &Method, headers: &HeaderMap) -> Result<Caller, AuthRejection> {
        let (scheme, token) = access_token(headers, &["bearer", "dpop"])?;
        let proof = (scheme == "dpop").then(|| {
            let header = single_header(headers, &PROOF_HEADER).ok().flatten();
            let proof = header.and_then(|header| header.to_str().ok());
            proof.ok_or(ProofError::Missing)
        });
        self.caller(method, token, proof).await.map_err(|error| {
            tracing::debug!(%error, "access token rejected");
            match error {
                TokenError::NoKeys => AuthRejection::Unavailable {
                    reason: "the keys of the authorization server are unavailable: try again later"
                        .into(),
                    retry_after: self.keys.interval,
                },
                TokenError::Proof(error @ ProofError::TooMany) => AuthRejection::Unavailable {
                    reason: error.to_string().into(),
                    retry_after: Duration::from_secs(1),
                },
                TokenError::Proof(error) => AuthRejection::InvalidProof(error.to_string().into()),
                error => AuthRejection::InvalidToken(error.public_text().into()),
            }
        })
    }

    /// The caller with this token. `proof` is `None` if the token was sent with the scheme `Bearer`.
    async fn caller(
        &self,
        method: &Method,
        token: &str,
        proof: Option<Result<&str, ProofError>>,
    ) -> Result<Caller, TokenError> {
        let header = validation::parse_header(token)?;
        // Before the key lookup, because an unknown key triggers a fetch.
        let validation = self.requirements.validation(header.alg)?;
        let key = self.keys.find(header.kid.as_deref(), header.alg).await?;
        let claims = self.requirements.check(token, &key, validation)?;
        let subject = claims.sub.as_deref().filter(|sub| !sub.is_empty());
        let subject = subject.ok_or(TokenError::Subject)?;
        // The issuer contains no `#`, so different subjects have different principals.
        let principal = Principal::new(format!("{}#{subject}", claims.iss));
        self.check_binding(method, token, &claims, &principal, proof)?;
        Ok(Caller {
            scopes: claims.scopes().collect(),
            expires: self.requirements.expiry(&claims),
            ..principal.into()
        })
    }

    /// Checks that a bound token comes with a proof, and an unbound one without.
    fn check_binding(
        &self,
        method: &Method,
        token: &str,
        claims: &TokenClaims,
        principal: &Principal,
        proof: Option<Result<&str, ProofError>>,
    ) -> Result<(), TokenError> {
        let (thumbprint, proof) = match (claims.thumbprint(), proof) {
            (None, None) if !self.requires_dpop => return Ok(()),
            (None, _) => return Err(TokenError::Unbound),
            (Some(_), None) => return Err(TokenError::Bound),
            (Some(thumbprint), Some(proof)) => (thumbprint, proof),
        };
        let target = ProofTarget {
            method,
            token,
            thumbprint,
            principal,
        };
        let proofs = self.proofs.as_ref().ok_or(ProofError::Url)?;
        Ok(proofs.check(proof?, &target)?)
    }
}

impl JwtVerifierBuilder {
    /// Accepts another audience, too.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.audiences.push(audience.into());
        self
    }

    /// The tolerated clock difference, in whole seconds up to ten years. Default: 30 seconds.
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// The age at which keys are read again. Default: ten minutes for a URL, one second for a file.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// The minimum time between two attempts to read the keys. Default: five seconds for a URL, one second for a file.
    pub fn min_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// The public URL of the endpoint, which DPoP proofs name. Default: the first audience.
    pub fn resource(mut self, url: impl Into<String>) -> Self {
        self.resource = Some(url.into());
        self
    }

    /// Accepts only tokens that are bound to a key (DPoP). By default, unbound tokens are accepted, too.
    pub fn require_dpop(mut self) -> Self {
        self.requires_dpop = true;
        self
    }

    /// Checks the settings and reads the key file. Keys at a URL are fetched with the first request.
    ///
    /// Installs `aws-lc-rs` as the process-wide provider of the crate `jsonwebtoken`, unless it already has one.
    pub fn build(self) -> Result<JwtVerifier, JwtVerifierError> {
        let Self { issuer, .. } = self;
        if issuer.is_empty() || issuer.contains(|c: char| c == '#' || c.is_whitespace()) {
            return Err(JwtVerifierError::Issuer { issuer });
        }
        if self.audiences.iter().any(String::is_empty) {
            return Err(JwtVerifierError::Audience);
        }
        let (source, max_age, interval) = match self.jwks.clone() {
            Jwks::File(path) => (
                KeySource::File(path),
                FILE_READ_INTERVAL,
                FILE_READ_INTERVAL,
            ),
            Jwks::Url(url) => match SafeUrl::parse(&url).and_then(JwksDocument::new) {
                Ok(document) => (
                    KeySource::Url(Box::new(document)),
                    URL_KEYS_MAX_AGE,
                    URL_MIN_INTERVAL,
                ),
                Err(reason) => return Err(JwtVerifierError::Url { url, reason }),
            },
        };
        let max_age = self.max_age.unwrap_or(max_age);
        let keys = KeyCache::new(source, max_age, self.interval.unwrap_or(interval));
        if let (Err(error), Jwks::File(path)) = (keys.read_file(), self.jwks) {
            let reason = match error {
                KeyReadError::File { error, .. } => error.to_string(),
                error => error.to_string(),
            };
            return Err(JwtVerifierError::File { path, reason });
        }
        // Otherwise the library panics if another crate enables a second provider.
        let _ = aws_lc::DEFAULT_PROVIDER.install_default();
        let leeway = self.leeway.min(MAX_LEEWAY).as_secs();
        let resource = self.resource.unwrap_or_else(|| self.audiences[0].clone());
        let proofs = ProofVerifier::new(&resource, leeway).map(Arc::new);
        if self.requires_dpop && proofs.is_none() {
            return Err(JwtVerifierError::Resource { resource });
        }
        Ok(JwtVerifier {
            requirements: Arc::new(Requirements::new(issuer, self.audiences, leeway)),
            keys: Arc::new(keys),
            proofs,
            requires_dpop: self.requires_dpop,
        })
    }
}

impl Authenticator for JwtVerifier {
    /// The caller of a POST with these headers.
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap) -> AuthFuture<'a> {
        self.authenticate_request(&Method::POST, headers)
    }

    fn authenticate_request<'a>(
        &'a self,
        method: &'a Method,
        headers: &'a HeaderMap,
    ) -> AuthFuture<'a> {
        Box::pin(self.verify(method, headers))
    }

    fn requires_dpop(&self) -> bool {
        self.requires_dpop
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
