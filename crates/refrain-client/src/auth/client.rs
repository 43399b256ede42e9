//! The client's identity at an authorization server, and dynamic client registration (RFC 7591).

use super::error::{AuthError, AuthResult, OAuthFailure, ResponseError, SetupError};
use super::http::is_loopback;
use super::metadata::IssuerMetadata;
use super::server::ServerAuth;
use super::tokens::now;
use crate::random::hex_128;
use http::HeaderMap;
use jsonwebtoken::{Algorithm, AlgorithmFamily, EncodingKey, Header};
use oauth2::ClientSecret;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::str::FromStr;
use url::Url;

/// The lifetime of a signed client assertion.
const ASSERTION_SECONDS: u64 = 60;

/// A client that is already registered with an authorization server.
///
/// With [`issuer`](Self::issuer), its credentials go only to that authorization server, whatever an MCP server claims.
/// Otherwise they go only to the first authorization server used.
#[derive(Clone, Debug)]
pub struct RegisteredClient {
    pub(super) id: String,
    pub(super) secret: Option<ClientSecret>,
    pub(super) key: Option<SigningKey>,
    pub(super) issuer: Option<String>,
}

impl RegisteredClient {
    /// A client with this id, without credentials.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            secret: None,
            key: None,
            issuer: None,
        }
    }

    /// Authenticates with a secret.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(ClientSecret::new(secret.into()));
        self
    }

    /// Authenticates with a private key (`private_key_jwt`). The key is PEM (PKCS #8, or PKCS #1 for RSA). The algorithm
    /// is `ES256`, `ES384`, `RS256` to `RS512`, `PS256` to `PS512` or `EdDSA`.
    pub fn private_key(mut self, pem: &str, algorithm: &str) -> Result<Self, AuthError> {
        self.key = Some(SigningKey::read(pem, algorithm)?);
        Ok(self)
    }

    /// Sets the issuer of the authorization server that the client is registered with.
    #[must_use]
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }

    pub(super) fn has_credentials(&self) -> bool {
        self.secret.is_some() || self.key.is_some()
    }

    /// The identity at the authorization server with this metadata, which lists the supported ways
    /// to send a secret. Without metadata, a secret is sent by HTTP Basic.
    pub(super) fn identity(&self, metadata: Option<&IssuerMetadata>) -> ClientIdentity {
        let auth = match (&self.key, &self.secret) {
            (Some(_), _) => ClientAuth::Key,
            (None, Some(_)) => metadata.map_or(ClientAuth::Basic, |metadata| {
                ClientAuth::for_secret(metadata, None)
            }),
            (None, None) => ClientAuth::None,
        };
        ClientIdentity {
            id: self.id.clone(),
            secret: self.secret.clone(),
            auth,
            redirect_uri: None,
        }
    }
}

/// The client as an authorization server knows it.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ClientIdentity {
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<ClientSecret>,
    /// Named `proof` in stored grants.
    #[serde(rename = "proof")]
    pub(super) auth: ClientAuth,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) redirect_uri: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ClientAuth {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "client_secret_basic")]
    Basic,
    #[serde(rename = "client_secret_post")]
    Post,
    #[serde(rename = "private_key_jwt")]
    Key,
}

impl ClientAuth {
    /// How to send a secret: as registered; otherwise by the first of `client_secret_basic`, `client_secret_post` and `none`
    /// that the authorization server lists. If it lists no method, by `client_secret_basic`.
    fn for_secret(metadata: &IssuerMetadata, registered: Option<&str>) -> Self {
        let methods = [
            ("client_secret_basic", Self::Basic),
            ("client_secret_post", Self::Post),
            ("none", Self::None),
        ];
        let mut methods = methods.iter();
        let found = methods.clone().find(|(name, _)| registered == Some(name));
        found
            .or_else(|| methods.find(|(name, _)| metadata.lists_auth_method(name)))
            .map_or(Self::Basic, |(_, auth)| *auth)
    }
}

#[derive(Clone, Debug)]
pub(super) struct SigningKey {
    key: EncodingKey,
    algorithm: Algorithm,
}

impl SigningKey {
    fn read(pem: &str, name: &str) -> Result<Self, SetupError> {
        let algorithm =
            Algorithm::from_str(name).map_err(|_| SetupError::UnknownAlgorithm(name.to_owned()))?;
        let key = match algorithm.family() {
            AlgorithmFamily::Ec => EncodingKey::from_ec_pem(pem.as_bytes()),
            AlgorithmFamily::Rsa => EncodingKey::from_rsa_pem(pem.as_bytes()),
            AlgorithmFamily::Ed => EncodingKey::from_ed_pem(pem.as_bytes()),
            AlgorithmFamily::Hmac => return Err(SetupError::SymmetricAlgorithm(name.to_owned())),
        };
        let key = key.map_err(|source| SetupError::InvalidKey {
            algorithm: name.to_owned(),
            source,
        })?;
        let key = Self { key, algorithm };
        // Only signing shows whether the key fits the algorithm.
        match key.assertion("", "") {
            Ok(_) => Ok(key),
            Err(_) => Err(SetupError::KeyMismatch(name.to_owned())),
        }
    }

    /// A signed JWT that authenticates the client.
    pub(super) fn assertion(&self, client: &str, issuer: &str) -> AuthResult<String> {
        let now = now();
        let claims = json!({
            "iss": client,
            "sub": client,
            "aud": issuer,
            "iat": now,
            "exp": now + ASSERTION_SECONDS,
            "jti": hex_128(),
        });
        jsonwebtoken::encode(&Header::new(self.algorithm), &claims, &self.key)
            .map_err(AuthError::signing)
    }
}

impl ServerAuth {
    pub(super) async fn register(
        &self,
        issuer: &IssuerMetadata,
        redirect_uri: &Url,
        dpop: bool,
    ) -> AuthResult<ClientIdentity> {
        #[derive(Deserialize)]
        struct RegistrationResponse {
            client_id: String,
            client_secret: Option<ClientSecret>,
            token_endpoint_auth_method: Option<String>,
        }

        let endpoint = issuer.registration_endpoint(&self.url)?;
        let body = registration(&self.setup.name, issuer, redirect_uri, dpop).to_string();
        let json = "application/json";
        let response = self
            .http
            .post(&endpoint, json, HeaderMap::new(), body)
            .await?;
        if let Ok(registered) = serde_json::from_slice::<RegistrationResponse>(response.body())
            && response.status().is_success()
        {
            let method = registered.token_endpoint_auth_method.as_deref();
            let secret = registered.client_secret;
            return Ok(ClientIdentity {
                id: registered.client_id,
                auth: match &secret {
                    Some(_) => ClientAuth::for_secret(issuer, method),
                    None => ClientAuth::None,
                },
                secret,
                redirect_uri: Some(redirect_uri.to_string()),
            });
        }
        Err(match OAuthFailure::read(response.body()) {
            Some(failure) => failure.into_error(&issuer.issuer, "the client registration"),
            None => AuthError::invalid_response(
                &endpoint,
                ResponseError::MissingClient(response.status()),
            ),
        })
    }
}

fn registration(name: &str, issuer: &IssuerMetadata, redirect_uri: &Url, dpop: bool) -> Value {
    let preferred = ["none", "client_secret_basic", "client_secret_post"];
    let method = match &issuer.token_endpoint_auth_methods_supported {
        Some(_) => preferred
            .into_iter()
            .find(|name| issuer.lists_auth_method(name)),
        None => Some("client_secret_basic"),
    };
    let mut body = json!({
        "client_name": name,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": if is_loopback(redirect_uri) { "native" } else { "web" },
        "token_endpoint_auth_method": method.unwrap_or("none"),
    });
    if dpop {
        body["dpop_bound_access_tokens"] = true.into();
    }
    body
}
