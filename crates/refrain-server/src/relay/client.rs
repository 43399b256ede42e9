//! Pooled HTTP connections to other instances, with TLS if the feature `tls` is enabled.

use super::RelayError;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::time::Duration;

/// Time to connect to an instance.
const CONNECT: Duration = Duration::from_secs(1);
/// Idle connections that are kept to one instance.
const IDLE: usize = 64;

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// A client with a pool of connections.
pub(super) struct RelayClient(Client<Connector, Full<Bytes>>);

impl RelayClient {
    /// The holders close a connection that was idle for `idle_time` or longer.
    pub(super) fn new(idle_time: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.set_connect_timeout(Some(CONNECT));
        http.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle_time / 2)
            .pool_max_idle_per_host(IDLE)
            .build(connector(http));
        Self(client)
    }

    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, RelayError> {
        self.0
            .request(request)
            .await
            .map_err(|error| match error.is_connect() {
                true => RelayError::Connect(error),
                false => RelayError::Exchange(error),
            })
    }
}

#[cfg(not(feature = "tls"))]
fn connector(http: HttpConnector) -> Connector {
    http
}

/// With the certificates that this machine trusts.
#[cfg(feature = "tls")]
fn connector(mut http: HttpConnector) -> Connector {
    use tokio_rustls::rustls::crypto::aws_lc_rs;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "failed to read a trusted certificate");
    }
    roots.add_parsable_certificates(native.certs);
    let provider = std::sync::Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    http.enforce_http(false);
    hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http)
}
