//! Checks of request headers: host, origin, and consistency with the body.

use super::cors::AllowedOrigins;
use crate::dispatch::ParsedRequest;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Uri};
use refrain_wire::{Excerpt, RpcError, decode_header};
use std::borrow::Cow;

const BASE64_PREFIX: &str = "=?base64?";

/// The accepted values of the `Host` and `Origin` headers.
///
/// Requests for other hosts, or from web pages of other hosts, are rejected. This protects local servers from DNS
/// rebinding. Browsers let web pages read the responses only if their origin is [allowed](Self::with_origins).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHosts {
    /// `None`: any host.
    hosts: Option<Vec<String>>,
    pub(super) origins: AllowedOrigins,
}

impl AllowedHosts {
    /// `localhost`, `127.0.0.1` and `[::1]`, with any port.
    pub fn local() -> Self {
        Self::only(["localhost", "127.0.0.1", "[::1]"])
    }

    /// These hosts. A host without a port matches any port.
    pub fn only<S: Into<String>>(hosts: impl IntoIterator<Item = S>) -> Self {
        let lower = |host: S| host.into().to_ascii_lowercase();
        Self {
            hosts: Some(hosts.into_iter().map(lower).collect()),
            origins: AllowedOrigins::default(),
        }
    }

    /// Any host, for servers with authentication behind a proxy that checks the host.
    pub fn any() -> Self {
        Self {
            hosts: None,
            origins: AllowedOrigins::default(),
        }
    }

    /// Also accepts requests of web pages of these origins, and lets them read the responses (CORS). An origin has a
    /// scheme, a host and a port unless it is the default one: `https://app.example.com`. `*` stands for any origin; use
    /// it only if callers are authenticated.
    ///
    /// ```
    /// use refrain::server::AllowedHosts;
    ///
    /// let hosts = AllowedHosts::only(["mcp.example.com"]).with_origins(["https://app.example.com"]);
    /// ```
    #[must_use]
    pub fn with_origins<S: Into<String>>(mut self, origins: impl IntoIterator<Item = S>) -> Self {
        self.origins = AllowedOrigins::new(origins.into_iter().map(Into::into));
        self
    }

    fn contains(&self, host: &[u8]) -> bool {
        let Some(hosts) = &self.hosts else {
            return true;
        };
        // The port follows the last colon, unless that colon is part of an IPv6 address in brackets.
        let name = match host.iter().rposition(|byte| matches!(byte, b':' | b']')) {
            // `localhost:80@evil.example` is user information, not a host and a port.
            Some(at) if host[at] == b':' && !host[at + 1..].iter().all(u8::is_ascii_digit) => {
                return false;
            }
            Some(at) if host[at] == b':' => &host[..at],
            _ => host,
        };
        // Fast path: almost every client sends the host in lower case, and most allowed hosts have no port.
        hosts.iter().any(|allowed| allowed.as_bytes() == name)
            || hosts.iter().map(String::as_bytes).any(|allowed| {
                allowed.eq_ignore_ascii_case(host) || allowed.eq_ignore_ascii_case(name)
            })
    }

    pub(super) fn check(&self, headers: &Headers<'_>, uri: &Uri) -> Result<(), HostError> {
        self.check_host(headers, uri)?;
        let Some(origin) = headers.origin.value else {
            return Ok(());
        };
        let url = origin.to_str().ok().and_then(|url| url.split_once("://"));
        let is_allowed = url.is_some_and(|(_, host)| self.contains(host.as_bytes()))
            || self.origins.contains(origin.as_bytes());
        if is_allowed && !headers.origin.repeated {
            return Ok(());
        }
        let origin = String::from_utf8_lossy(origin.as_bytes());
        Err(HostError::Origin(origin.into_owned()))
    }

    /// Checks the host, but not the origin of a web page.
    pub(super) fn check_host(&self, headers: &Headers<'_>, uri: &Uri) -> Result<(), HostError> {
        let host = match headers.host.value {
            Some(host) => Some(host.as_bytes()),
            None => uri
                .authority()
                .map(|authority| authority.as_str().as_bytes()),
        };
        if !host.is_some_and(|host| self.contains(host)) || headers.host.repeated {
            let host = host.map(|host| String::from_utf8_lossy(host).into_owned());
            return Err(match (host, headers.host.repeated) {
                (None, _) => HostError::Missing,
                (Some(_), true) => HostError::Repeated,
                (Some(host), false) => HostError::Host(host),
            });
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostError {
    #[error("missing Host header")]
    Missing,
    #[error("repeated Host header")]
    Repeated,
    #[error("host {:?} is not in this server's list of allowed hosts (`allowed_hosts`)", Excerpt(.0))]
    Host(String),
    #[error(
        "origin {:?} is not allowed: it is not in `allowed_origins`, and its host is not in `allowed_hosts`",
        Excerpt(.0)
    )]
    Origin(String),
}

/// The headers that the endpoint reads, collected in one pass, which is faster than a lookup for each.
#[derive(Debug)]
pub(crate) struct Headers<'a> {
    all: &'a HeaderMap,
    host: SingleHeader<'a>,
    origin: SingleHeader<'a>,
    content_type: SingleHeader<'a>,
    content_encoding: SingleHeader<'a>,
    accept: SingleHeader<'a>,
    version: SingleHeader<'a>,
    method: SingleHeader<'a>,
    name: SingleHeader<'a>,
    relay: SingleHeader<'a>,
    session: SingleHeader<'a>,
}

/// The encoding of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentEncoding {
    Identity,
    #[cfg(feature = "gzip")]
    Gzip,
}

impl ContentEncoding {
    /// The supported encodings, as a value of `Accept-Encoding`.
    pub(super) const SUPPORTED: &'static str = match cfg!(feature = "gzip") {
        true => "gzip, identity",
        false => "identity",
    };
}

/// The last value of a header, and whether the header is repeated. Most headers must not be repeated.
#[derive(Debug, Default)]
struct SingleHeader<'a> {
    value: Option<&'a HeaderValue>,
    repeated: bool,
}

impl<'a> Headers<'a> {
    pub(crate) fn read(headers: &'a HeaderMap) -> Self {
        let mut found = Self {
            all: headers,
            host: SingleHeader::default(),
            origin: SingleHeader::default(),
            content_type: SingleHeader::default(),
            content_encoding: SingleHeader::default(),
            accept: SingleHeader::default(),
            version: SingleHeader::default(),
            method: SingleHeader::default(),
            name: SingleHeader::default(),
            relay: SingleHeader::default(),
            session: SingleHeader::default(),
        };
        for (name, value) in headers {
            let header = match name.as_str() {
                "host" => &mut found.host,
                "origin" => &mut found.origin,
                "content-type" => &mut found.content_type,
                "content-encoding" => &mut found.content_encoding,
                "accept" => &mut found.accept,
                "mcp-protocol-version" => &mut found.version,
                "mcp-method" => &mut found.method,
                "mcp-name" => &mut found.name,
                "refrain-relay" => &mut found.relay,
                "mcp-session-id" => &mut found.session,
                _ => continue,
            };
            header.repeated |= header.value.replace(value).is_some();
        }
        found
    }

    pub(crate) fn all(&self) -> &'a HeaderMap {
        self.all
    }

    pub(super) fn relay(&self) -> Option<&'a HeaderValue> {
        self.relay.value
    }

    /// Whether the request belongs to a legacy session.
    pub(crate) fn has_session(&self) -> bool {
        self.session.value.is_some()
    }

    pub(super) fn content_type(&self) -> Cow<'a, str> {
        let value = self
            .content_type
            .value
            .map_or(&b""[..], HeaderValue::as_bytes);
        String::from_utf8_lossy(value)
    }

    pub(super) fn is_json(&self) -> bool {
        let is_json = |text: &str| {
            let media_type = text.split(';').next().unwrap_or_default();
            media_type.trim().eq_ignore_ascii_case("application/json")
        };
        // Fast path: almost every client sends exactly this.
        self.content_type
            .value
            .is_some_and(|value| value == "application/json" || value.to_str().is_ok_and(is_json))
    }

    pub(super) fn origin(&self) -> Option<&'a HeaderValue> {
        self.origin.value
    }

    /// The encoding of the body. `Err` with its name if it is not supported.
    pub(super) fn content_encoding(&self) -> Result<ContentEncoding, String> {
        let SingleHeader { value, repeated } = &self.content_encoding;
        let Some(value) = value else {
            return Ok(ContentEncoding::Identity);
        };
        let name = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        match name.trim() {
            "identity" if !repeated => Ok(ContentEncoding::Identity),
            #[cfg(feature = "gzip")]
            "gzip" | "x-gzip" if !repeated => Ok(ContentEncoding::Gzip),
            _ => Err(name),
        }
    }

    /// Whether the client can read a stream of events.
    pub(crate) fn accepts_events(&self) -> bool {
        let has_events = |value: &HeaderValue| {
            let value = String::from_utf8_lossy(value.as_bytes());
            value.to_ascii_lowercase().contains("text/event-stream")
        };
        match self.accept.repeated {
            false => self.accept.value.is_some_and(has_events),
            true => self.all.get_all(ACCEPT).iter().any(has_events),
        }
    }

    /// Checks that the metadata headers equal the fields of the body.
    pub(crate) fn check(&self, method: &str, request: &ParsedRequest<'_>) -> Result<(), RpcError> {
        let version = &request.meta().protocol_version;
        check_equal(&self.version, "MCP-Protocol-Version", version, false)?;
        check_equal(&self.method, "Mcp-Method", method, false)?;
        match (request.name(), request) {
            (None, _) => Ok(()),
            // Widely used clients omit the header in task requests.
            (Some(_), ParsedRequest::Task(_)) if self.name.value.is_none() => Ok(()),
            (Some(name), _) => check_equal(&self.name, "Mcp-Name", name, true),
        }
    }
}

/// Checks that a header equals a field of the body. With `can_be_encoded`, the header may be encoded (`=?base64?…?=`).
fn check_equal(
    header: &SingleHeader<'_>,
    name: &str,
    body: &str,
    can_be_encoded: bool,
) -> Result<(), RpcError> {
    let SingleHeader {
        value: Some(value),
        repeated: false,
    } = header
    else {
        let problem = match header.repeated {
            true => "repeated",
            false => "missing",
        };
        return Err(RpcError::header_mismatch(format!(
            "{problem} {name} header: expected {:?} as in the body",
            Excerpt(body)
        )));
    };
    // A name that itself starts with the prefix must be encoded.
    let must_be_encoded = can_be_encoded && body.starts_with(BASE64_PREFIX);
    if value.as_bytes() == body.as_bytes() && body.is_ascii() && !must_be_encoded {
        return Ok(());
    }
    let value = value
        .to_str()
        .map_err(|_| RpcError::header_mismatch(format!("invalid {name} header: not ASCII")))?;
    let decoded = match can_be_encoded {
        true => decode_header(value).ok_or_else(|| {
            RpcError::header_mismatch(format!(
                "invalid {name} header {:?}: not base64 of UTF-8",
                Excerpt(value)
            ))
        })?,
        false => Cow::Borrowed(value),
    };
    if decoded == body {
        return Ok(());
    }
    Err(RpcError::header_mismatch(format!(
        "{name} header {:?} does not match {:?} in the body",
        Excerpt(decoded),
        Excerpt(body)
    )))
}
