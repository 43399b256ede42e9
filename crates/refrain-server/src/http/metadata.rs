//! The protected resource metadata (RFC 9728) over HTTP, without authentication.

use super::{Body, HttpService, empty, json};
use crate::auth::{PublishedMetadata, WELL_KNOWN};
use http::header::{ALLOW, CACHE_CONTROL};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};

impl HttpService {
    /// The response to a request for the metadata. `None` if the request is for another path, or the server has none.
    pub(super) fn metadata(&self, parts: &Parts) -> Option<Response<Body>> {
        let metadata = self.metadata_at(parts.uri.path())?;
        if parts.method != Method::GET {
            let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
            let get = HeaderValue::from_static("GET");
            response.headers_mut().insert(ALLOW, get);
            return Some(response);
        }
        let mut response = json(metadata.body.clone());
        let five_minutes = HeaderValue::from_static("public, max-age=300");
        response.headers_mut().insert(CACHE_CONTROL, five_minutes);
        Some(response)
    }

    /// The metadata, if it is served at this path: the well-known path alone, or followed by the path of the resource or by
    /// `/mcp`, because behind a proxy the public path of the resource may differ.
    pub(super) fn metadata_at(&self, path: &str) -> Option<&PublishedMetadata> {
        let metadata = self.server().0.auth.metadata.as_deref()?;
        let is_default = matches!(path.strip_prefix(WELL_KNOWN), Some("" | "/mcp"));
        (is_default || path == metadata.path).then_some(metadata)
    }
}
