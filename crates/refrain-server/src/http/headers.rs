//! The checks of a request's headers: host, origin, and that they match the body.

use crate::dispatch::Request;
use http::{HeaderMap, HeaderValue, Uri};
use refrain_wire::{RpcError, decode_header};
use std::borrow::Cow;

/// How a value in its base64 form begins.
const ENCODED: &str = "=?base64?";

/// The hosts a server answers for. A request for another host, or from a page of another one, is refused: that is
/// what keeps a web page from reaching a local server by DNS rebinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHosts(Option<Vec<String>>);

impl AllowedHosts {
    /// This machine only: `localhost`, `127.0.0.1` and `[::1]`, on any port.
    pub fn local() -> Self {
        Self::only(["localhost", "127.0.0.1", "[::1]"])
    }

    /// These hosts. A name without a port allows every port.
    pub fn only<S: Into<String>>(hosts: impl IntoIterator<Item = S>) -> Self {
        let lower = |host: S| host.into().to_ascii_lowercase();
        Self(Some(hosts.into_iter().map(lower).collect()))
    }

    /// Any host: for servers behind a proxy that checks, with authentication on.
    pub fn any() -> Self {
        Self(None)
    }

    fn has(&self, host: &[u8]) -> bool {
        let Some(hosts) = &self.0 else { return true };
        // The port is what comes after the last colon, unless that is one of an address in brackets.
        let name = match host.iter().rposition(|byte| matches!(byte, b':' | b']')) {
            Some(at) if host[at] == b':' => &host[..at],
            _ => host,
        };
        // As almost every client writes it.
        hosts.iter().any(|allowed| allowed.as_bytes() == name)
            || hosts.iter().map(String::as_bytes).any(|allowed| {
                allowed.eq_ignore_ascii_case(host) || allowed.eq_ignore_ascii_case(name)
            })
    }

    /// May a request to this host, from this origin, come in?
    pub(super) fn admit(&self, heads: &Headers<'_>, uri: &Uri) -> Result<(), HostError> {
        let host = match heads.host.value {
            Some(host) => Some(host.as_bytes()),
            None => uri
                .authority()
                .map(|authority| authority.as_str().as_bytes()),
        };
        if !host.is_some_and(|host| self.has(host)) || heads.host.twice {
            return Err(HostError::Host);
        }
        let Some(origin) = heads.origin.value else {
            return Ok(());
        };
        let from = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"))
            .map(|(_, host)| host.as_bytes());
        if from.is_some_and(|host| self.has(host)) && !heads.origin.twice {
            return Ok(());
        }
        Err(HostError::Origin)
    }
}

/// Why a request to another host, or from a page of another origin, is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostError {
    #[error("this server does not answer for the host in the Host header")]
    Host,
    #[error("this server does not answer pages of the origin in the Origin header")]
    Origin,
}

/// The headers that are looked at, found in one pass: that costs less than looking each of them up.
#[derive(Debug)]
pub(crate) struct Headers<'a> {
    all: &'a HeaderMap,
    host: Head<'a>,
    origin: Head<'a>,
    content_type: Head<'a>,
    version: Head<'a>,
    method: Head<'a>,
    name: Head<'a>,
    relay: Head<'a>,
    session: Head<'a>,
}

/// One header: its last value, and whether there were several.
#[derive(Debug, Default)]
struct Head<'a> {
    value: Option<&'a HeaderValue>,
    twice: bool,
}

impl<'a> Headers<'a> {
    pub(crate) fn read(headers: &'a HeaderMap) -> Self {
        let mut heads = Self {
            all: headers,
            host: Head::default(),
            origin: Head::default(),
            content_type: Head::default(),
            version: Head::default(),
            method: Head::default(),
            name: Head::default(),
            relay: Head::default(),
            session: Head::default(),
        };
        for (name, value) in headers {
            let head = match name.as_str() {
                "host" => &mut heads.host,
                "origin" => &mut heads.origin,
                "content-type" => &mut heads.content_type,
                "mcp-protocol-version" => &mut heads.version,
                "mcp-method" => &mut heads.method,
                "mcp-name" => &mut heads.name,
                "refrain-relay" => &mut heads.relay,
                "mcp-session-id" => &mut heads.session,
                _ => continue,
            };
            head.twice |= head.value.replace(value).is_some();
        }
        heads
    }

    /// All headers of the request.
    pub(crate) fn all(&self) -> &'a HeaderMap {
        self.all
    }

    /// The header that authenticates a relayed request.
    pub(super) fn relay(&self) -> Option<&'a HeaderValue> {
        self.relay.value
    }

    /// Does the request name a legacy session?
    pub(crate) fn has_session(&self) -> bool {
        self.session.value.is_some()
    }

    pub(super) fn is_json(&self) -> bool {
        // As almost every client writes it.
        if self
            .content_type
            .value
            .is_some_and(|value| value == "application/json")
        {
            return true;
        }
        self.content_type
            .value
            .and_then(|value| value.to_str().ok())
            .map(|value| value.split(';').next().unwrap_or_default().trim())
            .is_some_and(|value| value.eq_ignore_ascii_case("application/json"))
    }

    /// Do the metadata headers say what the body says?
    pub(crate) fn check(&self, method: &str, request: &Request<'_>) -> Result<(), RpcError> {
        let version = &request.meta().protocol_version;
        matches(&self.version, "MCP-Protocol-Version", version, false)?;
        matches(&self.method, "Mcp-Method", method, false)?;
        match request.name() {
            Some(name) => matches(&self.name, "Mcp-Name", name, true),
            None => Ok(()),
        }
    }
}

fn matches(header: &Head<'_>, shown: &str, body: &str, encoded: bool) -> Result<(), RpcError> {
    let Head {
        value: Some(value),
        twice: false,
    } = header
    else {
        let problem = if header.twice {
            "is there more than once"
        } else {
            "is missing"
        };
        return Err(RpcError::header_mismatch(format!(
            "the {shown} header {problem}; it must say what the body says"
        )));
    };
    let is_encoded = encoded && body.starts_with(ENCODED);
    if value.as_bytes() == body.as_bytes() && body.is_ascii() && !is_encoded {
        return Ok(());
    }
    let value = value.to_str().map_err(|_| {
        RpcError::header_mismatch(format!(
            "the {shown} header has characters that are not ASCII"
        ))
    })?;
    let said = if encoded {
        decode_header(value).ok_or_else(|| {
            RpcError::header_mismatch(format!("the {shown} header is not valid base64 of UTF-8"))
        })?
    } else {
        Cow::Borrowed(value)
    };
    if said == body {
        return Ok(());
    }
    Err(RpcError::header_mismatch(format!(
        "the {shown} header says {said:?} and the body says {body:?}"
    )))
}
