//! The sealed header that authenticates a relayed request.
//!
//! All instances share the keys, so the receiver does not authenticate the caller again. A header is valid for one
//! instance and one request, for 30 seconds plus the clock skew.

use super::{LAST_EVENT_ID, RelayDestination, RelayRequest, SESSION_ID};
use crate::auth::{Caller, Scopes};
use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, Method};
use refrain_core::{OpenError, Principal, Source};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a header is valid, without the clock skew.
const VALID_SECONDS: u64 = 30;

/// The content of the header.
#[derive(Serialize, Deserialize)]
pub(crate) struct RelayClaims {
    /// The [name](RelayDestination::name) of the receiver.
    pub(super) to: String,
    /// When the header was created, in seconds since 1970.
    at: u64,
    /// The digest of the request.
    request: String,
    principal: Option<String>,
    /// `None`: all scopes.
    scopes: Option<Vec<String>>,
    /// When the caller's access expires, in seconds since 1970.
    expires: Option<u64>,
    address: Option<IpAddr>,
}

/// Why the sealed header of a relayed request is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayAuthError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the header is for another instance")]
    OtherInstance,
}

impl RelayClaims {
    pub(super) fn new(
        to: &RelayDestination,
        request: &RelayRequest<'_>,
        headers: &HeaderMap,
        source: &dyn Source,
    ) -> Self {
        let caller = request.caller;
        let unix_seconds = |at: SystemTime| Some(at.duration_since(UNIX_EPOCH).ok()?.as_secs());
        Self {
            to: to.name(),
            at: source.unix_seconds(),
            request: request_digest(request.method, headers, request.body),
            principal: caller.principal.id().map(ToOwned::to_owned),
            scopes: caller.scopes.names(),
            expires: caller.expires.and_then(unix_seconds),
            address: caller.address,
        }
    }

    pub(super) fn is_expired(&self, now: u64, skew: Duration) -> bool {
        now.abs_diff(self.at) > VALID_SECONDS + skew.as_secs()
    }

    /// The caller that the sending instance authenticated.
    pub(crate) fn caller(&self) -> Caller {
        let (principal, scopes) = (self.principal.as_deref(), self.scopes.as_ref());
        let expires = self.expires.map(Duration::from_secs);
        Caller {
            principal: principal.map_or_else(Principal::anonymous, Principal::new),
            scopes: scopes.map_or_else(Scopes::everything, Scopes::from_iter),
            expires: expires.and_then(|seconds| UNIX_EPOCH.checked_add(seconds)),
            address: self.address,
        }
    }

    /// Whether the header belongs to this request.
    pub(crate) fn is_for(&self, method: &Method, headers: &HeaderMap, body: &[u8]) -> bool {
        self.request == request_digest(method, headers, body)
    }
}

fn request_digest(method: &Method, headers: &HeaderMap, body: &[u8]) -> String {
    let mut digest = Context::new(&SHA256);
    let header = |name| headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    for part in [
        method.as_str().as_bytes(),
        header(SESSION_ID),
        header(LAST_EVENT_ID),
    ] {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.update(body);
    URL_SAFE_NO_PAD.encode(digest.finish())
}
