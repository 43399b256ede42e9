//! HTTP client for other servers: pooled connections, with TLS if the feature `tls` is enabled.
//!
//! It does not follow redirects and ignores proxy settings in the environment.

use crate::auth::HttpUrlError;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
#[cfg(feature = "tls")]
use std::sync::{Arc, OnceLock};
use std::time::Duration;
#[cfg(feature = "tls")]
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

const MAX_IDLE: usize = 64;

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

#[derive(Clone)]
pub struct HttpClient(Client<Connector, Full<Bytes>>);

impl HttpClient {
    pub fn new(connect_timeout: Duration, idle_timeout: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.set_connect_timeout(Some(connect_timeout));
        http.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle_timeout)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(connector(http));
        Self(client)
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        self.0.request(request).await
    }
}

/// Checks that `https` URLs can be used.
#[cfg(not(feature = "tls"))]
pub(crate) fn check_tls() -> Result<(), HttpUrlError> {
    Err(HttpUrlError::NoTls)
}

#[cfg(feature = "tls")]
pub(crate) fn check_tls() -> Result<(), HttpUrlError> {
    match roots().is_empty() {
        true => Err(HttpUrlError::NoCertificates),
        false => Ok(()),
    }
}

#[cfg(not(feature = "tls"))]
fn connector(http: HttpConnector) -> Connector {
    http
}

#[cfg(feature = "tls")]
fn connector(mut http: HttpConnector) -> Connector {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default TLS versions")
        .with_root_certificates(roots())
        .with_no_client_auth();
    http.enforce_http(false);
    hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http)
}

#[cfg(feature = "tls")]
fn roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let load = || {
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        for error in &native.errors {
            tracing::warn!(%error, "failed to load a root certificate");
        }
        roots.add_parsable_certificates(native.certs);
        Arc::new(roots)
    };
    ROOTS.get_or_init(load).clone()
}
