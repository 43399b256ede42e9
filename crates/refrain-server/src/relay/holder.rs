//! Names of instances: the holder of calls and sessions, and the receiver of a relayed request.

use crate::auth::url::{HttpUrlError, SafeUrl};
use crate::builder::BuildError;
use http::HeaderValue;
use std::fmt;
use std::sync::Arc;

/// The longest advertised URL in bytes. It is part of every session id.
const MAX_URL_BYTES: usize = 512;

/// An instance id and its advertised URL. As text: `INSTANCE` or `INSTANCE URL`, where `INSTANCE` is the id in 16 hexadecimal
/// digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// A random number, chosen when the process starts.
    pub(crate) instance: u64,
    pub(crate) url: Option<Arc<str>>,
}

impl Holder {
    /// The holder for this process. Checks the URL.
    pub(super) fn new(instance: u64, url: Option<String>) -> Result<Self, BuildError> {
        if let Some(url) = &url {
            check_url(url).map_err(|reason| BuildError::Advertise {
                url: url.clone(),
                reason,
            })?;
        }
        Ok(Self {
            instance,
            url: url.map(Arc::from),
        })
    }

    pub(crate) fn id(&self) -> String {
        format!("{:016x}", self.instance)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (instance, url) = match text.split_once(' ') {
            Some((instance, url)) => (instance, Some(url.into())),
            None => (text, None),
        };
        if instance.len() != 16 {
            return None;
        }
        let instance = u64::from_str_radix(instance, 16).ok()?;
        Some(Self { instance, url })
    }
}

/// Checks the URL of an instance.
pub(super) fn check_url(url: &str) -> Result<(), HttpUrlError> {
    let parsed = SafeUrl::parse_private(url)?;
    if url.len() > MAX_URL_BYTES {
        return Err(HttpUrlError::TooLong {
            limit: MAX_URL_BYTES,
        });
    }
    parsed.check_tls()
}

/// The receiver of a relayed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RelayDestination {
    /// The process that holds a call, a session or the state of a handle.
    Holder(Holder),
    /// Any process at the URL of a peer.
    Peer(Arc<str>),
}

impl RelayDestination {
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Holder(holder) => holder.url.as_deref().unwrap_or_default(),
            Self::Peer(url) => url,
        }
    }

    /// The name of the receiver in the sealed header.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Holder(holder) => holder.id(),
            Self::Peer(url) => format!("peer {url}"),
        }
    }

    /// Whether a response with this `Refrain-Instance` header is from the receiver.
    pub(super) fn is_sender(&self, instance: Option<&HeaderValue>) -> bool {
        match self {
            Self::Holder(holder) => {
                instance.is_some_and(|value| value.as_bytes() == holder.id().as_bytes())
            }
            Self::Peer(_) => instance.is_some(),
        }
    }
}

impl From<Holder> for RelayDestination {
    fn from(holder: Holder) -> Self {
        Self::Holder(holder)
    }
}

impl fmt::Display for RelayDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holder(holder) => holder.fmt(f),
            Self::Peer(url) => f.write_str(url),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.instance)?;
        match &self.url {
            Some(url) => write!(f, " {url}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_round_trips_as_text() {
        for url in [None, Some("http://127.0.0.1:8080/mcp".to_owned())] {
            let holder = Holder::new(7, url).expect("a valid URL");
            assert_eq!(Holder::parse(&holder.to_string()), Some(holder));
        }
        for malformed in ["", "7", "000000000000000g", "0000000000000007x"] {
            assert_eq!(Holder::parse(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn invalid_url_is_rejected() {
        let long = format!("http://a/{}", "x".repeat(MAX_URL_BYTES));
        for url in ["", "10.0.0.8", "ftp://a/", "http://user@a/", &long] {
            assert!(Holder::new(7, Some(url.to_owned())).is_err(), "{url}");
        }
    }
}
