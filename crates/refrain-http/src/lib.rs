//! The HTTP client of `refrain-client` and `refrain-server`: pooled connections, and limits for hostile servers.
//!
//! It does not follow redirects. After too many interim responses (status 1xx) or HTTP/2 control
//! frames, a request fails with [`HttpError::Excess`]. Callers limit the time and the size of a
//! response themselves.
//!
//! | module | contents |
//! | --- | --- |
//! | `connect` | new connections: TLS, proxies, time limit |
//! | `meter` | the limit of bytes that belong to no response body |
//! | `body` | the body of a response |
//!
//! | feature | adds |
//! | --- | --- |
//! | `tls` | https; `HttpClient::for_internet` |
//! | `http2` | HTTP/2 over TLS, for `HttpClient::for_internet` |

mod body;
mod connect;
mod meter;

pub use body::ResponseBody;
#[cfg(feature = "tls")]
pub use connect::has_root_certificates;

use body::InFlight;
use bytes::Bytes;
use connect::Connector;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

const MAX_IDLE_PER_HOST: usize = 64;
/// How often a request that the server did not process is sent again.
const MAX_RESENDS: usize = 2;
/// How long `HttpClient::for_internet` keeps an idle connection.
#[cfg(feature = "tls")]
const INTERNET_IDLE: Duration = Duration::from_secs(90);

/// A client with its own pool of connections. Clones share the pool.
#[derive(Clone)]
pub struct HttpClient {
    client: legacy::Client<Connector, Full<Bytes>>,
    #[cfg(feature = "tls")]
    proxies: connect::Proxies,
}

/// A failed request, or an incomplete response body. Displays its root cause.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection could be made; the request was not sent.
    #[error("{}", root_cause(.0))]
    Connect(#[source] legacy::Error),
    /// The server closed the connection or the HTTP/2 stream and did not process the request.
    #[error("{}", root_cause(.0))]
    NotProcessed(#[source] legacy::Error),
    /// The server sent too many bytes that belong to no response body.
    #[error("the server sent more than {} MiB of interim responses or control frames", meter::BURST >> 20)]
    Excess,
    /// The connection was lost before the response, or the response is malformed.
    #[error("{}", root_cause(.0))]
    Exchange(#[source] legacy::Error),
    /// The connection was lost before the end of the body, or the body is malformed.
    #[error("{}", root_cause(.0))]
    Body(#[source] hyper::Error),
}

impl HttpError {
    /// Whether there was no connection because this process or machine has no files, ports or memory left.
    pub fn is_exhaustion(&self) -> bool {
        // Unix: ENFILE and EMFILE, which `std::io::ErrorKind` does not distinguish from other errors.
        const OUT_OF_FILES: [i32; 2] = [23, 24];
        let mut cause: Option<&dyn Error> = Some(self);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<io::Error>() {
                let is_out_of_files = error
                    .raw_os_error()
                    .is_some_and(|code| cfg!(unix) && OUT_OF_FILES.contains(&code));
                let kinds = [ErrorKind::AddrNotAvailable, ErrorKind::OutOfMemory];
                if is_out_of_files || kinds.contains(&error.kind()) {
                    return true;
                }
            }
            cause = error.source();
        }
        false
    }
}

fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl HttpClient {
    /// A client that uses HTTP/1.1 and ignores the proxies of the environment.
    pub fn new(connect_timeout: Duration, idle_timeout: Duration) -> Self {
        Self::with_connector(Connector::new(connect_timeout), idle_timeout)
    }

    /// A client that uses the proxies that the environment names, such as `HTTPS_PROXY`. With the feature `http2` it uses
    /// HTTP/2 if a server with TLS offers it.
    #[cfg(feature = "tls")]
    pub fn for_internet(connect_timeout: Duration) -> Self {
        Self::with_connector(Connector::for_internet(connect_timeout), INTERNET_IDLE)
    }

    fn with_connector(connector: Connector, idle_timeout: Duration) -> Self {
        Self {
            #[cfg(feature = "tls")]
            proxies: connector.proxies.clone(),
            client: legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(idle_timeout)
                .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
                .build(connector),
        }
    }

    /// Sends a request and returns the head of the response, with its body to read. A request that the server did not
    /// process, because it closes the connection, is sent again up to two times.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, HttpError> {
        for _ in 0..MAX_RESENDS {
            match self.send_once(request.clone()).await {
                Err(HttpError::NotProcessed(_)) => {}
                sent => return sent,
            }
        }
        self.send_once(request).await
    }

    async fn send_once(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, HttpError> {
        #[cfg(feature = "tls")]
        self.proxies.authorize(&mut request);
        let in_flight = InFlight::new(&mut request);
        match self.client.request(request).await {
            Ok(response) => Ok(response.map(|body| ResponseBody::new(body, in_flight))),
            Err(_) if in_flight.is_over_budget() => Err(HttpError::Excess),
            Err(error) if error.is_connect() => Err(HttpError::Connect(error)),
            Err(error) if is_not_processed(&error) => Err(HttpError::NotProcessed(error)),
            Err(error) => Err(HttpError::Exchange(error)),
        }
    }
}

/// Whether the server states that it did not process the request (RFC 9113, section 8.7).
#[cfg(feature = "http2")]
fn is_not_processed(error: &legacy::Error) -> bool {
    let inner = error.source().and_then(Error::source);
    let Some(error) = inner.and_then(|inner| inner.downcast_ref::<h2::Error>()) else {
        return false;
    };
    let is_shutdown = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (is_shutdown || is_refused)
}

#[cfg(not(feature = "http2"))]
fn is_not_processed(_: &legacy::Error) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Starts a server that sends `first`, then `again` without end. Returns a request to it.
    async fn endless_server(first: &'static [u8], again: Vec<u8>) -> Request<Full<Bytes>> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = connection.read(&mut request).await.unwrap();
            connection.write_all(first).await.unwrap();
            while connection.write_all(&again).await.is_ok() {}
        });
        Request::get(url).body(Full::default()).unwrap()
    }

    fn client() -> HttpClient {
        HttpClient::new(Duration::from_secs(10), Duration::from_secs(10))
    }

    #[tokio::test]
    async fn endless_interim_responses_are_an_error() {
        let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
        let request = endless_server(b"", interim).await;
        let error = client().send(request).await.map(drop).unwrap_err();
        assert!(matches!(error, HttpError::Excess), "{error:?}");
    }

    #[tokio::test]
    async fn body_is_not_limited_while_it_is_read() {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunk = format!("400\r\n{}\r\n", "x".repeat(0x400));
        let request = endless_server(head, chunk.into_bytes().repeat(100)).await;
        let mut body = client().send(request).await.unwrap().into_body();
        let mut received = 0;
        while received < 16 << 20 {
            received += body.chunk().await.unwrap().expect("more").len();
        }
    }

    #[cfg(feature = "http2")]
    #[tokio::test]
    async fn endless_http2_frames_are_an_error() {
        // 103 as a HEADERS frame.
        let interim = [0, 0, 5, 1, 4, 0, 0, 0, 1, 8, 3, b'1', b'0', b'3'];
        let settings = b"\0\0\0\x04\0\0\0\0\0";
        let request = endless_server(settings, interim.repeat(1000)).await;
        let mut client = client();
        client.client = legacy::Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build(Connector::new(Duration::from_secs(10)));
        let error = client.send(request).await.map(drop).unwrap_err();
        assert!(matches!(error, HttpError::Excess), "{error:?}");
    }
}
