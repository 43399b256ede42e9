//! The public keys of an authorization server (RFC 7517), and the algorithms they are for.
//!
//! Only asymmetric algorithms are known here: there is no key for an HMAC.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, ParsedPublicKey,
    VerificationAlgorithm,
};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// The shortest modulus of an RSA key.
const LEAST_BITS: usize = 2048;

/// One public key.
pub(super) struct Key {
    id: Option<String>,
    /// The algorithms that it may have signed with.
    algorithms: Vec<Algorithm>,
    pub(super) verifying: DecodingKey,
}

/// Why there is no key for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoKey {
    #[error("there are no keys to verify it with")]
    NoKeys,
    #[error("no key fits its key id and algorithm")]
    Unknown,
    #[error("several keys fit its key id and algorithm")]
    Ambiguous,
}

impl Key {
    /// Reads a key. `None`: it is not one that tokens of ours can be signed with.
    fn read(jwk: &Value) -> Option<Self> {
        let jwk = Jwk::deserialize(jwk).ok()?;
        let common = &jwk.common;
        let signature = |usage: &PublicKeyUse| *usage == PublicKeyUse::Signature;
        let verify = |ops: &Vec<KeyOperations>| ops.contains(&KeyOperations::Verify);
        if !common.public_key_use.as_ref().is_none_or(signature)
            || !common.key_operations.as_ref().is_none_or(verify)
        {
            return None;
        }
        let (mut algorithms, point): (_, Option<&'static dyn VerificationAlgorithm>) =
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
        // A key that names an algorithm is for no other, and for none if it is one of another kind of key.
        if let Some(own) = common.key_algorithm {
            let own = Algorithm::try_from(own).ok()?;
            algorithms.retain(|algorithm| *algorithm == own);
        }
        let mut verifying = DecodingKey::from_jwk(&jwk).ok()?;
        if let DecodingKeyKind::RsaModulusExponent { n, e } = verifying.kind() {
            let (n, e) = (number(n), number(e));
            if bits(n) < LEAST_BITS {
                return None;
            }
            verifying = DecodingKey::from_rsa_raw_components(n, e);
        }
        // The library would find out with the first token. That a key of Ed25519 is no point is found out then only.
        if let Some(point) = point {
            ParsedPublicKey::new(point, verifying.try_get_as_bytes().ok()?).ok()?;
        }
        (!algorithms.is_empty()).then_some(Self {
            id: jwk.common.key_id,
            algorithms,
            verifying,
        })
    }
}

/// A number without leading zeros, which some servers send.
fn number(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// How long a number without leading zeros is.
fn bits(number: &[u8]) -> usize {
    let unused = number.first().map_or(0, |byte| byte.leading_zeros());
    number.len() * 8 - unused as usize
}

/// The keys of an authorization server that can be used here.
#[derive(Clone, Default)]
pub(super) struct KeySet(Vec<Arc<Key>>);

impl KeySet {
    /// Reads a JWK set. Keys for other purposes are passed over, and so is what is no key.
    pub(super) fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(json)?;
        let keys = set.keys.iter().filter_map(Key::read).map(Arc::new);
        Ok(Self(keys.collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The one key for a token. There is no trying out: where several fit, none does.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<Arc<Key>, NoKey> {
        let mut fitting = self.0.iter().filter(|key| {
            let named = id.is_none() || id == key.id.as_deref();
            named && key.algorithms.contains(&algorithm)
        });
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(key.clone()),
            (None, _) if self.0.is_empty() => Err(NoKey::NoKeys),
            (None, _) => Err(NoKey::Unknown),
            (Some(_), Some(_)) => Err(NoKey::Ambiguous),
        }
    }
}
