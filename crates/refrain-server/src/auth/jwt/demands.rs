//! What a token must say to be accepted, made ready once.

use super::jwk::Key;
use super::jws::{Bad, Claims};
use jsonwebtoken::{Algorithm, AlgorithmFamily, Validation, decode};
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The algorithms that are accepted: each has a public key.
const FAMILIES: [AlgorithmFamily; 3] = [
    AlgorithmFamily::Rsa,
    AlgorithmFamily::Ec,
    AlgorithmFamily::Ed,
];

/// What a token must say.
pub(super) struct Demands {
    pub(super) issuer: String,
    pub(super) audiences: Vec<String>,
    leeway: u64,
    /// What the library checks: all but the audience, and that no other algorithm is used.
    validations: HashMap<Algorithm, Validation>,
}

impl Demands {
    pub(super) fn new(issuer: String, audiences: Vec<String>, leeway: u64) -> Self {
        let ready = |algorithm: &Algorithm| {
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
            validations: algorithms.map(ready).collect(),
            issuer,
            audiences,
            leeway,
        }
    }

    /// What a token of this algorithm must say. There is nothing for those that need a secret.
    pub(super) fn of(&self, algorithm: Algorithm) -> Result<&Validation, Bad> {
        self.validations.get(&algorithm).ok_or(Bad::Secret)
    }

    /// Checks the signature, and what the token says.
    pub(super) fn check(
        &self,
        token: &str,
        key: &Key,
        validation: &Validation,
    ) -> Result<Claims, Bad> {
        let claims = decode::<Claims>(token, &key.verifying, validation)?.claims;
        let ours = |theirs: &String| self.audiences.iter().any(|ours| is_same(ours, theirs));
        if !claims.aud.as_slice().iter().any(ours) {
            return Err(Bad::Audience);
        }
        Ok(claims)
    }

    /// When a token stops being accepted. `None`: later than a clock can say.
    pub(super) fn end(&self, claims: &Claims) -> Option<SystemTime> {
        let expires = Duration::try_from_secs_f64(claims.exp).ok()?;
        let end = expires.checked_add(Duration::from_secs(self.leeway))?;
        UNIX_EPOCH.checked_add(end)
    }
}

/// Are these names of one audience? The scheme and the host of a URL may be in capitals, as in RFC 3986.
fn is_same(ours: &str, theirs: &str) -> bool {
    match (split(ours), split(theirs)) {
        (Some((ours, path)), Some((theirs, other))) => {
            ours.eq_ignore_ascii_case(theirs) && path == other
        }
        _ => ours == theirs,
    }
}

/// The scheme and the host of a URL, with its port, and what follows them.
fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A name or a password before the host is not without case.
    if !scheme.chars().all(plain) || rest[..host].contains('@') {
        return None;
    }
    Some(url.split_at(scheme.len() + "://".len() + host))
}
