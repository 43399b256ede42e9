//! An authorization server, as far as a resource server meets it: keys, tokens, and a JWK set that can be fetched.

use super::within;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

pub(crate) const ISSUER: &str = "https://login.example.com";
pub(crate) const AUDIENCE: &str = "https://mcp.example.com/mcp";

/// A private key with its id.
pub(crate) struct Signer {
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
    pub(crate) fn rsa(id: &'static str) -> Self {
        let pair = Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).expect("a key"));
        Self { id, pair }
    }

    pub(crate) fn p256(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
        let pair = Pair::P256(pair.expect("a key"));
        Self { id, pair }
    }

    pub(crate) fn p384(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING);
        let pair = Pair::P384(pair.expect("a key"));
        Self { id, pair }
    }

    pub(crate) fn ed25519(id: &'static str) -> Self {
        let pair = Pair::Ed25519(Ed25519KeyPair::generate().expect("a key"));
        Self { id, pair }
    }

    /// The public key, as it is published.
    pub(crate) fn jwk(&self) -> Value {
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

    /// The algorithm that this key usually signs with.
    fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::P384(_) => "ES384",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "kid": self.id}), claims)
    }

    /// A token with a header of its own, signed with the algorithm it names where this key can do that.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
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

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn decode(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).expect("base64url")
}

/// A JWK set of these keys.
pub(crate) fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({"keys": keys}).to_string()
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is later").as_secs() as i64
}

/// The claims of a good token.
pub(crate) fn claims(subject: &str) -> Value {
    json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": subject,
        "iat": now(), "nbf": now(), "exp": now() + 300,
    })
}

/// What is answered when the keys are asked for.
#[derive(Clone)]
pub(crate) enum Answer {
    Keys(String),
    Status(u16),
    Redirect(String),
    /// Nothing, for ever.
    Silence,
    /// Keys, once the gate is open.
    Gate(Arc<Semaphore>, String),
}

/// Where a JWK set can be fetched, on this machine.
pub(crate) struct KeyServer {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    fetches: watch::Receiver<usize>,
}

impl KeyServer {
    pub(crate) async fn start(answer: Answer) -> Self {
        let answer = Arc::new(Mutex::new(answer));
        let (count, fetches) = watch::channel(0);
        let shared = answer.clone();
        let app = Router::new().fallback(move || {
            count.send_modify(|count| *count += 1);
            let answer = shared.lock().expect("not poisoned").clone();
            respond(answer)
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            answer,
            fetches,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/keys?version=1", self.address)
    }

    /// Answers so from now on.
    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock().expect("not poisoned") = answer;
    }

    /// How often the keys were asked for.
    pub(crate) fn fetches(&self) -> usize {
        *self.fetches.borrow()
    }

    /// Waits until the keys were asked for so often.
    pub(crate) async fn fetched(&self, times: usize) {
        let mut fetches = self.fetches.clone();
        let fetched = fetches.wait_for(|count| *count >= times);
        within("a fetch", fetched).await.expect("the server runs");
    }
}

async fn respond(answer: Answer) -> Response {
    match answer {
        Answer::Keys(keys) => keys.into_response(),
        Answer::Status(status) => StatusCode::from_u16(status)
            .expect("a status")
            .into_response(),
        Answer::Redirect(url) => (StatusCode::FOUND, [(header::LOCATION, url)]).into_response(),
        Answer::Silence => std::future::pending().await,
        Answer::Gate(gate, keys) => {
            let permit = gate.acquire().await.expect("the gate is never closed");
            permit.forget();
            keys.into_response()
        }
    }
}
