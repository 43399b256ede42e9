//! Fetches the JWK set of an authorization server.

use crate::auth::url::{HttpUrlError, SafeUrl};
use crate::timer::within;
use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use refrain_http::{HttpClient, HttpError};
use std::time::Duration;

/// Time limit for connecting, and for the whole request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long an idle connection is kept. Short, since there are usually minutes between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a JWK set.
const MAX_BYTES: usize = 512 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("request failed: {0}")]
    Http(#[from] HttpError),
    #[error("unexpected status {0}: expected 200")]
    Status(StatusCode),
    #[error("failed to read a body of up to {MAX_BYTES} bytes: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("no response within {} seconds", TIMEOUT.as_secs())]
    Timeout,
}

pub(super) struct JwksDocument {
    pub(super) url: SafeUrl,
    client: HttpClient,
}

impl JwksDocument {
    pub(super) fn new(url: SafeUrl) -> Result<Self, HttpUrlError> {
        url.check_tls()?;
        let client = HttpClient::new(TIMEOUT, IDLE_TIMEOUT);
        Ok(Self { url, client })
    }

    pub(super) async fn fetch(&self) -> Result<Bytes, FetchError> {
        let fetched = within(TIMEOUT, self.get()).await;
        fetched.ok_or(FetchError::Timeout)?
    }

    async fn get(&self) -> Result<Bytes, FetchError> {
        let request = Request::get(&self.url.uri)
            .header(ACCEPT, "application/jwk-set+json, application/json")
            .header(USER_AGENT, concat!("refrain/", env!("CARGO_PKG_VERSION")))
            .body(Full::default())
            .expect("the URL and the headers are valid");
        let response = self.client.send(request).await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_BYTES)
            .collect()
            .await;
        Ok(body.map_err(FetchError::Body)?.to_bytes())
    }
}
