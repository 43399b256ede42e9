//! The certificate of a listener with TLS.

use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};

pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A certificate chain and its private key. Clones share them.
#[derive(Clone)]
pub struct TlsCertificate(Arc<RwLock<Arc<CertifiedKey>>>);

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The chain is not PEM.
    #[error("invalid certificate: {0}")]
    InvalidChain(#[source] pem::Error),
    /// The chain is empty.
    #[error("no certificate found: expected a PEM section `CERTIFICATE`")]
    NoCertificate,
    /// The key is not PEM.
    #[error("invalid private key: {0}")]
    InvalidKey(#[source] pem::Error),
    /// There is no key, or only an encrypted one.
    #[error("no private key found: expected an unencrypted PEM section `PRIVATE KEY`")]
    NoKey,
    /// The key does not belong to the certificate.
    #[error("the private key does not belong to the certificate")]
    Mismatch,
    /// The certificate or the kind of key is not supported.
    #[error("unusable certificate or private key: {0}")]
    Unusable(#[source] rustls::Error),
}

impl TlsCertificate {
    /// Reads a chain, the server's certificate first, and its unencrypted private key from PEM.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(TlsError::InvalidChain)?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey,
            error => TlsError::InvalidKey(error),
        })?;
        let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider());
        let certified = certified.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsError::Mismatch,
            error => TlsError::Unusable(error),
        })?;
        Ok(Self(Arc::new(RwLock::new(Arc::new(certified)))))
    }

    /// Uses the chain and key of `other` for new connections.
    pub fn replace(&self, other: &Self) {
        let certified = other.0.read().clone();
        *self.0.write() = certified;
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default TLS versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.clone()));
        #[cfg(feature = "http2")]
        config.alpn_protocols.push(b"h2".to_vec());
        config.alpn_protocols.push(b"http/1.1".to_vec());
        Arc::new(config).into()
    }
}

impl ResolvesServerCert for TlsCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

impl fmt::Debug for TlsCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsCertificate").finish_non_exhaustive()
    }
}
