//! Connections to other servers, over TLS where their URL says so.

use crate::auth::web::Web;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use {
    std::sync::Arc,
    tokio_rustls::TlsConnector,
    tokio_rustls::rustls::crypto::aws_lc_rs,
    tokio_rustls::rustls::pki_types::ServerName,
    tokio_rustls::rustls::{ClientConfig, RootCertStore},
};

/// A server somewhere else.
pub(crate) struct Remote {
    pub(crate) web: Web,
    #[cfg(feature = "tls")]
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection to one.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Remote {
    /// Gets ready to speak to the server of a URL, with the certificates that this machine trusts.
    pub(crate) fn new(web: Web) -> Result<Self, &'static str> {
        if !web.tls {
            return Ok(Self {
                web,
                #[cfg(feature = "tls")]
                tls: None,
            });
        }
        Self::with_tls(web)
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(_: Web) -> Result<Self, &'static str> {
        Err("https needs the cargo feature `tls`")
    }

    #[cfg(feature = "tls")]
    fn with_tls(web: Web) -> Result<Self, &'static str> {
        let name = ServerName::try_from(web.host.clone())
            .map_err(|_| "its host is neither a name nor an address")?;
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        for error in &native.errors {
            tracing::warn!(%error, "some trusted certificates cannot be read");
        }
        roots.add_parsable_certificates(native.certs);
        if roots.is_empty() {
            return Err("this machine trusts no certificates: install some, or set SSL_CERT_FILE");
        }
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|_| "TLS cannot be set up")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = Some((TlsConnector::from(Arc::new(config)), name));
        Ok(Self { web, tls })
    }

    /// Makes a connection.
    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.web.host.as_str(), self.web.port)).await?;
        #[cfg(feature = "tls")]
        if let Some((tls, name)) = &self.tls {
            return Ok(Box::new(tls.connect(name.clone(), stream).await?));
        }
        Ok(Box::new(stream))
    }

    /// The path and query of the URL.
    pub(crate) fn path(&self) -> &str {
        let path = self.web.uri.path_and_query();
        path.map_or("/", |path| path.as_str())
    }

    /// The host and port of the URL, as they are written.
    pub(crate) fn authority(&self) -> &str {
        let authority = self.web.uri.authority();
        authority.map_or("", |authority| authority.as_str())
    }
}

/// Where it is, and nothing else: a URL of an operator may have a query that others need not read.
impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Remote").field(&self.web.origin).finish()
    }
}
