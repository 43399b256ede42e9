//! One GET of a small document, over TLS unless it is on this machine.

use crate::auth::web::{UrlError, Web};
use crate::http_client::{HttpClient, check_tls};
use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use std::time::Duration;

/// Time for the whole of it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the connection is kept: there are minutes between two requests.
const IDLE: Duration = Duration::from_secs(5);
/// The largest document that is read.
const LARGEST: usize = 512 * 1024;

/// Why a document could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("no connection to {host}: {}", innermost(error))]
    Connect {
        host: String,
        error: hyper_util::client::legacy::Error,
    },
    #[error("the exchange with {host} failed: {error}")]
    Http {
        host: String,
        error: hyper_util::client::legacy::Error,
    },
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
    #[error("{host} did not answer within {} seconds", TIMEOUT.as_secs())]
    TooLate { host: String },
}

/// The cause of a failed connection.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A document at a URL.
pub(super) struct Document {
    web: Web,
    client: HttpClient,
}

impl Document {
    pub(super) fn new(web: Web) -> Result<Self, UrlError> {
        if web.tls {
            check_tls()?;
        }
        let client = HttpClient::new(TIMEOUT, IDLE);
        Ok(Self { web, client })
    }

    pub(super) async fn fetch(&self) -> Result<Bytes, FetchError> {
        let late = |_| FetchError::TooLate { host: self.host() };
        tokio::time::timeout(TIMEOUT, self.get())
            .await
            .map_err(late)?
    }

    fn host(&self) -> String {
        self.web.host.clone()
    }

    async fn get(&self) -> Result<Bytes, FetchError> {
        let request = Request::get(&self.web.uri)
            .header(ACCEPT, "application/jwk-set+json, application/json")
            .header(USER_AGENT, concat!("refrain/", env!("CARGO_PKG_VERSION")))
            .body(Full::default())
            .expect("the parts of a URL that was parsed make a request");
        let response = self.client.send(request).await.map_err(|error| {
            let host = self.host();
            match error.is_connect() {
                true => FetchError::Connect { host, error },
                false => FetchError::Http { host, error },
            }
        })?;
        let (status, host) = (response.status(), self.host());
        if status.is_redirection() {
            return Err(FetchError::Redirect { host, status });
        }
        if status != StatusCode::OK {
            return Err(FetchError::Status { host, status });
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| FetchError::Body { host, error })?;
        Ok(body.to_bytes())
    }
}

/// The origin alone: the query of the URL may be a secret.
impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Document").field(&self.web.origin).finish()
    }
}
