//! Checks of one token (RFC 7515, RFC 7519): header, signature and claims.

use super::jwk::Key;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, AlgorithmFamily, Header, Validation, decode, decode_header};
use serde::Deserialize;
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest token that is parsed.
const LONGEST: usize = 16 * 1024;
/// The accepted algorithms, all with public keys.
const FAMILIES: [AlgorithmFamily; 3] = [
    AlgorithmFamily::Rsa,
    AlgorithmFamily::Ec,
    AlgorithmFamily::Ed,
];

/// Why a token is rejected, for the log. Clients see [`public`](Self::public).
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    #[error("it is longer than {LONGEST} characters")]
    TooLong,
    #[error("its type {0:?} is not that of an access token")]
    Type(String),
    #[error("it demands extensions that are not known here")]
    Critical,
    #[error("it is signed with a secret, which is not accepted")]
    Secret,
    #[error("there are no keys to verify it with")]
    NoKeys,
    #[error("no key fits its key id and algorithm")]
    UnknownKey,
    #[error("several keys fit its key id and algorithm")]
    AmbiguousKey,
    // Escaped: it may quote the token, and a line of the log must stay one.
    #[error("it is not valid: {:?}", .0.kind())]
    Invalid(#[from] Error),
    #[error("it is for another audience")]
    Audience,
    #[error("it names no subject")]
    Subject,
}

impl TokenError {
    /// The text for the client: enough to act on, and nothing about the keys.
    pub(super) fn public(&self) -> &'static str {
        let kind = match self {
            Self::Invalid(error) => error.kind(),
            Self::Audience => return "the token is not for this server",
            Self::Subject => return "the token names no subject",
            _ => return "the token cannot be verified",
        };
        match kind {
            ErrorKind::ExpiredSignature => "the token has expired",
            ErrorKind::ImmatureSignature => "the token is not valid yet",
            ErrorKind::InvalidIssuer => "the token is of another issuer",
            ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => {
                "the token is not for this server"
            }
            _ => "the token cannot be verified",
        }
    }
}

/// The header of a token, checked before a key is looked up.
pub(super) fn header(token: &str) -> Result<Header, TokenError> {
    if token.len() > LONGEST {
        return Err(TokenError::TooLong);
    }
    let header = decode_header(token)?;
    // Tokens for other purposes, such as a logout, have another type.
    let types = ["JWT", "at+jwt", "application/at+jwt"];
    if let Some(typ) = &header.typ
        && !types.iter().any(|known| known.eq_ignore_ascii_case(typ))
    {
        return Err(TokenError::Type(typ.clone()));
    }
    match header.crit {
        Some(_) => Err(TokenError::Critical),
        None => Ok(header),
    }
}

/// The used claims of a token.
#[derive(Deserialize)]
pub(super) struct Claims {
    /// A string: the library would accept a list of issuers.
    pub(super) iss: String,
    pub(super) sub: Option<String>,
    #[serde(default)]
    aud: OneOrMany,
    /// Seconds since 1970.
    exp: f64,
    scope: Option<OneOrMany>,
    scp: Option<OneOrMany>,
}

impl Claims {
    /// The scopes, in any of the forms that authorization servers write them.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &str> {
        let texts = self.scope.iter().chain(&self.scp);
        let texts = texts.flat_map(OneOrMany::as_slice);
        texts.flat_map(|text| text.split_ascii_whitespace())
    }
}

/// A string, or a list of them.
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
    /// The checks of the library for each algorithm: all but the audience.
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
            // At the second of `exp` a token has expired.
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

    /// The checks for this algorithm, unless it needs a secret.
    pub(super) fn validation(&self, algorithm: Algorithm) -> Result<&Validation, TokenError> {
        self.validations.get(&algorithm).ok_or(TokenError::Secret)
    }

    pub(super) fn check(
        &self,
        token: &str,
        key: &Key,
        validation: &Validation,
    ) -> Result<Claims, TokenError> {
        let claims = decode::<Claims>(token, &key.verifying, validation)?.claims;
        let ours = |theirs: &String| self.audiences.iter().any(|ours| is_same(ours, theirs));
        match claims.aud.as_slice().iter().any(ours) {
            true => Ok(claims),
            false => Err(TokenError::Audience),
        }
    }

    /// When a token expires, leeway included. `None`: later than a clock can show.
    pub(super) fn expiry(&self, claims: &Claims) -> Option<SystemTime> {
        let expires = Duration::try_from_secs_f64(claims.exp).ok()?;
        let end = expires.checked_add(Duration::from_secs(self.leeway))?;
        UNIX_EPOCH.checked_add(end)
    }
}

/// Whether two audiences are equal. Scheme and host of a URL are compared without case, as in RFC 3986.
fn is_same(ours: &str, theirs: &str) -> bool {
    match (split(ours), split(theirs)) {
        (Some((ours, path)), Some((theirs, other))) => {
            ours.eq_ignore_ascii_case(theirs) && path == other
        }
        _ => ours == theirs,
    }
}

/// Splits a URL after its host and port.
fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A user name or a password before the host is case-sensitive.
    if !scheme.chars().all(plain) || rest[..host].contains('@') {
        return None;
    }
    Some(url.split_at(scheme.len() + "://".len() + host))
}
