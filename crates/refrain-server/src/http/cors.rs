//! CORS: web pages of allowed origins may send requests and read the responses.
//!
//! Without allowed origins, no response has a CORS header, except the public server card.

use super::{AllowedHosts, Body, Headers, ROUND_STATS, SESSION_ID, empty};
use http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_ENCODING,
    CONTENT_TYPE, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

/// The request headers that web pages may set, besides those that start with `Mcp-`.
const REQUEST_HEADERS: [HeaderName; 9] = [
    ACCEPT,
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    super::LAST_EVENT_ID,
    HeaderName::from_static("dpop"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("baggage"),
];
/// The response headers that web pages may read.
const RESPONSE_HEADERS: [HeaderName; 4] = [SESSION_ID, WWW_AUTHENTICATE, RETRY_AFTER, ROUND_STATS];
/// How long a browser may cache the response to a preflight request: two hours, Chromium's maximum.
const MAX_AGE_SECONDS: u16 = 7200;

/// The origins of web pages that may read responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum AllowedOrigins {
    #[default]
    None,
    Only(Vec<String>),
    Any,
}

impl AllowedOrigins {
    pub(super) fn new(origins: impl Iterator<Item = String>) -> Self {
        let origins: Vec<String> = origins.map(|origin| origin.to_ascii_lowercase()).collect();
        if origins.is_empty() {
            Self::None
        } else if origins.iter().any(|origin| origin == "*") {
            Self::Any
        } else {
            Self::Only(origins)
        }
    }

    /// Compares bytes: browsers send origins in lower case, without a default port.
    pub(super) fn contains(&self, origin: &[u8]) -> bool {
        match self {
            Self::None => false,
            Self::Only(origins) => origins.iter().any(|allowed| allowed.as_bytes() == origin),
            Self::Any => true,
        }
    }
}

impl AllowedHosts {
    /// The response to a CORS preflight request of an allowed origin. `None` for all other requests. The caller adds
    /// `Access-Control-Allow-Origin` by [`add_cors_headers`](Self::add_cors_headers).
    pub(super) fn preflight(
        &self,
        method: &Method,
        headers: &Headers<'_>,
    ) -> Option<Response<Body>> {
        let is_preflight = *method == Method::OPTIONS
            && headers.all().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            && self.origins.contains(headers.origin()?.as_bytes());
        is_preflight.then(|| {
            let mut response = empty(StatusCode::NO_CONTENT);
            let methods = HeaderValue::from_static("GET, POST, DELETE");
            let out = response.headers_mut();
            out.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
            out.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_SECONDS.into());
            if let Ok(allowed) = HeaderValue::try_from(allowed_headers(headers.all())) {
                out.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
            }
            response
        })
    }

    /// Lets the web page of this request read the response, if its origin is allowed.
    pub(super) fn add_cors_headers(
        &self,
        origin: Option<&HeaderValue>,
        response: &mut Response<Body>,
    ) {
        if matches!(self.origins, AllowedOrigins::None) {
            return;
        }
        let headers = response.headers_mut();
        headers.append(VARY, HeaderValue::from_static("origin"));
        let Some(origin) = origin.filter(|origin| self.origins.contains(origin.as_bytes())) else {
            return;
        };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        let exposed = RESPONSE_HEADERS.map(|name| name.to_string()).join(", ");
        if let Ok(exposed) = HeaderValue::try_from(exposed) {
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
}

/// The headers named in a preflight request that a web page may set.
fn allowed_headers(headers: &HeaderMap) -> String {
    let requested = headers.get_all(ACCESS_CONTROL_REQUEST_HEADERS);
    let requested = requested.iter().filter_map(|value| value.to_str().ok());
    let names = requested.flat_map(|value| value.split(',')).map(str::trim);
    let allowed = names.filter(|name| {
        let name = name.to_ascii_lowercase();
        name.starts_with("mcp-")
            || REQUEST_HEADERS
                .iter()
                .any(|allowed| allowed.as_str() == name)
    });
    allowed.collect::<Vec<_>>().join(", ")
}
