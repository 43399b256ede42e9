//! The protected resource metadata of RFC 9728.

use super::challenge::DPOP_ALGORITHMS;
use super::url::{HttpUrlError, SafeUrl};
use crate::builder::BuildError;
use bytes::Bytes;
use serde::Serialize;

/// The well-known path of the metadata. The path of the resource is appended.
pub(crate) const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Public metadata of a server, in particular its authorization servers.
///
/// ```
/// use refrain::auth::ResourceMetadata;
/// use refrain::server::Server;
///
/// let mut metadata = ResourceMetadata::new("https://mcp.example.com/mcp", ["https://login.example.com"]);
/// metadata.resource_name = Some("The files of Example Ltd".into());
/// let server = Server::builder("files", "1.0").resource_metadata(metadata).build()?;
/// # Ok::<(), refrain::server::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ResourceMetadata {
    /// The public URL of the MCP endpoint, which is the audience of its tokens.
    pub resource: String,
    /// The issuer URLs of the authorization servers. At least one.
    pub authorization_servers: Vec<String>,
    /// The scopes that a client should request initially.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes_supported: Vec<String>,
    /// The display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_name: Option<String>,
    /// The URL of the documentation for developers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_documentation: Option<String>,
}

#[derive(Debug)]
pub(crate) struct PublishedMetadata {
    pub(crate) url: String,
    pub(crate) path: String,
    pub(crate) body: Bytes,
}

impl ResourceMetadata {
    /// The metadata of the resource at this URL, with these authorization servers.
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

    pub(super) fn publish(&self, requires_dpop: bool) -> Result<PublishedMetadata, BuildError> {
        #[derive(Serialize)]
        struct Document<'a> {
            #[serde(flatten)]
            metadata: &'a ResourceMetadata,
            /// Tokens in a body or a query are not accepted.
            bearer_methods_supported: [&'static str; 1],
            #[serde(skip_serializing_if = "Option::is_none")]
            dpop_bound_access_tokens_required: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            dpop_signing_alg_values_supported: Option<[&'static str; DPOP_ALGORITHMS.len()]>,
        }
        let invalid = |url: &str, reason| BuildError::Metadata {
            url: url.to_owned(),
            reason,
        };
        let parse = |url: &str| {
            let parsed = SafeUrl::parse(url).map_err(|reason| invalid(url, reason))?;
            match parsed.uri.query() {
                None => Ok(parsed),
                Some(_) => Err(invalid(url, HttpUrlError::Query)),
            }
        };
        let SafeUrl { uri, origin, .. } = parse(&self.resource)?;
        for server in &self.authorization_servers {
            parse(server)?;
        }
        if self.authorization_servers.is_empty() {
            return Err(BuildError::NoAuthorizationServer(self.resource.clone()));
        }
        let path = format!("{WELL_KNOWN}{}", uri.path().trim_end_matches('/'));
        let document = Document {
            metadata: self,
            bearer_methods_supported: ["header"],
            dpop_bound_access_tokens_required: requires_dpop.then_some(true),
            dpop_signing_alg_values_supported: requires_dpop.then_some(DPOP_ALGORITHMS),
        };
        let body = serde_json::to_vec(&document).expect("strings and lists serialize to JSON");
        Ok(PublishedMetadata {
            url: format!("{origin}{path}"),
            path,
            body: body.into(),
        })
    }
}
