//! An authorization server as resource servers see it: signed access tokens and a JWK set to fetch.

use super::http_server::{Body, CannedResponse, serve_http};
use super::{listen, wait::success};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::Response;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::future::pending;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

pub const ISSUER: &str = "https://login.example.com";
pub const AUDIENCE: &str = "https://mcp.example.com/mcp";

// Made for these tests, and used nowhere else.
const CERTIFICATE: &[u8] = include_bytes!("../../fixtures/server.der");
const KEY: &[u8] = include_bytes!("../../fixtures/server.pk8");

/// A file for `SSL_CERT_FILE`: `ca.pem` signed the certificate of [`KeyServer::start_tls`], `other-ca.pem` did not.
pub fn authority(name: &str) -> String {
    format!("{}/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A private key with its id and default algorithm.
pub struct Signer {
    id: &'static str,
    algorithm: Algorithm,
    key: EncodingKey,
}

impl Signer {
    pub fn rsa(id: &'static str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        let der: Pkcs8V1Der<'_> = pair.as_der().expect("an encoded key");
        Self {
            id,
            algorithm: Algorithm::RS256,
            // PKCS #8 puts a header of 26 bytes before the PKCS #1 encoding of a key of this size.
            key: EncodingKey::from_rsa_der(&der.as_ref()[26..]),
        }
    }

    pub fn p256(id: &'static str) -> Self {
        Self::ecdsa(id, Algorithm::ES256, &ECDSA_P256_SHA256_FIXED_SIGNING)
    }

    pub fn p384(id: &'static str) -> Self {
        Self::ecdsa(id, Algorithm::ES384, &ECDSA_P384_SHA384_FIXED_SIGNING)
    }

    fn ecdsa(
        id: &'static str,
        algorithm: Algorithm,
        signing: &'static EcdsaSigningAlgorithm,
    ) -> Self {
        let pair = EcdsaKeyPair::generate(signing).expect("a key");
        let der = pair.to_pkcs8v1().expect("an encoded key");
        let key = EncodingKey::from_ec_der(der.as_ref());
        Self { id, algorithm, key }
    }

    pub fn ed25519(id: &'static str) -> Self {
        let pair = Ed25519KeyPair::generate().expect("a key");
        let der = pair.to_pkcs8v1().expect("an encoded key");
        Self {
            id,
            algorithm: Algorithm::EdDSA,
            key: EncodingKey::from_ed_der(der.as_ref()),
        }
    }

    /// The public key as a JWK.
    pub fn jwk(&self) -> Value {
        let jwk = Jwk::from_encoding_key(&self.key, self.algorithm).expect("a public key");
        let mut jwk = json!(jwk.algorithm);
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk
    }

    pub fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm, "kid": self.id}), claims)
    }

    /// A valid token for this subject, with these scopes.
    pub fn token_for(&self, subject: &str, scope: &str) -> String {
        let mut claims = claims(subject);
        claims["scope"] = json!(scope);
        self.token(&claims)
    }

    /// A token with this header, signed with the algorithm it names if this key supports it.
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        let (head, body) = (encode(header.to_string()), encode(claims.to_string()));
        let message = format!("{head}.{body}");
        let sign = |algorithm| crypto::sign(message.as_bytes(), &self.key, algorithm);
        let named = header["alg"].as_str().and_then(|name| name.parse().ok());
        let signature = sign(named.unwrap_or(self.algorithm)).or_else(|_| sign(self.algorithm));
        format!("{message}.{}", signature.expect("a signature"))
    }
}

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub fn decode(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).expect("base64url")
}

pub fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({"keys": keys}).to_string()
}

/// Seconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a time after 1970").as_secs() as i64
}

/// The claims of a valid token.
pub fn claims(subject: &str) -> Value {
    json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": subject,
        "iat": now(), "nbf": now(), "exp": now() + 300,
    })
}

/// The response to requests for the keys.
#[derive(Clone)]
pub enum KeyResponse {
    Keys(String),
    Status(u16),
    Redirect(String),
    /// No response.
    Silence,
    /// Keys, once the semaphore has a permit.
    Gate(Arc<Semaphore>, String),
}

impl KeyResponse {
    async fn into_response(self) -> Response<Body> {
        let respond = CannedResponse::new;
        let response = match self {
            Self::Keys(keys) => respond(200).body(keys),
            Self::Status(status) => respond(status),
            Self::Redirect(url) => respond(302).header("location", url),
            Self::Silence => pending().await,
            Self::Gate(gate, keys) => {
                gate.acquire().await.expect("an open semaphore").forget();
                respond(200).body(keys)
            }
        };
        response.into_response()
    }
}

/// An HTTP server with a JWK set.
pub struct KeyServer {
    origin: String,
    response: Arc<Mutex<KeyResponse>>,
    fetches: watch::Receiver<usize>,
}

impl KeyServer {
    pub async fn start(response: KeyResponse) -> Self {
        Self::start_with(response, None).await
    }

    /// The same over TLS, with a certificate that is signed by [`authority`]`("ca.pem")`.
    pub async fn start_tls(response: KeyResponse) -> Self {
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from(CERTIFICATE)],
                PrivatePkcs8KeyDer::from(KEY).into(),
            )
            .expect("a certificate and its key");
        Self::start_with(response, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start_with(response: KeyResponse, tls: Option<TlsAcceptor>) -> Self {
        let listener = listen().await;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = listener.local_addr().expect("an address");
        let response = Arc::new(Mutex::new(response));
        let (count, fetches) = watch::channel(0);
        let shared = Arc::clone(&response);
        serve_http(listener, tls, move |_| {
            count.send_modify(|count| *count += 1);
            let response = shared.lock().clone();
            response.into_response()
        });
        Self {
            origin: format!("{scheme}://{address}"),
            response,
            fetches,
        }
    }

    pub fn url(&self) -> String {
        format!("{}/keys?version=1", self.origin)
    }

    pub fn respond_with(&self, response: KeyResponse) {
        *self.response.lock() = response;
    }

    pub fn fetches(&self) -> usize {
        *self.fetches.borrow()
    }

    /// Waits until the keys have been fetched this many times.
    pub async fn fetched(&self, times: usize) {
        let mut fetches = self.fetches.clone();
        success("a fetch", fetches.wait_for(|count| *count >= times)).await;
    }
}
