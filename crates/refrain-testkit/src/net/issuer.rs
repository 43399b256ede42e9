//! An authorization server as resource servers see it: signed access tokens and a JWK set to fetch.

use super::http_server::{Body, full, serve_with};
use super::{listen, within};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::Response;
use serde_json::{Value, json};
use std::future::pending;
use std::sync::{Arc, Mutex};
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

/// A private key with its id.
pub struct Signer {
    id: &'static str,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub fn rsa(id: &'static str) -> Self {
        let pair = Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).expect("a key"));
        Self { id, pair }
    }

    pub fn p256(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
        let pair = Pair::P256(pair.expect("a key"));
        Self { id, pair }
    }

    pub fn p384(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING);
        let pair = Pair::P384(pair.expect("a key"));
        Self { id, pair }
    }

    pub fn ed25519(id: &'static str) -> Self {
        let pair = Pair::Ed25519(Ed25519KeyPair::generate().expect("a key"));
        Self { id, pair }
    }

    /// The public key as a JWK.
    pub fn jwk(&self) -> Value {
        let point = |pair: &EcdsaKeyPair, curve: &str| {
            let (x, y) =
                pair.public_key().as_ref()[1..].split_at(pair.public_key().as_ref().len() / 2);
            json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y)})
        };
        let mut jwk = match &self.pair {
            Pair::Rsa(pair) => {
                let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
                let (n, e) = (
                    n.big_endian_without_leading_zero(),
                    e.big_endian_without_leading_zero(),
                );
                json!({"kty": "RSA", "n": encode(n), "e": encode(e)})
            }
            Pair::P256(pair) => point(pair, "P-256"),
            Pair::P384(pair) => point(pair, "P-384"),
            Pair::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key())})
            }
        };
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk
    }

    /// The default algorithm of this key.
    fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::P384(_) => "ES384",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    /// A token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "kid": self.id}), claims)
    }

    /// A valid token for this subject, with these scopes.
    pub fn token_for(&self, subject: &str, scope: &str) -> String {
        let mut claims = claims(subject);
        claims["scope"] = json!(scope);
        self.token(&claims)
    }

    /// A token with this header, signed with the algorithm it names if this key supports it.
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!(
            "{}.{}",
            encode(header.to_string()),
            encode(claims.to_string())
        );
        let algorithm = header["alg"].as_str().unwrap_or_default();
        let signature = self.sign(algorithm, message.as_bytes());
        format!("{message}.{}", encode(signature))
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let encoding: &dyn RsaEncoding = match algorithm {
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    "PS384" => &RSA_PSS_SHA384,
                    "PS512" => &RSA_PSS_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, message, &mut signature)
                    .expect("a signature");
                signature
            }
            Pair::P256(pair) | Pair::P384(pair) => {
                let signature = pair.sign(&random, message).expect("a signature");
                signature.as_ref().to_vec()
            }
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub fn decode(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).expect("base64url")
}

/// A JWK set of these keys.
pub fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({"keys": keys}).to_string()
}

/// Seconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is later").as_secs() as i64
}

/// The claims of a valid token.
pub fn claims(subject: &str) -> Value {
    json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": subject,
        "iat": now(), "nbf": now(), "exp": now() + 300,
    })
}

/// How a request for the keys is answered.
#[derive(Clone)]
pub enum Answer {
    Keys(String),
    Status(u16),
    Redirect(String),
    /// No response.
    Silence,
    /// Keys, once the semaphore has a permit.
    Gate(Arc<Semaphore>, String),
}

/// An HTTP server with a JWK set.
pub struct KeyServer {
    origin: String,
    answer: Arc<Mutex<Answer>>,
    fetches: watch::Receiver<usize>,
}

impl KeyServer {
    pub async fn start(answer: Answer) -> Self {
        Self::start_with(answer, None).await
    }

    /// The same over TLS, with a certificate that is signed by [`authority`]`("ca.pem")`.
    pub async fn start_tls(answer: Answer) -> Self {
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from(CERTIFICATE)],
                PrivatePkcs8KeyDer::from(KEY).into(),
            )
            .expect("a certificate and its key");
        Self::start_with(answer, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start_with(answer: Answer, tls: Option<TlsAcceptor>) -> Self {
        let listener = listen().await;
        let address = listener.local_addr().expect("an address");
        let origin = match tls {
            Some(_) => format!("https://{address}"),
            None => format!("http://{address}"),
        };
        let answer = Arc::new(Mutex::new(answer));
        let (count, fetches) = watch::channel(0);
        let shared = Arc::clone(&answer);
        serve_with(listener, tls, move |_| {
            count.send_modify(|count| *count += 1);
            let answer = shared.lock().expect("no panic").clone();
            respond(answer)
        });
        Self {
            origin,
            answer,
            fetches,
        }
    }

    pub fn url(&self) -> String {
        format!("{}/keys?version=1", self.origin)
    }

    /// Changes the answer.
    pub fn answer(&self, answer: Answer) {
        *self.answer.lock().expect("no panic") = answer;
    }

    /// The number of requests so far.
    pub fn fetches(&self) -> usize {
        *self.fetches.borrow()
    }

    /// Waits for this number of requests.
    pub async fn fetched(&self, times: usize) {
        let mut fetches = self.fetches.clone();
        let fetched = fetches.wait_for(|count| *count >= times);
        within("a fetch", fetched).await.expect("the server runs");
    }
}

async fn respond(answer: Answer) -> Response<Body> {
    let (status, location, body) = match answer {
        Answer::Keys(keys) => (200, None, keys),
        Answer::Status(status) => (status, None, String::new()),
        Answer::Redirect(url) => (302, Some(url), String::new()),
        Answer::Silence => pending().await,
        Answer::Gate(gate, keys) => {
            let permit = gate.acquire().await.expect("the gate is never closed");
            permit.forget();
            (200, None, keys)
        }
    };
    let mut response = Response::builder().status(status);
    if let Some(url) = location {
        response = response.header("location", url);
    }
    response.body(full(body)).expect("a response")
}
