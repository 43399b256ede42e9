//! The server card of SEP-2127: public metadata of a server, served without authentication.

use super::{Body, Headers, HttpService, empty};
use crate::auth::url::{HttpUrlError, SafeUrl};
use crate::builder::BuildError;
use crate::metrics::Refusal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use refrain_core::limited_event;
use refrain_wire::legacy::Revision;
use refrain_wire::{Implementation, PROTOCOL_VERSION};
use regex::Regex;
use serde::Serialize;

/// The end of the card's path, after the path of the endpoint.
pub(super) const SUFFIX: &str = "/server-card";
const SCHEMA: &str = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json";
const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/mcp-server-card+json");

/// Public metadata of a server at the path of its endpoint followed by `/server-card`, for clients and catalogs that do not know
/// the server yet. It contains the name, version, title, description, website and icons of the server, the URL of its
/// endpoint and the supported revisions of the protocol; tools, prompts and resources are not listed.
///
/// ```
/// use refrain::server::{Server, ServerCard};
///
/// let server = Server::builder("files", "1.0")
///     .describe("Search the files of Example Ltd")
///     .server_card(ServerCard::new("com.example/files").url("https://mcp.example.com/mcp"))
///     .build()?;
/// # Ok::<(), refrain::server::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerCard {
    name: String,
    url: Option<String>,
}

/// Why a server card is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerCardError {
    /// The name is not a reversed domain, a slash and a name.
    #[error("invalid name: expected a reversed domain and a name, as in \"com.example/files\"")]
    Name,
    /// The server has no description, or a long one.
    #[error(
        "the server needs a description of 1 to 100 characters: its code must set one with ServerBuilder::describe"
    )]
    Description,
    /// The title of the server is empty or long.
    #[error("the title of the server must have 1 to 100 characters")]
    Title,
    /// The URL of the endpoint is invalid.
    #[error("invalid URL: {0}")]
    Url(#[from] HttpUrlError),
}

/// A rendered card.
#[derive(Debug)]
pub(crate) struct PublishedCard {
    body: Bytes,
    etag: HeaderValue,
}

impl ServerCard {
    /// A card with this public name: a reversed domain that you own, a slash, and a name.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { name, url: None }
    }

    /// Sets the public URL of the endpoint. Default: the resource of
    /// [`ResourceMetadata`](crate::ResourceMetadata), if that is set.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Checks the name and the URL, as [`ServerBuilder::build`](crate::ServerBuilder::build) does.
    pub fn check(&self) -> Result<(), ServerCardError> {
        let form = Regex::new("^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$").expect("the regex is valid");
        if self.name.len() > 200 || !form.is_match(&self.name) {
            return Err(ServerCardError::Name);
        }
        if let Some(url) = &self.url {
            SafeUrl::parse(url)?;
        }
        Ok(())
    }

    pub(crate) fn publish(
        self,
        info: &Implementation,
        resource: Option<&str>,
    ) -> Result<PublishedCard, BuildError> {
        self.check()?;
        let fits = |text: &str| (1..=100).contains(&text.chars().count());
        if !info.description.as_deref().is_some_and(fits) {
            return Err(ServerCardError::Description.into());
        }
        if !info.title.as_deref().is_none_or(fits) {
            return Err(ServerCardError::Title.into());
        }
        let url = self.url.as_deref().or(resource);
        if let Some(url) = url {
            SafeUrl::parse(url).map_err(ServerCardError::Url)?;
        }
        let info = Implementation {
            name: self.name,
            ..info.clone()
        };
        Ok(PublishedCard::render(&info, url))
    }
}

impl PublishedCard {
    fn render(info: &Implementation, url: Option<&str>) -> Self {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Remote<'a> {
            r#type: &'static str,
            url: &'a str,
            supported_protocol_versions: Vec<&'static str>,
        }
        #[derive(Serialize)]
        struct Document<'a> {
            #[serde(rename = "$schema")]
            schema: &'static str,
            #[serde(flatten)]
            info: &'a Implementation,
            #[serde(skip_serializing_if = "Option::is_none")]
            remotes: Option<[Remote<'a>; 1]>,
        }
        let legacy = Revision::ALL.iter().map(|revision| revision.as_str());
        let versions = std::iter::once(PROTOCOL_VERSION).chain(legacy);
        let document = Document {
            schema: SCHEMA,
            info,
            remotes: url.map(|url| {
                [Remote {
                    r#type: "streamable-http",
                    url,
                    supported_protocol_versions: versions.collect(),
                }]
            }),
        };
        let body = serde_json::to_vec(&document).expect("strings and lists serialize to JSON");
        let hash = URL_SAFE_NO_PAD.encode(&digest(&SHA256, &body).as_ref()[..16]);
        let etag = HeaderValue::try_from(format!("\"{hash}\"")).expect("base64 is ASCII");
        Self {
            body: body.into(),
            etag,
        }
    }

    fn respond(&self, method: &Method, headers: &HeaderMap) -> Response<Body> {
        let mut response = match *method {
            Method::GET | Method::HEAD if self.is_cached(headers) => {
                empty(StatusCode::NOT_MODIFIED)
            }
            Method::GET | Method::HEAD => {
                let mut response = Response::new(Body::full(self.body.clone()));
                response.headers_mut().insert(CONTENT_TYPE, MEDIA_TYPE);
                response
            }
            Method::OPTIONS => empty(StatusCode::NO_CONTENT),
            _ => empty(StatusCode::METHOD_NOT_ALLOWED),
        };
        let is_allowed = response.status() != StatusCode::METHOD_NOT_ALLOWED;
        let headers = response.headers_mut();
        let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
        if !is_allowed {
            set(ALLOW, "GET, HEAD, OPTIONS");
        }
        // The document is public, so any web page may read it.
        set(ACCESS_CONTROL_ALLOW_ORIGIN, "*");
        set(ACCESS_CONTROL_ALLOW_METHODS, "GET");
        set(ACCESS_CONTROL_ALLOW_HEADERS, "Content-Type, If-None-Match");
        set(ACCESS_CONTROL_EXPOSE_HEADERS, "ETag");
        if is_allowed && *method != Method::OPTIONS {
            set(CACHE_CONTROL, "public, max-age=3600");
            headers.insert(ETAG, self.etag.clone());
        }
        response
    }

    /// Whether the client has a cached copy of this card, by its `If-None-Match` header.
    fn is_cached(&self, headers: &HeaderMap) -> bool {
        let sent = headers.get_all(IF_NONE_MATCH).iter();
        let tags = sent.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        tags.map(<[u8]>::trim_ascii).any(|tag| {
            tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == self.etag.as_bytes()
        })
    }
}

impl HttpService {
    /// The response to a request for the card. `None` if the request is for another path, or the server has no card.
    pub(super) fn server_card(
        &self,
        parts: &Parts,
        headers: &Headers<'_>,
    ) -> Option<Response<Body>> {
        let card = self.server().0.server_card.as_ref()?;
        if !parts.uri.path().ends_with(SUFFIX) {
            return None;
        }
        if let Err(reason) = self.hosts.check_host(headers, &parts.uri) {
            limited_event!(WARN, %reason, "request rejected");
            let status = StatusCode::FORBIDDEN;
            return Some(*self.reject(Refusal::Host, status, reason.to_string()));
        }
        Some(card.respond(&parts.method, headers.all()))
    }
}
