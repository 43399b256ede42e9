//! The public keys of an authorization server (RFC 7517) and their algorithms.
//!
//! Only asymmetric algorithms are supported, not HMAC.

use super::validation::TokenError;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, ParsedPublicKey,
    VerificationAlgorithm,
};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use refrain_wire::{TooManyValues, check_values};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

const MIN_RSA_BITS: usize = 2048;

pub(super) struct VerificationKey {
    id: Option<String>,
    /// The signature algorithms that the key may be used with.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) verifying: DecodingKey,
}

impl VerificationKey {
    /// Parses a key. Returns `None` if it cannot verify any accepted token.
    pub(super) fn parse(jwk: &Value) -> Option<Self> {
        let jwk = Jwk::deserialize(jwk).ok()?;
        let common = &jwk.common;
        let is_for_signatures = |usage: &PublicKeyUse| *usage == PublicKeyUse::Signature;
        let can_verify = |ops: &Vec<KeyOperations>| ops.contains(&KeyOperations::Verify);
        if !common.public_key_use.as_ref().is_none_or(is_for_signatures)
            || !common.key_operations.as_ref().is_none_or(can_verify)
        {
            return None;
        }
        let (mut algorithms, curve): (_, Option<&'static dyn VerificationAlgorithm>) =
            match &jwk.algorithm {
                AlgorithmParameters::RSA(_) => (AlgorithmFamily::Rsa.algorithms().to_vec(), None),
                AlgorithmParameters::EllipticCurve(key) => match key.curve {
                    EllipticCurve::P256 => (vec![Algorithm::ES256], Some(&ECDSA_P256_SHA256_FIXED)),
                    EllipticCurve::P384 => (vec![Algorithm::ES384], Some(&ECDSA_P384_SHA384_FIXED)),
                    _ => return None,
                },
                AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                    (vec![Algorithm::EdDSA], Some(&ED25519))
                }
                _ => return None,
            };
        // A key that names an algorithm is for this algorithm only.
        if let Some(declared) = common.key_algorithm {
            let declared = Algorithm::try_from(declared).ok()?;
            algorithms.retain(|algorithm| *algorithm == declared);
        }
        let mut verifying = DecodingKey::from_jwk(&jwk).ok()?;
        if let DecodingKeyKind::RsaModulusExponent { n, e } = verifying.kind() {
            let (n, e) = (strip_zeros(n), strip_zeros(e));
            let unused_bits = n.first().map_or(0, |byte| byte.leading_zeros());
            if n.len() * 8 - (unused_bits as usize) < MIN_RSA_BITS {
                return None;
            }
            verifying = DecodingKey::from_rsa_raw_components(n, e);
        }
        // Rejects invalid keys early. An Ed25519 point that is not on the curve is detected only when a token is verified.
        if let Some(curve) = curve {
            ParsedPublicKey::new(curve, verifying.try_get_as_bytes().ok()?).ok()?;
        }
        (!algorithms.is_empty()).then_some(Self {
            id: jwk.common.key_id,
            algorithms,
            verifying,
        })
    }
}

/// Strips leading zeros, which some servers send.
fn strip_zeros(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// Maximum number of JSON values in a JWK set.
const MAX_VALUES: usize = 50_000;

/// The reason why a document is not a JWK set.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeySetError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Values(#[from] TooManyValues),
}

#[derive(Clone, Default)]
pub(super) struct KeySet(Vec<Arc<VerificationKey>>);

impl KeySet {
    /// Parses a JWK set. Ignores malformed keys and keys for other purposes.
    pub(super) fn parse(json: &[u8]) -> Result<Self, KeySetError> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        check_values(json, MAX_VALUES)?;
        let set: Set = serde_json::from_slice(json)?;
        let keys = set
            .keys
            .iter()
            .filter_map(VerificationKey::parse)
            .map(Arc::new);
        Ok(Self(keys.collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The key for a token, if exactly one matches.
    pub(super) fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<VerificationKey>, TokenError> {
        let mut matching = self.0.iter().filter(|key| {
            let has_id = id.is_none() || id == key.id.as_deref();
            has_id && key.algorithms.contains(&algorithm)
        });
        match (matching.next(), matching.next()) {
            (Some(key), None) => Ok(key.clone()),
            (None, _) if self.0.is_empty() => Err(TokenError::NoKeys),
            (None, _) => Err(TokenError::UnknownKey),
            (Some(_), Some(_)) => Err(TokenError::AmbiguousKey),
        }
    }
}
