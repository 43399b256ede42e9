//! One GET of a small document, over TLS unless it is on this machine.
//!
//! A connection is made for each: there are minutes between two. Redirects are not followed, and what the environment
//! says about proxies is not looked at.

use crate::auth::web::Web;
use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Time for the whole of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest document that is read.
const LARGEST: usize = 512 * 1024;

/// A document somewhere else.
pub(super) struct Remote {
    web: Web,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// Why a document could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("no connection to {host}: {error}")]
    Connect { host: String, error: std::io::Error },
    #[error("the exchange with {host} failed: {error}")]
    Http { host: String, error: hyper::Error },
    #[error("{host} answered with {status}; redirects are not followed")]
    Redirect { host: String, status: StatusCode },
    #[error("{host} answered with {status}")]
    Status { host: String, status: StatusCode },
    #[error(
        "the answer of {host} was not read to its end, or is larger than {LARGEST} bytes: {error}"
    )]
    Body {
        host: String,
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{host} did not answer within {} seconds", PATIENCE.as_secs())]
    TooLate { host: String },
}

impl Remote {
    /// Gets ready to fetch from a URL, with the certificates that this machine trusts.
    pub(super) fn new(web: Web) -> Result<Self, &'static str> {
        if !web.tls {
            return Ok(Self { web, tls: None });
        }
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

    pub(super) async fn fetch(&self) -> Result<Bytes, FetchError> {
        let host = || self.web.host.clone();
        let exchange = async {
            let connect = |error| FetchError::Connect {
                host: host(),
                error,
            };
            let stream = TcpStream::connect((self.web.host.as_str(), self.web.port));
            let stream = stream.await.map_err(connect)?;
            match &self.tls {
                None => self.get(stream).await,
                Some((tls, name)) => {
                    let stream = tls.connect(name.clone(), stream).await.map_err(connect)?;
                    self.get(stream).await
                }
            }
        };
        tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| FetchError::TooLate { host: host() })?
    }

    async fn get<S>(&self, stream: S) -> Result<Bytes, FetchError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let host = || self.web.host.clone();
        let http = |error| FetchError::Http {
            host: host(),
            error,
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        // Ended with this future, whatever comes of it.
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let uri = &self.web.uri;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(path)
            .header(HOST, authority)
            .header(ACCEPT, "application/jwk-set+json, application/json")
            .header(USER_AGENT, concat!("refrain/", env!("CARGO_PKG_VERSION")))
            .body(Empty::<Bytes>::new())
            .expect("the parts of a URL that was parsed make a request");
        let response = sender.send_request(request).await.map_err(http)?;
        let status = response.status();
        if status.is_redirection() {
            return Err(FetchError::Redirect {
                host: host(),
                status,
            });
        }
        if status != StatusCode::OK {
            return Err(FetchError::Status {
                host: host(),
                status,
            });
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| FetchError::Body {
            host: host(),
            error,
        })?;
        Ok(body.to_bytes())
    }
}
