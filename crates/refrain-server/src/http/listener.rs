//! A listening socket, with or without TLS.

#[cfg(feature = "tls")]
use super::tls::TlsCertificate;
use std::fmt;
use tokio::net::TcpListener;

/// A socket to [`serve`](crate::serve) on. A [`TcpListener`] converts to one without TLS.
///
/// It supports HTTP/1.1, and with the cargo feature `http2` also HTTP/2: over TLS if the client selects it (ALPN), without TLS
/// for clients that send the preface of HTTP/2 ("prior knowledge").
pub struct Listener {
    pub(super) socket: TcpListener,
    pub(super) transport: Transport,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.socket).finish()
    }
}

/// How the bytes of a connection are sent.
#[derive(Clone)]
pub(super) enum Transport {
    Plain,
    #[cfg(feature = "tls")]
    Tls(tokio_rustls::TlsAcceptor),
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self {
            socket,
            transport: Transport::Plain,
        }
    }
}

#[cfg(feature = "tls")]
impl Listener {
    /// Serves `https` with this certificate. [`TlsCertificate::replace`] changes it later.
    pub fn with_tls(mut self, certificate: &TlsCertificate) -> Self {
        self.transport = Transport::Tls(certificate.acceptor());
        self
    }
}
