//! DPoP (RFC 9449): access tokens bound to a key, with a signed proof in each request.

use super::error::{AuthError, AuthResult};
use super::tokens::now;
use crate::random::hex_128;
use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use jsonwebtoken::jwk::{Jwk, ThumbprintHash};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::HashMap;
use url::Url;

pub(super) const ALGORITHM: &str = "ES256";
pub(super) const PROOF: HeaderName = HeaderName::from_static("dpop");
const NONCE: HeaderName = HeaderName::from_static("dpop-nonce");

#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct DpopKey {
    private: EncodingKey,
    public: Jwk,
}

impl DpopKey {
    pub(super) fn generate() -> AuthResult<Self> {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(AuthError::signing)?;
        Self::from_pkcs8(key.as_ref()).map_err(AuthError::signing)
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, jsonwebtoken::errors::Error> {
        let private = EncodingKey::from_ec_der(pkcs8);
        let public = Jwk::from_encoding_key(&private, Algorithm::ES256)?;
        Ok(Self { private, public })
    }

    pub(super) fn thumbprint(&self) -> AuthResult<String> {
        let print = self.public.thumbprint(ThumbprintHash::SHA256);
        print.map_err(AuthError::signing)
    }

    pub(super) fn proof(
        &self,
        method: &Method,
        url: &Url,
        access_token: Option<&str>,
        nonce: Option<&str>,
    ) -> AuthResult<HeaderValue> {
        let mut target = url.clone();
        target.set_query(None);
        target.set_fragment(None);
        let mut claims = json!({
            "jti": hex_128(),
            "htm": method.as_str(),
            "htu": target.as_str(),
            "iat": now(),
        });
        if let Some(token) = access_token {
            let hash = digest::digest(&digest::SHA256, token.as_bytes());
            claims["ath"] = URL_SAFE_NO_PAD.encode(hash).into();
        }
        if let Some(nonce) = nonce {
            claims["nonce"] = nonce.into();
        }
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("dpop+jwt".to_owned());
        header.jwk = Some(self.public.clone());
        let proof =
            jsonwebtoken::encode(&header, &claims, &self.private).map_err(AuthError::signing)?;
        let mut proof = HeaderValue::try_from(proof).map_err(|_| AuthError::InvalidToken)?;
        proof.set_sensitive(true);
        Ok(proof)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("invalid stored key: expected PKCS #8 in base64url")]
pub(super) struct InvalidDpopKey;

impl TryFrom<String> for DpopKey {
    type Error = InvalidDpopKey;

    fn try_from(text: String) -> Result<Self, InvalidDpopKey> {
        let pkcs8 = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidDpopKey)?;
        Self::from_pkcs8(&pkcs8).map_err(|_| InvalidDpopKey)
    }
}

impl From<DpopKey> for String {
    fn from(key: DpopKey) -> Self {
        URL_SAFE_NO_PAD.encode(key.private.as_bytes())
    }
}

/// The nonces for the next proofs, by origin of the server.
#[derive(Default)]
pub(super) struct Nonces(Mutex<HashMap<String, String>>);

impl Nonces {
    pub(super) fn get(&self, url: &Url) -> Option<String> {
        let nonces = self.0.lock();
        nonces.get(&url.origin().ascii_serialization()).cloned()
    }

    /// Stores the nonce of a response. Returns whether it has one.
    pub(super) fn update(&self, url: &Url, headers: &HeaderMap) -> bool {
        let Some(nonce) = headers.get(NONCE).and_then(|nonce| nonce.to_str().ok()) else {
            return false;
        };
        let mut nonces = self.0.lock();
        nonces.insert(url.origin().ascii_serialization(), nonce.to_owned());
        true
    }
}
