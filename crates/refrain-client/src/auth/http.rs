//! HTTP requests to authorization servers, and the check of their URLs.
//!
//! Redirects are not followed. The time and size of a response are limited.

use super::error::{AuthError, AuthResult, ResponseError, sanitize};
use crate::error::BoxError;
use crate::retry::within;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use refrain_http::HttpClient;
use serde::de::DeserializeOwned;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use url::{Host, Url};

const TIMEOUT: Duration = Duration::from_secs(15);
const BODY_MAX: usize = 256 * 1024;
const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("refrain/", env!("CARGO_PKG_VERSION")));

#[derive(Clone)]
pub(super) struct AuthHttp(HttpClient);

impl AuthHttp {
    pub(super) fn new() -> Self {
        Self(HttpClient::for_internet(TIMEOUT))
    }

    pub(super) async fn post(
        &self,
        url: &Url,
        content_type: &'static str,
        mut headers: HeaderMap,
        body: String,
    ) -> AuthResult<Response<Vec<u8>>> {
        let content_type = HeaderValue::from_static(content_type);
        headers.insert(header::CONTENT_TYPE, content_type);
        self.send(url, Method::POST, headers, body).await
    }

    /// Reads the first document that exists. Returns it with its URL.
    pub(super) async fn document<'a, T: DeserializeOwned>(
        &self,
        urls: &'a [Url],
    ) -> AuthResult<Option<(&'a Url, T)>> {
        for url in urls {
            let response = self.send(url, Method::GET, HeaderMap::new(), String::new());
            let response = response.await?;
            match response.status() {
                StatusCode::OK => {
                    let invalid = |error| ResponseError::NotMetadata(Arc::new(error));
                    return serde_json::from_slice(response.body())
                        .map(|document| Some((url, document)))
                        .map_err(|error| AuthError::invalid_response(url, invalid(error)));
                }
                status if status.is_server_error() => {
                    return Err(AuthError::invalid_response(
                        url,
                        ResponseError::Status(status),
                    ));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    async fn send(
        &self,
        url: &Url,
        method: Method,
        mut headers: HeaderMap,
        body: String,
    ) -> AuthResult<Response<Vec<u8>>> {
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::USER_AGENT, USER_AGENT);
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        let received = within(TIMEOUT, Box::pin(self.receive(url, request))).await;
        let timed_out = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        let response = received.unwrap_or_else(timed_out);
        let response = response.map_err(|error| AuthError::Unreachable {
            url: url.to_string(),
            source: error.into(),
        })?;
        if response.body().len() > BODY_MAX {
            let too_large = ResponseError::TooLarge(BODY_MAX);
            return Err(AuthError::invalid_response(url, too_large));
        }
        Ok(response)
    }

    /// Sends a request and reads the response, until its body is too large.
    async fn receive(
        &self,
        url: &Url,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Vec<u8>>, BoxError> {
        *request.uri_mut() = url.as_str().parse()?;
        let (head, mut body) = self.0.send(request).await?.into_parts();
        let mut received = Vec::new();
        while let Some(chunk) = body.chunk().await? {
            received.extend_from_slice(&chunk);
            if received.len() > BODY_MAX {
                break;
            }
        }
        Ok(Response::from_parts(head, received))
    }
}

/// Parses a URL that a server named, and checks that secrets may be sent there. A loopback URL must be named by a loopback
/// server, and a private address by a server at a private or loopback address: remote servers must not reach into the
/// client's network. Only loopback URLs may be http.
pub(super) fn safe_url(what: &'static str, url: &str, server: &Url) -> AuthResult<Url> {
    let parsed = Url::parse(url).ok().filter(|url| {
        let is_safe = match url.scheme() {
            "https" if is_loopback(url) => is_loopback(server),
            "https" if is_private(url) => is_private(server) || is_loopback(server),
            "https" => true,
            "http" => is_loopback(url) && is_loopback(server),
            _ => false,
        };
        is_safe && url.username().is_empty() && url.password().is_none()
    });
    parsed.ok_or_else(|| AuthError::UnsafeUrl {
        what,
        url: sanitize(url),
    })
}

pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            name == "localhost" || name.ends_with(".localhost")
        }
        _ => address(url).is_some_and(|address| address.is_loopback()),
    }
}

/// The IP address of the host, or the IPv4 address in a mapped or NAT64 (RFC 6052) address. Names are not resolved.
fn address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(IpAddr::V4(address)),
        Host::Ipv6(address) => Some(match address.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                let bits = (u32::from(high) << 16) | u32::from(low);
                IpAddr::V4(Ipv4Addr::from_bits(bits))
            }
            _ => address.to_canonical(),
        }),
        Host::Domain(_) => None,
    }
}

/// Whether the host is a private IP address.
fn is_private(url: &Url) -> bool {
    match address(url) {
        Some(IpAddr::V4(address)) => {
            let is_shared = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            is_shared || address.is_private() || address.is_link_local() || address.is_unspecified()
        }
        Some(IpAddr::V6(address)) => {
            address.is_unique_local() || address.is_unicast_link_local() || address.is_unspecified()
        }
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
    fn http_is_safe_only_on_loopback() {
        let remote = "https://mcp.example.com/mcp";
        let local = "http://127.0.0.1:8080/mcp";
        assert!(is_safe("https://as.example.com", remote));
        assert!(is_safe("https://as.example.com", local));
        assert!(is_safe("http://localhost:9/x", local));
        assert!(is_safe("http://[::1]:9/x", local));
        assert!(!is_safe("http://as.example.com", remote));
        assert!(!is_safe("http://as.example.com", local));
        assert!(!is_safe("http://127.0.0.1.example.com", local));
    }

    #[test]
    fn remote_server_cannot_name_loopback_urls() {
        let remote = "https://mcp.example.com/mcp";
        assert!(!is_safe("http://localhost:9/x", remote));
        assert!(!is_safe("https://127.0.0.2/x", remote));
        assert!(!is_safe("https://app.localhost/x", remote));
        assert!(!is_safe("https://localhost./x", remote));
        assert!(!is_safe("https://[64:ff9b::7f00:1]/x", remote));
    }

    #[test]
    fn remote_server_cannot_name_private_addresses() {
        for host in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "[64:ff9b::a9fe:a9fe]",
            "0.0.0.0",
            "[fc00::1]",
            "[fdff::1]",
            "[fe80::1]",
            "[::]",
            "[::ffff:10.0.0.1]",
            "[::ffff:127.0.0.1]",
        ] {
            let url = format!("https://{host}/x");
            assert!(!is_safe(&url, "https://mcp.example.com/mcp"), "{host}");
            assert!(!is_safe(&url, "https://192.0.2.1/mcp"), "{host}");
            assert!(is_safe(&url, "http://127.0.0.1:8080/mcp"), "{host}");
        }
        assert!(is_safe("https://10.0.0.1/x", "https://192.168.1.1/mcp"));
        assert!(!is_safe("https://127.0.0.1/x", "https://192.168.1.1/mcp"));
        for host in ["172.32.0.1", "11.0.0.1", "[2001:db8::1]"] {
            let url = format!("https://{host}/x");
            assert!(is_safe(&url, "https://mcp.example.com/mcp"), "{host}");
        }
    }

    #[test]
    fn other_schemes_and_credentials_are_unsafe() {
        let remote = "https://mcp.example.com/mcp";
        for url in [
            "file:///etc/passwd",
            "x",
            "",
            "https://a:b@c",
            "javascript:1",
            "ftp://x",
        ] {
            assert!(!is_safe(url, remote), "{url}");
        }
    }
}
