//! New connections: TCP, proxy, TLS, and a time limit for all of them.

#[cfg(feature = "tls")]
mod secure;

#[cfg(feature = "tls")]
pub(crate) use secure::Proxies;
#[cfg(feature = "tls")]
pub use secure::has_root_certificates;

use crate::meter::MeteredIo;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_service::Service;

/// The minimum time limit for TCP, proxy and TLS together.
const MIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The idle time before the first keep-alive probe of TCP, and the interval between probes. So the loss of a server is
/// detected after about a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The number of unanswered probes after which the server is gone.
const KEEP_ALIVE_RETRIES: u32 = 3;
/// How long sent bytes may stay unacknowledged. TCP sends no keep-alive probes during that time.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(feature = "tls")]
type Transport = hyper_rustls::HttpsConnector<secure::Route>;
#[cfg(not(feature = "tls"))]
type Transport = HttpConnector;

type BoxError = Box<dyn Error + Send + Sync>;
type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

#[derive(Clone)]
pub(crate) struct Connector {
    transport: Transport,
    timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) proxies: Proxies,
}

impl Connector {
    #[cfg(not(feature = "tls"))]
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            transport: tcp_connector(timeout),
            timeout: timeout.max(MIN_TIMEOUT),
        }
    }

    /// Whether a proxy forwards requests to this URL, without a tunnel.
    #[cfg(not(feature = "tls"))]
    fn is_proxied(&self, _: &Uri) -> bool {
        false
    }
}

fn tcp_connector(timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(timeout));
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEP_ALIVE));
    tcp.set_keepalive_interval(Some(KEEP_ALIVE));
    tcp.set_keepalive_retries(Some(KEEP_ALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    tcp
}

impl Service<Uri> for Connector {
    type Response = TokioIo<MeteredIo<TokioIo<<Transport as Service<Uri>>::Response>>>;
    type Error = BoxError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.transport.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let is_proxied = self.is_proxied(&uri);
        let connecting = tokio::time::timeout(self.timeout, self.transport.call(uri));
        Box::pin(async move {
            let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "connecting timed out");
            let io = connecting.await.map_err(timed_out)??;
            Ok(TokioIo::new(MeteredIo::new(TokioIo::new(io), is_proxied)))
        })
    }
}
