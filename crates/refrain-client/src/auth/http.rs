//! Requests to authorization servers, and which URLs may have them.
//!
//! Always: no redirect is followed, no answer is waited for without end or read without end.

use super::error::{AuthError, quoted};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use reqwest::redirect::Policy;
use serde::de::DeserializeOwned;
use std::time::Duration;
use url::{Host, Url};

/// Time for one request and its answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// The largest answer that is read.
const LARGEST: usize = 256 * 1024;

/// Sends requests.
#[derive(Clone, Debug)]
pub(super) struct Http(reqwest::Client);

impl Http {
    pub(super) fn new() -> Result<Self, AuthError> {
        let client = reqwest::Client::builder()
            .redirect(Policy::none())
            .timeout(PATIENCE)
            .user_agent(concat!("refrain/", env!("CARGO_PKG_VERSION")))
            .build();
        client
            .map(Self)
            .map_err(|error| AuthError::Setup(format!("TLS cannot be set up: {error}")))
    }

    pub(super) async fn send(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, AuthError> {
        let url = request.uri().to_string();
        let unreachable = |error: reqwest::Error| AuthError::Unreachable {
            url: url.clone(),
            reason: reason(&error.without_url()),
        };
        let request = reqwest::Request::try_from(request).map_err(unreachable)?;
        let mut answer = self.0.execute(request).await.map_err(unreachable)?;
        let mut response = Response::new(Vec::new());
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            let body = response.body_mut();
            if body.len() + chunk.len() > LARGEST {
                return Err(AuthError::BadAnswer {
                    url,
                    reason: format!("it is larger than {LARGEST} bytes and was not read further"),
                });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(response)
    }

    /// A document, or nothing where there is none.
    pub(super) async fn document<T: DeserializeOwned>(
        &self,
        url: &Url,
    ) -> Result<Option<T>, AuthError> {
        let mut request = Request::new(Vec::new());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = uri(url)?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::ACCEPT, json);
        let answer = self.send(request).await?;
        match answer.status() {
            StatusCode::OK => serde_json::from_slice(answer.body())
                .map(Some)
                .map_err(|error| AuthError::BadAnswer {
                    url: url.to_string(),
                    reason: format!("it is not the metadata expected there: {error}"),
                }),
            status if status.is_server_error() => Err(AuthError::BadAnswer {
                url: url.to_string(),
                reason: format!("it is {status}; try again later"),
            }),
            _ => Ok(None),
        }
    }
}

/// The whole chain of causes: the first of reqwest's errors alone says little.
fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

pub(super) fn uri(url: &Url) -> Result<http::Uri, AuthError> {
    http::Uri::try_from(url.as_str()).map_err(|error| AuthError::Unreachable {
        url: url.to_string(),
        reason: error.to_string(),
    })
}

/// A URL that may be sent secrets, on behalf of this server. One on this machine is believed only from a server on
/// this machine: another one could use the client to knock at doors that are closed to itself.
pub(super) fn safe_url(what: &'static str, url: &str, server: &Url) -> Result<Url, AuthError> {
    let parsed = Url::parse(url).ok().filter(|url| {
        let is_safe = match url.scheme() {
            "https" => !is_here(url) || is_here(server),
            "http" => is_here(url) && is_here(server),
            _ => false,
        };
        is_safe && url.username().is_empty() && url.password().is_none()
    });
    parsed.ok_or_else(|| AuthError::UnsafeUrl {
        what,
        url: quoted(url),
    })
}

/// Whether a URL is on this machine.
pub(super) fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_safe(url: &str, server: &str) -> bool {
        safe_url("it", url, &Url::parse(server).unwrap()).is_ok()
    }

    #[test]
    fn https_is_safe_and_http_only_here() {
        let far = "https://mcp.example.com/mcp";
        let near = "http://127.0.0.1:8080/mcp";
        assert!(is_safe("https://as.example.com", far));
        assert!(is_safe("https://as.example.com", near));
        assert!(is_safe("http://localhost:9/x", near));
        assert!(is_safe("http://[::1]:9/x", near));
        assert!(!is_safe("http://as.example.com", far));
        assert!(!is_safe("http://as.example.com", near));
        assert!(!is_safe("http://127.0.0.1.example.com", near));
    }

    #[test]
    fn a_far_server_does_not_name_urls_here() {
        let far = "https://mcp.example.com/mcp";
        assert!(!is_safe("http://localhost:9/x", far));
        assert!(!is_safe("https://127.0.0.2/x", far));
        assert!(!is_safe("https://app.localhost/x", far));
    }

    #[test]
    fn other_schemes_and_passwords_are_not_safe() {
        let far = "https://mcp.example.com/mcp";
        for url in [
            "file:///etc/passwd",
            "x",
            "",
            "https://a:b@c",
            "javascript:1",
            "ftp://x",
        ] {
            assert!(!is_safe(url, far), "{url}");
        }
    }
}
