//! The protected resource metadata (RFC 9728) over HTTP.

use super::{Body, JSON, empty};
use crate::auth::{PublishedMetadata, WELL_KNOWN};
use crate::server::Server;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

/// A server's [`ResourceMetadata`](crate::ResourceMetadata) as a tower service. Mount it next to
/// [`HttpService`](crate::HttpService); [`serve`](crate::serve) does so by itself.
///
/// ```
/// use refrain::auth::ResourceMetadata;
/// use refrain::runtime::server::MetadataService;
/// use refrain::server::{AllowedHosts, HttpService, Server};
///
/// # fn main() -> Result<(), refrain::server::BuildError> {
/// let metadata = ResourceMetadata::new("https://mcp.example.com/mcp", ["https://login.example.com"]);
/// let server = Server::builder("docs", "1.0").resource_metadata(metadata).build()?;
/// let mut app: axum::Router = axum::Router::new();
/// if let Some(metadata) = MetadataService::new(&server) {
///     for path in metadata.paths() {
///         app = app.route_service(path, metadata.clone());
///     }
/// }
/// app = app.route_service("/mcp", HttpService::new(server, AllowedHosts::only(["mcp.example.com"])));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MetadataService(Arc<PublishedMetadata>);

impl MetadataService {
    /// The metadata of this server, if it was built with any.
    pub fn new(server: &Server) -> Option<Self> {
        server.0.auth.metadata.clone().map(Self)
    }

    /// The paths where clients look for the metadata: the well-known path followed by the path of the resource, and the
    /// well-known path alone.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let path = Some(self.0.path.as_str()).filter(|path| *path != WELL_KNOWN);
        path.into_iter().chain([WELL_KNOWN])
    }

    /// Handles one request, without authentication.
    pub fn handle<B>(&self, request: &http::Request<B>) -> Response<Body> {
        if request.method() != Method::GET {
            let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
            let get = HeaderValue::from_static("GET");
            response.headers_mut().insert(ALLOW, get);
            return response;
        }
        let mut response = Response::new(Body::full(self.0.body.clone()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        let five_minutes = HeaderValue::from_static("public, max-age=300");
        headers.insert(CACHE_CONTROL, five_minutes);
        response
    }

    /// Whether the metadata is served at this path. The well-known path followed by `/mcp` is always included, because
    /// behind a proxy the public path of the resource may differ.
    pub(super) fn matches(&self, path: &str) -> bool {
        let is_default = path.strip_prefix(WELL_KNOWN) == Some("/mcp");
        is_default || self.paths().any(|served| served == path)
    }
}

impl<B> tower_service::Service<http::Request<B>> for MetadataService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        ready(Ok(self.handle(&request)))
    }
}
