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

/// Checks a URL, or says what is wrong with it.
pub(crate) fn web(text: &str) -> Result<Web, &'static str> {
    let web = any_web(text)?;
    if !web.tls && !is_loopback(&web.host) {
        return Err("plain http is for this machine only: use https");
    }
    Ok(web)
}

/// The same, for a server in a network of one's own: plain `http` will do.
pub(crate) fn any_web(text: &str) -> Result<Web, &'static str> {
    if text.contains('#') {
        return Err("it may not have a fragment");
    }
    let uri: Uri = text.parse().map_err(|_| "it is not a URL")?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err("it is not a URL with a scheme and a host");
    };
    if authority.as_str().contains('@') {
        return Err("it may not have a user or a password");
    }
    let host = authority.host();
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let tls = match scheme {
        "https" => true,
        "http" => false,
        _ => return Err("it is not an https URL"),
    };
    if host.is_empty() {
        return Err("it has no host");
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
