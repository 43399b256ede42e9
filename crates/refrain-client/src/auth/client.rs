//! Who this client is to an authorization server, and how it proves that.

use super::error::AuthError;
use super::metadata::IssuerMetadata;
use super::tokens::now;
use crate::random::unguessable;
use jsonwebtoken::{Algorithm, AlgorithmFamily, EncodingKey, Header};
use oauth2::ClientSecret;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::str::FromStr;

/// How long an assertion is good for, in seconds.
const ASSERTION_SECONDS: u64 = 60;

/// A client that was registered with an authorization server beforehand.
///
/// Say with [`issuer`](Self::issuer) which one that was: its secret is then shown to no other, whatever a server
/// claims. Without it the client belongs to the first authorization server it is used with.
#[derive(Clone, Debug)]
pub struct RegisteredClient {
    pub(super) id: String,
    pub(super) secret: Option<ClientSecret>,
    pub(super) key: Option<SigningKey>,
    pub(super) issuer: Option<String>,
}

impl RegisteredClient {
    /// A client with this id, which has nothing to prove it with.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            secret: None,
            key: None,
            issuer: None,
        }
    }

    /// Proves it with a secret.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(ClientSecret::new(secret.into()));
        self
    }

    /// Proves it with a private key: `private_key_jwt`. The key is PEM (PKCS #8; PKCS #1 too for RSA), the algorithm
    /// is one of `ES256`, `ES384`, `RS256` to `RS512`, `PS256` to `PS512` and `EdDSA`.
    pub fn private_key(mut self, pem: &str, algorithm: &str) -> Result<Self, AuthError> {
        self.key = Some(SigningKey::read(pem, algorithm)?);
        Ok(self)
    }

    /// The authorization server it is registered with, as that one writes its issuer.
    #[must_use]
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }

    pub(super) fn can_prove_itself(&self) -> bool {
        self.secret.is_some() || self.key.is_some()
    }

    /// The client as its identity provider knows it, whose metadata is not read.
    pub(super) fn at_provider(&self) -> ClientId {
        let proof = match (&self.key, &self.secret) {
            (Some(_), _) => Proof::Key,
            (None, Some(_)) => Proof::Basic,
            (None, None) => Proof::None,
        };
        ClientId {
            id: self.id.clone(),
            secret: self.secret.clone(),
            proof,
            redirect_uri: None,
        }
    }

    /// The client as this authorization server knows it.
    pub(super) fn at(&self, metadata: &IssuerMetadata) -> ClientId {
        let mut client = self.at_provider();
        if client.proof == Proof::Basic {
            client.proof = Proof::of_secret(metadata, None);
        }
        client
    }
}

/// A client as one authorization server knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClientId {
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<ClientSecret>,
    pub(super) proof: Proof,
    /// What it was registered with, where it registered itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) redirect_uri: Option<String>,
}

/// How a client proves who it is, at the token endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Proof {
    /// Not at all.
    #[serde(rename = "none")]
    None,
    #[serde(rename = "client_secret_basic")]
    Basic,
    #[serde(rename = "client_secret_post")]
    Post,
    #[serde(rename = "private_key_jwt")]
    Key,
}

impl Proof {
    /// How a secret is shown: as was agreed, else as the authorization server likes it.
    pub(super) fn of_secret(metadata: &IssuerMetadata, agreed: Option<&str>) -> Self {
        match agreed {
            Some("client_secret_basic") => return Self::Basic,
            Some("client_secret_post") => return Self::Post,
            Some("none") => return Self::None,
            _ => {}
        }
        let methods = metadata.token_endpoint_auth_methods_supported.as_deref();
        let has = |name: &str| methods.is_some_and(|methods| methods.iter().any(|m| m == name));
        if has("client_secret_basic") {
            Self::Basic
        } else if has("client_secret_post") {
            Self::Post
        } else if has("none") {
            Self::None
        } else {
            Self::Basic
        }
    }
}

/// A key that a client signs its assertions with.
#[derive(Clone, Debug)]
pub(super) struct SigningKey {
    key: EncodingKey,
    algorithm: Algorithm,
}

impl SigningKey {
    fn read(pem: &str, name: &str) -> Result<Self, AuthError> {
        let bad = |reason: String| AuthError::Setup(format!("the client's private key: {reason}"));
        let algorithm = Algorithm::from_str(name)
            .map_err(|_| bad(format!("there is no algorithm {name:?}; ES256 is one")))?;
        let key = match algorithm.family() {
            AlgorithmFamily::Ec => EncodingKey::from_ec_pem(pem.as_bytes()),
            AlgorithmFamily::Rsa => EncodingKey::from_rsa_pem(pem.as_bytes()),
            AlgorithmFamily::Ed => EncodingKey::from_ed_pem(pem.as_bytes()),
            AlgorithmFamily::Hmac => {
                return Err(bad(format!("{name} has no private key; use ES256")));
            }
        };
        let key = key.map_err(|error| bad(format!("it is no PEM of a key for {name}: {error}")))?;
        let key = Self { key, algorithm };
        let tried = key.assertion("", "");
        tried.map_err(|_| bad(format!("it is no key for {name}")))?;
        Ok(key)
    }

    /// Says to one authorization server that this is that client.
    pub(super) fn assertion(&self, client: &str, issuer: &str) -> Result<String, AuthError> {
        let now = now();
        let claims = json!({
            "iss": client,
            "sub": client,
            "aud": issuer,
            "iat": now,
            "exp": now + ASSERTION_SECONDS,
            "jti": unguessable(),
        });
        jsonwebtoken::encode(&Header::new(self.algorithm), &claims, &self.key)
            .map_err(|error| AuthError::Signing(error.into()))
    }
}
