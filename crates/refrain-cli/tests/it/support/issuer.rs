//! An authorization server, as far as an instance meets it: tokens, and a key that can be fetched over TLS.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

pub(crate) const ISSUER: &str = "https://login.example.com";
pub(crate) const RESOURCE: &str = "https://mcp.example.com/mcp";

// Made for these tests, and used nowhere else.
const CERTIFICATE: &[u8] = include_bytes!("../fixtures/server.der");
const KEY: &[u8] = include_bytes!("../fixtures/server.pk8");

/// Who issues access tokens.
pub(crate) struct Issuer(Ed25519KeyPair);

impl Issuer {
    pub(crate) fn new() -> Self {
        Self(Ed25519KeyPair::generate().expect("a key"))
    }

    /// The JWK set.
    pub(crate) fn jwks(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": x}]}).to_string()
    }

    /// An access token for this subject, with these scopes.
    pub(crate) fn token(&self, subject: &str, scope: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let expires = now.expect("it is later").as_secs() + 300;
        self.sign(&json!({
            "iss": ISSUER, "aud": RESOURCE, "sub": subject, "exp": expires, "scope": scope,
        }))
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!(
            "{}.{}",
            part(&json!({"alg": "EdDSA", "kid": "1"})),
            part(claims)
        );
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }

    /// Serves the JWK set over TLS, with a certificate that the authority of `ca.pem` has signed.
    pub(crate) async fn serve(&self) -> SocketAddr {
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from(CERTIFICATE)],
                PrivatePkcs8KeyDer::from(KEY).into(),
            )
            .expect("a certificate and its key");
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let keys = self.jwks();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust the certificate goes away in the middle.
                let _ = answer(&tls, stream, &keys).await;
            }
        });
        address
    }
}

/// Answers one request, whatever it is, with the keys.
async fn answer(tls: &TlsAcceptor, stream: TcpStream, keys: &str) -> std::io::Result<()> {
    let mut stream = tls.accept(stream).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let length = keys.len();
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{keys}");
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

/// The certificate of an authority, for `SSL_CERT_FILE`: `ca.pem` signed the issuer's, `other-ca.pem` did not.
pub(crate) fn authority(name: &str) -> String {
    let fixtures = super::root().join("crates/refrain-cli/tests/it/fixtures");
    fixtures.join(name).display().to_string()
}
