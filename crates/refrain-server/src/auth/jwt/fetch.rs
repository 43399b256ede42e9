//! One GET of a small document, over TLS unless it is on this machine.
//!
//! A connection is made for each: there are minutes between two. Redirects are not followed, and what the environment
//! says about proxies is not looked at.

use crate::remote::{Remote, Stream};
use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::task::JoinSet;

/// Time for the whole of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest document that is read.
const LARGEST: usize = 512 * 1024;

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
    /// Fetches the document at the URL.
    pub(super) async fn fetch(&self) -> Result<Bytes, FetchError> {
        let host = || self.web.host.clone();
        let exchange = async {
            let connect = |error| FetchError::Connect {
                host: host(),
                error,
            };
            self.get(self.connect().await.map_err(connect)?).await
        };
        tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| FetchError::TooLate { host: host() })?
    }

    async fn get(&self, stream: Box<dyn Stream>) -> Result<Bytes, FetchError> {
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
        let request = Request::get(self.path())
            .header(HOST, self.authority())
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
