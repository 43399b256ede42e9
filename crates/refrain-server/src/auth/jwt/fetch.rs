//! One GET of a small document, over TLS unless it is on this machine.

use crate::auth::url::{SafeUrl, UrlError};
use crate::http_client::{HttpClient, check_tls};
use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use std::time::Duration;

/// The time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the connection is kept: there are minutes between two requests.
const IDLE: Duration = Duration::from_secs(5);
/// The largest document, in bytes.
const LARGEST: usize = 512 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("request failed: {}", innermost(.0))]
    Http(#[from] hyper_util::client::legacy::Error),
    #[error("unexpected status {0}; redirects are not followed")]
    Status(StatusCode),
    #[error("failed to read a body of at most {LARGEST} bytes: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("no response within {} seconds", TIMEOUT.as_secs())]
    Timeout(#[from] tokio::time::error::Elapsed),
}

/// The message of the first cause.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

pub(super) struct Document {
    pub(super) url: SafeUrl,
    client: HttpClient,
}

impl Document {
    pub(super) fn new(url: SafeUrl) -> Result<Self, UrlError> {
        if url.tls {
            check_tls()?;
        }
        let client = HttpClient::new(TIMEOUT, IDLE);
        Ok(Self { url, client })
    }

    pub(super) async fn fetch(&self) -> Result<Bytes, FetchError> {
        tokio::time::timeout(TIMEOUT, self.get()).await?
    }

    async fn get(&self) -> Result<Bytes, FetchError> {
        let request = Request::get(&self.url.uri)
            .header(ACCEPT, "application/jwk-set+json, application/json")
            .header(USER_AGENT, concat!("refrain/", env!("CARGO_PKG_VERSION")))
            .body(Full::default())
            .expect("a parsed URL makes a request");
        let response = self.client.send(request).await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        Ok(body.map_err(FetchError::Body)?.to_bytes())
    }
}
