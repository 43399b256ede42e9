//! The public keys of an authorization server (RFC 7517), and the algorithms they are for.
//!
//! Only asymmetric algorithms are known here: `none` and the HMACs do not exist.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// How a token may be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Ed25519,
}

impl Algorithm {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            // The second is the name that RFC 9864 gives to the first.
            "EdDSA" | "Ed25519" => Self::Ed25519,
            _ => return None,
        })
    }

    /// How signatures are checked, with the kind of key that it takes.
    fn verification(self) -> Verification {
        match self {
            Self::Rs256 => Verification::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Verification::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Verification::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Verification::Rsa(&RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Verification::Rsa(&RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Verification::Rsa(&RSA_PSS_2048_8192_SHA512),
            Self::Es256 => Verification::Curve(Curve::P256, &ECDSA_P256_SHA256_FIXED),
            Self::Es384 => Verification::Curve(Curve::P384, &ECDSA_P384_SHA384_FIXED),
            Self::Ed25519 => Verification::Curve(Curve::Ed25519, &ED25519),
        }
    }
}

enum Verification {
    Rsa(&'static RsaParameters),
    Curve(Curve, &'static dyn VerificationAlgorithm),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
    Ed25519,
}

/// One public key.
pub(super) struct Key {
    id: Option<String>,
    /// The only algorithm it is for, if it says so.
    algorithm: Option<Algorithm>,
    material: Material,
}

enum Material {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    Curve(Curve, Vec<u8>),
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
        let for_signatures = jwk.usage.is_none_or(|usage| usage == "sig");
        let verifies = jwk.key_ops.is_none_or(|ops| ops.contains(&"verify"));
        if !for_signatures || !verifies {
            return None;
        }
        let material = match (jwk.kty, jwk.crv) {
            ("RSA", _) => Material::Rsa(RsaPublicKeyComponents {
                n: number(jwk.n?)?,
                e: number(jwk.e?)?,
            }),
            ("EC", Some("P-256")) => Material::Curve(Curve::P256, point(jwk.x?, jwk.y?, 32)?),
            ("EC", Some("P-384")) => Material::Curve(Curve::P384, point(jwk.x?, jwk.y?, 48)?),
            ("OKP", Some("Ed25519")) => Material::Curve(Curve::Ed25519, bytes(jwk.x?)?),
            _ => return None,
        };
        let key = Self {
            id: jwk.kid.map(str::to_owned),
            algorithm: match jwk.alg {
                Some(name) => Some(Algorithm::from_name(name)?),
                None => None,
            },
            material,
        };
        // A key that names an algorithm of another kind of key is good for none.
        let usable = key.algorithm.is_none_or(|algorithm| key.fits(algorithm));
        usable.then_some(key)
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        let kind = match (&self.material, algorithm.verification()) {
            (Material::Rsa(_), Verification::Rsa(_)) => true,
            (Material::Curve(own, _), Verification::Curve(curve, _)) => *own == curve,
            _ => false,
        };
        kind && self.algorithm.is_none_or(|own| own == algorithm)
    }

    /// Is this the signature of the message?
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        self.fits(algorithm)
            && match (&self.material, algorithm.verification()) {
                (Material::Rsa(key), Verification::Rsa(how)) => {
                    key.verify(how, message, signature).is_ok()
                }
                (Material::Curve(_, key), Verification::Curve(_, how)) => {
                    let key = UnparsedPublicKey::new(how, key);
                    key.verify(message, signature).is_ok()
                }
                _ => false,
            }
    }
}

/// The keys of an authorization server that can be used here.
#[derive(Clone, Default)]
pub(super) struct KeySet(Vec<Arc<Key>>);

impl KeySet {
    /// Reads a JWK set. Keys for other purposes are passed over.
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
            named && key.fits(algorithm)
        });
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(key.clone()),
            (None, _) if self.0.is_empty() => Err(NoKey::NoKeys),
            (None, _) => Err(NoKey::Unknown),
            (Some(_), Some(_)) => Err(NoKey::Ambiguous),
        }
    }
}

/// The members of a key that matter.
#[derive(Deserialize)]
struct Jwk<'a> {
    kty: &'a str,
    #[serde(default)]
    kid: Option<&'a str>,
    #[serde(default)]
    alg: Option<&'a str>,
    #[serde(default, rename = "use")]
    usage: Option<&'a str>,
    #[serde(default)]
    key_ops: Option<Vec<&'a str>>,
    #[serde(default)]
    crv: Option<&'a str>,
    #[serde(default)]
    n: Option<&'a str>,
    #[serde(default)]
    e: Option<&'a str>,
    #[serde(default)]
    x: Option<&'a str>,
    #[serde(default)]
    y: Option<&'a str>,
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// A number without leading zeros, which some servers send.
fn number(text: &str) -> Option<Vec<u8>> {
    let mut bytes = bytes(text)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.drain(..zeros);
    Some(bytes)
}

/// A point of a curve, uncompressed.
fn point(x: &str, y: &str, size: usize) -> Option<Vec<u8>> {
    let (x, y) = (bytes(x)?, bytes(y)?);
    let whole = x.len() == size && y.len() == size;
    whole.then(|| [&[4], &x[..], &y[..]].concat())
}
