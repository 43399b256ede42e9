//! Validation of a token (RFC 7515, RFC 7519): header, signature and claims.

use super::dpop::ProofError;
use super::jwk::VerificationKey;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, AlgorithmFamily, Header, Validation, decode, decode_header};
use serde::Deserialize;
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The maximum length of a token.
const MAX_BYTES: usize = 16 * 1024;
/// The accepted families of algorithms. All are asymmetric.
const FAMILIES: [AlgorithmFamily; 3] = [
    AlgorithmFamily::Rsa,
    AlgorithmFamily::Ec,
    AlgorithmFamily::Ed,
];

/// Why a token is rejected, for the log. Clients see [`public_text`](Self::public_text).
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    #[error("longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("type {0:?} is not an access token")]
    Type(String),
    #[error("unsupported critical extensions")]
    Critical,
    #[error("symmetric signature algorithms are not accepted")]
    Symmetric,
    #[error("no keys available")]
    NoKeys,
    #[error("no key matches its key id and algorithm")]
    UnknownKey,
    #[error("several keys match its key id and algorithm")]
    AmbiguousKey,
    // Debug format, because the error may quote the token: escapes keep the log entry on one line.
    #[error("invalid: {:?}", .0.kind())]
    Invalid(#[from] Error),
    #[error("for another audience")]
    Audience,
    #[error("missing subject")]
    Subject,
    #[error("bound to a key, but sent without a proof")]
    Bound,
    #[error("not bound to a key")]
    Unbound,
    #[error("{0}")]
    Proof(#[from] ProofError),
}

impl TokenError {
    /// The text for the client. Reveals nothing about the keys.
    pub(super) fn public_text(&self) -> &'static str {
        let kind = match self {
            Self::Invalid(error) => error.kind(),
            Self::Audience => return "the token is not for this server",
            Self::Subject => return "the token has no `sub` claim",
            Self::Bound => {
                return "the token is bound to a key: send it with the scheme DPoP and a proof";
            }
            Self::Unbound => return "the token is not bound to a key (DPoP)",
            _ => return "the token cannot be verified",
        };
        match kind {
            ErrorKind::ExpiredSignature => "the token has expired",
            ErrorKind::ImmatureSignature => "the token is not valid yet",
            ErrorKind::InvalidIssuer => "the token is from another issuer",
            ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => {
                "the token is not for this server"
            }
            _ => "the token cannot be verified",
        }
    }
}

pub(super) fn parse_header(token: &str) -> Result<Header, TokenError> {
    if token.len() > MAX_BYTES {
        return Err(TokenError::TooLong);
    }
    let header = decode_header(token)?;
    // Tokens for other purposes, such as logout tokens, have another type.
    let types = ["JWT", "at+jwt", "application/at+jwt"];
    if let Some(typ) = &header.typ
        && !types
            .iter()
            .any(|accepted| accepted.eq_ignore_ascii_case(typ))
    {
        return Err(TokenError::Type(typ.clone()));
    }
    match header.crit {
        Some(_) => Err(TokenError::Critical),
        None => Ok(header),
    }
}

#[derive(Deserialize)]
pub(super) struct TokenClaims {
    /// A single string: the library would also accept a list.
    pub(super) iss: String,
    pub(super) sub: Option<String>,
    #[serde(default)]
    aud: OneOrMany,
    /// Seconds since 1970.
    exp: f64,
    scope: Option<OneOrMany>,
    scp: Option<OneOrMany>,
    cnf: Option<Confirmation>,
}

/// The key that a token is bound to (RFC 7800).
#[derive(Deserialize)]
struct Confirmation {
    jkt: Option<String>,
}

impl TokenClaims {
    /// The thumbprint of the DPoP key that the token is bound to.
    pub(super) fn thumbprint(&self) -> Option<&str> {
        self.cnf.as_ref()?.jkt.as_deref()
    }

    /// The scopes, in any of the forms that authorization servers use.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &str> {
        let texts = self.scope.iter().chain(&self.scp);
        let texts = texts.flat_map(OneOrMany::as_slice);
        texts.flat_map(|text| text.split_ascii_whitespace())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl OneOrMany {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}

pub(super) struct Requirements {
    pub(super) issuer: String,
    pub(super) audiences: Vec<String>,
    leeway: u64,
    /// The library's settings for each algorithm. They do not check the audience.
    validations: HashMap<Algorithm, Validation>,
}

impl Requirements {
    pub(super) fn new(issuer: String, audiences: Vec<String>, leeway: u64) -> Self {
        let validation = |algorithm: &Algorithm| {
            let mut validation = Validation::new(*algorithm);
            validation.set_issuer(&[&issuer]);
            validation.validate_aud = false;
            validation.set_required_spec_claims(&["exp", "iss", "aud"]);
            validation.validate_nbf = true;
            validation.leeway = leeway;
            // A token has expired at the time in `exp`, not only after it.
            validation.reject_tokens_expiring_in_less_than = 1;
            (*algorithm, validation)
        };
        let algorithms = FAMILIES.iter().flat_map(AlgorithmFamily::algorithms);
        Self {
            validations: algorithms.map(validation).collect(),
            issuer,
            audiences,
            leeway,
        }
    }

    /// The settings for this algorithm. Fails for symmetric algorithms.
    pub(super) fn validation(&self, algorithm: Algorithm) -> Result<&Validation, TokenError> {
        self.validations
            .get(&algorithm)
            .ok_or(TokenError::Symmetric)
    }

    pub(super) fn check(
        &self,
        token: &str,
        key: &VerificationKey,
        validation: &Validation,
    ) -> Result<TokenClaims, TokenError> {
        let claims = decode::<TokenClaims>(token, &key.verifying, validation)?.claims;
        let is_ours = |theirs: &String| {
            let mut audiences = self.audiences.iter();
            audiences.any(|ours| is_same_audience(ours, theirs))
        };
        match claims.aud.as_slice().iter().any(is_ours) {
            true => Ok(claims),
            false => Err(TokenError::Audience),
        }
    }

    /// When a token expires, including the leeway. `None` if that is beyond the range of `SystemTime`.
    pub(super) fn expiry(&self, claims: &TokenClaims) -> Option<SystemTime> {
        let expires = Duration::try_from_secs_f64(claims.exp).ok()?;
        let end = expires.checked_add(Duration::from_secs(self.leeway))?;
        UNIX_EPOCH.checked_add(end)
    }
}

/// Whether two audiences are equal. Scheme and host of a URL are case-insensitive (RFC 3986).
fn is_same_audience(ours: &str, theirs: &str) -> bool {
    match (split_authority(ours), split_authority(theirs)) {
        (Some((ours, our_path)), Some((theirs, their_path))) => {
            ours.eq_ignore_ascii_case(theirs) && our_path == their_path
        }
        _ => ours == theirs,
    }
}

fn split_authority(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let is_in_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // User name and password are case-sensitive.
    if !scheme.chars().all(is_in_scheme) || rest[..host].contains('@') {
        return None;
    }
    Some(url.split_at(scheme.len() + "://".len() + host))
}
