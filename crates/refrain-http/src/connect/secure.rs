//! TLS with the root certificates of the machine, and proxies.

use super::{BoxError, Connecting, Connector, MIN_TIMEOUT, tcp_connector};
use http::header::PROXY_AUTHORIZATION;
use http::uri::Scheme;
use http::{Request, Uri};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tower_service::Service;

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

impl Connector {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self::with_proxies(timeout, Proxies(None), &[HTTP1])
    }

    pub(crate) fn for_internet(timeout: Duration) -> Self {
        let versions: &[_] = match cfg!(feature = "http2") {
            true => &[HTTP2, HTTP1],
            false => &[HTTP1],
        };
        let proxies = Proxies(Some(Arc::new(Matcher::from_env())));
        Self::with_proxies(timeout, proxies, versions)
    }

    fn with_proxies(timeout: Duration, proxies: Proxies, versions: &[&[u8]]) -> Self {
        let tcp = tcp_connector(timeout);
        let route = Route {
            to_proxy: HttpsConnector::from((tcp.clone(), tls_config(&[HTTP1]))),
            tcp,
            proxies: proxies.clone(),
        };
        Self {
            transport: HttpsConnector::from((route, tls_config(versions))),
            timeout: timeout.max(MIN_TIMEOUT),
            proxies,
        }
    }

    /// Whether a proxy forwards requests to this URL, without a tunnel.
    pub(super) fn is_proxied(&self, uri: &Uri) -> bool {
        self.proxies.forwarding_proxy(uri).is_some()
    }
}

/// The proxies to use, if any.
#[derive(Clone)]
pub(crate) struct Proxies(Option<Arc<Matcher>>);

impl Proxies {
    /// The proxy for this URL. Requests to this machine never use a proxy, which could read their secrets without TLS.
    fn for_url(&self, uri: &Uri) -> Option<Intercept> {
        match is_local(uri.host()?) {
            true => None,
            false => self.0.as_ref()?.intercept(uri),
        }
    }

    /// The proxy that forwards requests to this URL. For https it would be a tunnel instead.
    fn forwarding_proxy(&self, uri: &Uri) -> Option<Intercept> {
        match uri.scheme() == Some(&Scheme::HTTPS) {
            true => None,
            false => self.for_url(uri),
        }
    }

    /// Adds the credentials for a forwarding proxy. A tunnel is authenticated when it is opened.
    pub(crate) fn authorize<B>(&self, request: &mut Request<B>) {
        let proxy = self.forwarding_proxy(request.uri());
        if let Some(credentials) = proxy.as_ref().and_then(Intercept::basic_auth) {
            let headers = request.headers_mut();
            headers.insert(PROXY_AUTHORIZATION, credentials.clone());
        }
    }
}

/// Whether a host is this machine.
fn is_local(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.');
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => {
            let host = host.to_ascii_lowercase();
            host == "localhost" || host.ends_with(".localhost")
        }
    }
}

/// TCP connections to servers or proxies. A connection to a proxy for an https server is a tunnel to that server.
#[derive(Clone)]
pub(crate) struct Route {
    tcp: HttpConnector,
    to_proxy: HttpsConnector<HttpConnector>,
    proxies: Proxies,
}

impl Service<Uri> for Route {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.for_url(&uri) else {
            let connecting = self.tcp.call(uri);
            return Box::pin(async move { Ok(connecting.await?.into()) });
        };
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return self.to_proxy.call(proxy.uri().clone());
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.to_proxy.clone());
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        let connecting = tunnel.call(uri);
        Box::pin(async move { Ok(connecting.await?) })
    }
}

/// Whether the machine has root certificates. Without them, every https request fails.
pub fn has_root_certificates() -> bool {
    !root_certificates().is_empty()
}

fn tls_config(versions: &[&[u8]]) -> ClientConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default TLS versions")
        .with_root_certificates(root_certificates())
        .with_no_client_auth();
    config.alpn_protocols = versions.iter().map(|name| name.to_vec()).collect();
    config
}

fn root_certificates() -> Arc<RootCertStore> {
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

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn hosts_of_this_machine_are_local() {
        for host in [
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "127.0.0.9",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com",
            "10.0.0.1",
            "[2001:db8::1]",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
