//! URLs of other servers.

use http::Uri;
use std::net::IpAddr;

/// A checked URL: `https`, or plain `http` where that is safe.
#[derive(Clone, Debug)]
pub(crate) struct SafeUrl {
    pub(crate) uri: Uri,
    pub(crate) tls: bool,
    /// The host, without the brackets of an IPv6 address.
    pub(crate) host: String,
    /// Scheme, host and port as in the text.
    pub(crate) origin: String,
}

/// Why a URL is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It cannot be parsed.
    #[error("it is not a URL")]
    Malformed,
    /// It has no scheme or no authority.
    #[error("it is not a URL with a scheme and a host")]
    Relative,
    /// Its scheme is neither `https` nor `http`.
    #[error("it is not an https URL")]
    Scheme,
    /// Its scheme is `http`, and its host is not this machine.
    #[error("plain http is for this machine only: use https")]
    PlainHttp,
    /// It has a user name or a password.
    #[error("it may not have a user or a password")]
    UserInfo,
    /// Its host is empty.
    #[error("it has no host")]
    NoHost,
    /// It has a query.
    #[error("it may not have a query")]
    Query,
    /// It has a fragment.
    #[error("it may not have a fragment")]
    Fragment,
    /// It is too long.
    #[error("it is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// Its scheme is `https`, and the build has no TLS.
    #[error("https needs the cargo feature `tls`")]
    NoTls,
    /// Its scheme is `https`, and this machine has no trusted certificates.
    #[error("this machine trusts no certificates: install some, or set SSL_CERT_FILE")]
    NoCertificates,
}

impl SafeUrl {
    /// Parses a URL whose scheme is `https`, or `http` for this machine.
    pub(crate) fn parse(text: &str) -> Result<Self, UrlError> {
        let url = Self::parse_private(text)?;
        let address: Option<IpAddr> = url.host.parse().ok();
        let is_loopback = url.host.eq_ignore_ascii_case("localhost")
            || address.is_some_and(|address| address.is_loopback());
        match url.tls || is_loopback {
            true => Ok(url),
            false => Err(UrlError::PlainHttp),
        }
    }

    /// Parses a URL in a private network, where plain `http` is safe.
    pub(crate) fn parse_private(text: &str) -> Result<Self, UrlError> {
        if text.contains('#') {
            return Err(UrlError::Fragment);
        }
        let uri: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(UrlError::Relative);
        };
        if authority.as_str().contains('@') {
            return Err(UrlError::UserInfo);
        }
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(UrlError::Scheme),
        };
        if host.is_empty() {
            return Err(UrlError::NoHost);
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
            assert!(SafeUrl::parse(bad).is_err(), "{bad} is taken");
        }
    }
}
