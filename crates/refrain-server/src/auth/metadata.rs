//! The protected resource metadata of RFC 9728.

use super::url::{SafeUrl, UrlError};
use crate::builder::BuildError;
use bytes::Bytes;
use serde::Serialize;

/// The path at which the metadata of a resource without a path are served; the path of another follows it.
pub(crate) const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Public metadata of a server: its authorization servers, above all.
///
/// ```
/// # use refrain_server::{ResourceMetadata, Server};
/// let mut metadata = ResourceMetadata::new("https://mcp.example.com/mcp", ["https://login.example.com"]);
/// metadata.resource_name = Some("The files of Example Ltd".into());
/// let server = Server::builder("files", "1.0").resource_metadata(metadata).build()?;
/// # Ok::<(), refrain_server::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ResourceMetadata {
    /// The URL of the MCP endpoint as clients know it. Tokens are issued for it: it is their audience.
    pub resource: String,
    /// The issuers of the authorization servers: at least one.
    pub authorization_servers: Vec<String>,
    /// The scopes that a client should ask for to begin with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes_supported: Vec<String>,
    /// A name to display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_name: Option<String>,
    /// A page for developers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_documentation: Option<String>,
}

/// The metadata as they are served.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) url: String,
    /// The path of `url`.
    pub(crate) path: String,
    pub(crate) body: Bytes,
}

impl ResourceMetadata {
    /// The metadata of the resource at this URL, for which these authorization servers issue tokens.
    pub fn new<S: Into<String>>(
        resource: impl Into<String>,
        authorization_servers: impl IntoIterator<Item = S>,
    ) -> Self {
        let servers = authorization_servers.into_iter().map(Into::into);
        Self {
            resource: resource.into(),
            authorization_servers: servers.collect(),
            scopes_supported: Vec::new(),
            resource_name: None,
            resource_documentation: None,
        }
    }

    pub(super) fn publish(&self) -> Result<Published, BuildError> {
        #[derive(Serialize)]
        struct Document<'a> {
            #[serde(flatten)]
            metadata: &'a ResourceMetadata,
            /// Tokens in a body or a query are not read.
            bearer_methods_supported: [&'static str; 1],
        }
        let bad = |url: &str, reason| BuildError::Metadata {
            url: url.to_owned(),
            reason,
        };
        let identifier = |url: &str| {
            let parsed = SafeUrl::parse(url).map_err(|reason| bad(url, reason))?;
            match parsed.uri.query() {
                None => Ok(parsed),
                Some(_) => Err(bad(url, UrlError::Query)),
            }
        };
        let SafeUrl { uri, origin, .. } = identifier(&self.resource)?;
        for server in &self.authorization_servers {
            identifier(server)?;
        }
        if self.authorization_servers.is_empty() {
            return Err(BuildError::NoAuthorizationServer(self.resource.clone()));
        }
        let path = format!("{WELL_KNOWN}{}", uri.path().trim_end_matches('/'));
        let document = Document {
            metadata: self,
            bearer_methods_supported: ["header"],
        };
        let body = serde_json::to_vec(&document).expect("strings and lists of them are JSON");
        Ok(Published {
            url: format!("{origin}{path}"),
            path,
            body: body.into(),
        })
    }
}
