//! URLs that are safe to speak to: `https`, or plain `http` on this machine.

use http::Uri;
use std::net::IpAddr;

/// A URL that was checked.
#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) uri: Uri,
    pub(crate) tls: bool,
    /// The host, without the brackets of an IPv6 address.
    pub(crate) host: String,
    /// Scheme, host and port as they are written.
    pub(crate) origin: String,
}

/// Why a URL is not accepted.
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

/// Checks a URL.
pub(crate) fn web(text: &str) -> Result<Web, UrlError> {
    let web = any_web(text)?;
    if !web.tls && !is_loopback(&web.host) {
        return Err(UrlError::PlainHttp);
    }
    Ok(web)
}

/// The same, for a server in a network of one's own: plain `http` will do.
pub(crate) fn any_web(text: &str) -> Result<Web, UrlError> {
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
    Ok(Web {
        tls,
        host: host.to_owned(),
        origin: format!("{scheme}://{authority}"),
        uri,
    })
}

fn is_loopback(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host.eq_ignore_ascii_case("localhost") || address.is_some_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_safe_to_speak_to() {
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
            let web = web(good).unwrap_or_else(|reason| panic!("{good}: {reason}"));
            assert_eq!((web.tls, web.host.as_str()), (tls, host));
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
            assert!(web(bad).is_err(), "{bad} is taken");
        }
    }
}
