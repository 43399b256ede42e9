//! A signed token (RFC 7515, RFC 7519) taken apart. Its claims are not read before its signature was checked.

use super::jwk::{Algorithm, Key};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The longest token that is looked at.
const LONGEST: usize = 16 * 1024;

/// Why a token is not accepted. For the log: clients are told less.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Bad {
    #[error("it is longer than {LONGEST} characters")]
    TooLong,
    #[error("it is no JWT: {0}")]
    Shape(&'static str),
    #[error("its type {0:?} is not that of an access token")]
    Type(String),
    #[error("it demands extensions that are not known here")]
    Critical,
    #[error("its algorithm {0:?} is not accepted")]
    Algorithm(String),
    #[error(transparent)]
    Key(#[from] super::jwk::NoKey),
    #[error("its signature is wrong")]
    Signature,
    #[error("its claims cannot be read: {0}")]
    Claims(String),
    #[error("its issuer is {0:?}")]
    Issuer(String),
    #[error("its audience is {0:?}")]
    Audience(Vec<String>),
    #[error("it expired {0} seconds ago")]
    Expired(i64),
    #[error("it is not valid for another {0} seconds")]
    NotYet(i64),
    #[error("it names no subject")]
    Subject,
}

/// A token whose signature was not checked yet.
pub(super) struct Unverified<'a> {
    pub(super) key_id: Option<String>,
    pub(super) algorithm: Algorithm,
    message: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    typ: Option<String>,
    #[serde(default)]
    crit: Option<IgnoredAny>,
}

impl<'a> Unverified<'a> {
    pub(super) fn read(token: &'a str) -> Result<Self, Bad> {
        if token.len() > LONGEST {
            return Err(Bad::TooLong);
        }
        let (message, signature) = token
            .rsplit_once('.')
            .ok_or(Bad::Shape("it has no signature"))?;
        let (header, payload) = message
            .split_once('.')
            .ok_or(Bad::Shape("it has no claims"))?;
        if payload.contains('.') {
            return Err(Bad::Shape("it has more than three parts"));
        }
        let header: Header = serde_json::from_slice(&decode(header)?)
            .map_err(|_| Bad::Shape("its header cannot be read"))?;
        // Tokens for other purposes, such as a logout, say so.
        if let Some(typ) = header.typ
            && !["JWT", "at+jwt", "application/at+jwt"]
                .iter()
                .any(|known| known.eq_ignore_ascii_case(&typ))
        {
            return Err(Bad::Type(typ));
        }
        if header.crit.is_some() {
            return Err(Bad::Critical);
        }
        let algorithm = Algorithm::from_name(&header.alg).ok_or(Bad::Algorithm(header.alg))?;
        Ok(Self {
            key_id: header.kid,
            algorithm,
            message,
            payload,
            signature: decode(signature)?,
        })
    }

    /// Checks the signature and reads the claims.
    pub(super) fn verify(&self, key: &Key) -> Result<Claims, Bad> {
        if !key.verifies(self.algorithm, self.message.as_bytes(), &self.signature) {
            return Err(Bad::Signature);
        }
        serde_json::from_slice(&decode(self.payload)?)
            .map_err(|error| Bad::Claims(error.to_string()))
    }
}

fn decode(part: &str) -> Result<Vec<u8>, Bad> {
    URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| Bad::Shape("a part of it is not base64url"))
}

/// The claims that matter, of a token whose signature is right.
#[derive(Deserialize)]
pub(super) struct Claims {
    pub(super) iss: String,
    #[serde(default)]
    pub(super) sub: Option<String>,
    #[serde(default)]
    pub(super) aud: Texts,
    /// Seconds since 1970, perhaps with a fraction.
    pub(super) exp: f64,
    #[serde(default)]
    pub(super) nbf: Option<f64>,
    #[serde(default)]
    pub(super) scope: Option<String>,
    #[serde(default)]
    pub(super) scp: Texts,
}

/// A text, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Default for Texts {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Texts {
    pub(super) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}
