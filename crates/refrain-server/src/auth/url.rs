//! Checked HTTP URLs of other servers.

use http::Uri;
use std::net::IpAddr;

/// A checked URL: `https`, or plain `http` where that is safe.
#[derive(Clone, Debug)]
pub(crate) struct SafeUrl {
    pub(crate) uri: Uri,
    pub(crate) tls: bool,
    /// The host, without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) origin: String,
}

/// Why an HTTP URL is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpUrlError {
    /// The URL cannot be parsed.
    #[error("malformed URL")]
    Malformed,
    /// The scheme or the host is missing.
    #[error("expected an absolute URL with scheme and host")]
    Relative,
    /// The scheme is neither `https` nor `http`.
    #[error("unsupported scheme: use https")]
    Scheme,
    /// The scheme is `http`, and the host is not a loopback host.
    #[error("plain http is allowed for loopback hosts only: use https")]
    PlainHttp,
    /// The URL contains a user name or a password.
    #[error("a user name or password is not allowed")]
    UserInfo,
    /// The host is empty.
    #[error("empty host")]
    NoHost,
    /// The URL contains a query.
    #[error("a query is not allowed")]
    Query,
    /// The URL contains a fragment.
    #[error("a fragment is not allowed")]
    Fragment,
    /// The URL is too long.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The scheme is `https`, and the build has no TLS.
    #[error("https needs the cargo feature `tls`")]
    NoTls,
    /// The scheme is `https`, and this machine has no root certificates.
    #[error("no root certificates found: install some, or set SSL_CERT_FILE")]
    NoCertificates,
}

impl SafeUrl {
    /// Checks that an `https` URL can be used.
    pub(crate) fn check_tls(&self) -> Result<(), HttpUrlError> {
        if !self.tls {
            return Ok(());
        }
        #[cfg(feature = "tls")]
        return match refrain_http::has_root_certificates() {
            true => Ok(()),
            false => Err(HttpUrlError::NoCertificates),
        };
        #[cfg(not(feature = "tls"))]
        Err(HttpUrlError::NoTls)
    }

    /// Parses an `https` URL, or an `http` URL with a loopback host.
    pub(crate) fn parse(text: &str) -> Result<Self, HttpUrlError> {
        let url = Self::parse_private(text)?;
        let address: Option<IpAddr> = url.host.parse().ok();
        let is_loopback = url.host.eq_ignore_ascii_case("localhost")
            || address.is_some_and(|address| address.is_loopback());
        match url.tls || is_loopback {
            true => Ok(url),
            false => Err(HttpUrlError::PlainHttp),
        }
    }

    /// Parses a URL in a private network, where plain `http` is allowed.
    pub(crate) fn parse_private(text: &str) -> Result<Self, HttpUrlError> {
        if text.contains('#') {
            return Err(HttpUrlError::Fragment);
        }
        let uri: Uri = text.parse().map_err(|_| HttpUrlError::Malformed)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(HttpUrlError::Relative);
        };
        if authority.as_str().contains('@') {
            return Err(HttpUrlError::UserInfo);
        }
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(HttpUrlError::Scheme),
        };
        if host.is_empty() {
            return Err(HttpUrlError::NoHost);
        }
        Ok(Self {
            tls,
            host: host.to_owned(),
            origin: format!("{scheme}://{authority}"),
            uri,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_urls_are_rejected() {
        for (good, tls, host) in [
            (
                "https://login.example.com/jwks.json?p=1",
                true,
                "login.example.com",
            ),
            ("https://login.example.com:8443", true, "login.example.com"),
            ("HTTPS://[2001:db8::1]/x", true, "2001:db8::1"),
            ("http://localhost:9000/x", false, "localhost"),
            ("http://127.0.0.1/", false, "127.0.0.1"),
            ("http://[::1]:1/", false, "::1"),
        ] {
            let url = SafeUrl::parse(good).unwrap_or_else(|reason| panic!("{good}: {reason}"));
            assert_eq!((url.tls, url.host.as_str()), (tls, host));
        }
        for bad in [
            "",
            "login.example.com",
            "/jwks.json",
            "http://login.example.com/",
            "http://127.0.0.1.example.com/",
            "http://localhost.example.com/",
            "http://0.0.0.0/",
            "ftp://localhost/",
            "file:///etc/passwd",
            "https://user:password@login.example.com/",
            "https://login.example.com/#keys",
            "https:///jwks.json",
            "https://:443/",
        ] {
            assert!(SafeUrl::parse(bad).is_err(), "{bad} was accepted");
        }
    }
}
