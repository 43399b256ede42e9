//! DPoP (RFC 9449): access tokens that are bound to a key of the client, and the proof in each request.
//!
//! A proof is valid for one request: each instance remembers its `jti` until the proof expires.

use super::jwk::VerificationKey;
use crate::auth::challenge::DPOP_ALGORITHMS;
use crate::auth::sha256;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, Uri};
use jsonwebtoken::jwk::{Jwk, ThumbprintHash};
use jsonwebtoken::{Algorithm, Validation, decode};
use parking_lot::Mutex;
use refrain_core::Principal;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The maximum length of a proof.
const MAX_BYTES: usize = 8 * 1024;
/// The maximum length of the `jti` of a proof.
const MAX_JTI_BYTES: usize = 1024;
/// How long a proof is valid, in seconds, without the leeway.
const VALID_FOR: u64 = 60;
/// The maximum number of proofs that are remembered of one period (see [`SeenProofs`]), in total.
const MAX_PROOFS: usize = 1 << 19;
/// The maximum number of proofs that are remembered of one period for one principal.
const MAX_PROOFS_EACH: usize = 1 << 16;
/// The members of a private or secret JWK.
const PRIVATE_MEMBERS: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/// Why a proof is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProofError {
    #[error("missing or repeated DPoP header")]
    Missing,
    #[error("malformed DPoP proof")]
    Malformed,
    #[error("the DPoP proof has the wrong `typ`, or a `crit` member")]
    Type,
    #[error("the DPoP proof has an unsupported `alg`")]
    Algorithm,
    #[error("the DPoP proof has no usable public key in `jwk`")]
    Key,
    #[error("the signature of the DPoP proof is invalid")]
    Signature,
    #[error("the DPoP proof is for another HTTP method")]
    HttpMethod,
    #[error("the DPoP proof is for another URL")]
    Url,
    #[error("the DPoP proof has expired or is not valid yet")]
    Time,
    #[error("the DPoP proof is for another access token")]
    Token,
    #[error("the access token is bound to another key")]
    Binding,
    #[error("the DPoP proof was used before")]
    Replayed,
    #[error("too many requests with DPoP proofs: try again later")]
    TooMany,
}

#[derive(Deserialize)]
struct ProofHeader {
    typ: Option<String>,
    alg: String,
    jwk: Value,
    crit: Option<Value>,
}

#[derive(Deserialize)]
struct ProofClaims {
    jti: String,
    htm: String,
    htu: String,
    /// Seconds since 1970.
    iat: f64,
    ath: String,
}

/// The request that a proof must be for.
pub(super) struct ProofTarget<'a> {
    pub(super) method: &'a Method,
    pub(super) token: &'a str,
    /// The thumbprint of the key that the token is bound to.
    pub(super) thumbprint: &'a str,
    pub(super) principal: &'a Principal,
}

pub(super) struct ProofVerifier {
    /// The public URL of the endpoint.
    url: NormalUrl,
    leeway: u64,
    seen: Mutex<SeenProofs>,
}

impl ProofVerifier {
    /// A verifier for the endpoint at this URL. `None` if it is not an HTTP URL.
    pub(super) fn new(resource: &str, leeway: u64) -> Option<Self> {
        Some(Self {
            url: NormalUrl::parse(resource)?,
            leeway,
            seen: Mutex::default(),
        })
    }

    /// Checks a proof and remembers it.
    pub(super) fn check(&self, proof: &str, target: &ProofTarget<'_>) -> Result<(), ProofError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.check_at(proof, target, now.unwrap_or_default())
    }

    fn check_at(
        &self,
        proof: &str,
        target: &ProofTarget<'_>,
        now: Duration,
    ) -> Result<(), ProofError> {
        let (claims, thumbprint) = verify(proof)?;
        if thumbprint != target.thumbprint {
            return Err(ProofError::Binding);
        }
        if claims.ath != URL_SAFE_NO_PAD.encode(sha256(target.token.as_bytes())) {
            return Err(ProofError::Token);
        }
        if claims.htm != target.method.as_str() {
            return Err(ProofError::HttpMethod);
        }
        if NormalUrl::parse(&claims.htu).as_ref() != Some(&self.url) {
            return Err(ProofError::Url);
        }
        let age = now.as_secs_f64() - claims.iat;
        let (leeway, valid_for) = (self.leeway as f64, VALID_FOR as f64);
        if !(-leeway..=valid_for + leeway).contains(&age) {
            return Err(ProofError::Time);
        }
        if claims.jti.is_empty() || claims.jti.len() > MAX_JTI_BYTES {
            return Err(ProofError::Malformed);
        }
        let id = format!("{thumbprint} {}", claims.jti);
        let period = VALID_FOR + 2 * self.leeway;
        let mut seen = self.seen.lock();
        seen.rotate(now.as_secs(), period);
        seen.insert(&id, target.principal)
    }
}

/// Verifies the signature with the key in the proof. Returns the claims and the thumbprint of the key.
fn verify(proof: &str) -> Result<(ProofClaims, String), ProofError> {
    let malformed = |_| ProofError::Malformed;
    let (header, _) = proof.split_once('.').ok_or(ProofError::Malformed)?;
    if proof.len() > MAX_BYTES {
        return Err(ProofError::Malformed);
    }
    let header = URL_SAFE_NO_PAD
        .decode(header)
        .map_err(|_| ProofError::Malformed)?;
    let header: ProofHeader = serde_json::from_slice(&header).map_err(malformed)?;
    if header.typ.as_deref() != Some("dpop+jwt") || header.crit.is_some() {
        return Err(ProofError::Type);
    }
    if !DPOP_ALGORITHMS.contains(&header.alg.as_str()) {
        return Err(ProofError::Algorithm);
    }
    let algorithm: Algorithm = header.alg.parse().map_err(|_| ProofError::Algorithm)?;
    let is_private = |name: &&str| header.jwk.get(name).is_some();
    if PRIVATE_MEMBERS.iter().any(is_private) {
        return Err(ProofError::Key);
    }
    let key = VerificationKey::parse(&header.jwk).ok_or(ProofError::Key)?;
    if !key.algorithms.contains(&algorithm) {
        return Err(ProofError::Key);
    }
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let claims = decode::<ProofClaims>(proof, &key.verifying, &validation).map_err(|error| {
        use jsonwebtoken::errors::ErrorKind;
        match error.kind() {
            ErrorKind::Json(_) | ErrorKind::Base64(_) => ProofError::Malformed,
            _ => ProofError::Signature,
        }
    })?;
    let jwk = Jwk::deserialize(&header.jwk).map_err(|_| ProofError::Key)?;
    let thumbprint = jwk.thumbprint(ThumbprintHash::SHA256);
    Ok((claims.claims, thumbprint.map_err(|_| ProofError::Key)?))
}

/// A URL without query and fragment, in lower case up to the path, with its port.
#[derive(Debug, PartialEq, Eq)]
struct NormalUrl {
    scheme: String,
    host: String,
    port: u16,
    path: String,
}

impl NormalUrl {
    fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let authority = uri.authority()?;
        let default = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        (!authority.as_str().contains('@')).then(|| Self {
            host: authority.host().to_ascii_lowercase(),
            port: authority.port_u16().unwrap_or(default),
            path: uri.path().to_owned(),
            scheme,
        })
    }
}

/// The proofs of the current period and the one before, by the first half of a digest.
#[derive(Default)]
struct SeenProofs {
    /// When the current period started, in seconds since 1970.
    start: u64,
    current: HashSet<[u8; 16]>,
    previous: HashSet<[u8; 16]>,
    /// The number of proofs of the current period, by principal.
    by_principal: HashMap<Principal, usize>,
}

impl SeenProofs {
    /// Starts another period if the current one is over. A proof is remembered for at least one period.
    fn rotate(&mut self, now: u64, period: u64) {
        let elapsed = now.saturating_sub(self.start);
        if elapsed < period {
            return;
        }
        self.previous = std::mem::take(&mut self.current);
        if elapsed >= 2 * period {
            self.previous.clear();
        }
        self.by_principal.clear();
        self.start = now;
    }

    fn insert(&mut self, id: &str, principal: &Principal) -> Result<(), ProofError> {
        let digest = sha256(id.as_bytes());
        let digest = std::array::from_fn(|at| digest[at]);
        if self.current.contains(&digest) || self.previous.contains(&digest) {
            return Err(ProofError::Replayed);
        }
        if self.current.len() == MAX_PROOFS {
            return Err(ProofError::TooMany);
        }
        let count = self.by_principal.entry(principal.clone()).or_default();
        if *count == MAX_PROOFS_EACH {
            return Err(ProofError::TooMany);
        }
        *count += 1;
        self.current.insert(digest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_compared_without_query_and_default_port() {
        let parse = |url| NormalUrl::parse(url).unwrap_or_else(|| panic!("{url}"));
        let url = parse("https://mcp.example.com/mcp");
        for same in [
            "HTTPS://MCP.example.com/mcp",
            "https://mcp.example.com:443/mcp",
            "https://mcp.example.com/mcp?a=b",
            "https://mcp.example.com/mcp#c",
        ] {
            assert_eq!(parse(same), url, "{same}");
        }
        for other in [
            "http://mcp.example.com/mcp",
            "https://mcp.example.com:8443/mcp",
            "https://mcp.example.com/mcp/",
            "https://mcp.example.com/MCP",
            "https://mcp.example.com.evil.example/mcp",
        ] {
            assert_ne!(parse(other), url, "{other}");
        }
        assert_eq!(parse("https://a"), parse("https://a/"));
        for invalid in ["", "/mcp", "ftp://a/b", "https://x@mcp.example.com/mcp"] {
            assert_eq!(NormalUrl::parse(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn proof_is_remembered_for_at_least_one_period() {
        let (alice, mut seen) = (Principal::new("alice"), SeenProofs::default());
        seen.rotate(1000, 100);
        assert_eq!(seen.insert("a", &alice), Ok(()));
        for now in [1000, 1099, 1100, 1199] {
            seen.rotate(now, 100);
            assert_eq!(seen.insert("a", &alice), Err(ProofError::Replayed), "{now}");
        }
        seen.rotate(1200, 100);
        assert_eq!(seen.insert("a", &alice), Ok(()));
    }

    #[test]
    fn proofs_are_limited_per_principal() {
        let (alice, bob) = (Principal::new("alice"), Principal::new("bob"));
        let mut seen = SeenProofs::default();
        for n in 0..MAX_PROOFS_EACH {
            assert_eq!(seen.insert(&n.to_string(), &alice), Ok(()));
        }
        assert_eq!(seen.insert("x", &alice), Err(ProofError::TooMany));
        assert_eq!(seen.insert("x", &bob), Ok(()));
    }

    #[test]
    fn listed_algorithms_are_asymmetric() {
        for name in DPOP_ALGORITHMS {
            let algorithm: Algorithm = name.parse().expect("a known algorithm");
            assert!(!name.starts_with("HS"), "{algorithm:?}");
        }
    }
}
