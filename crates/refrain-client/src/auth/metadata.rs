//! Metadata of servers (RFC 9728) and authorization servers (RFC 8414 or OpenID Connect Discovery).
//!
//! The challenge or a well-known URL leads to the server's metadata, which names the authorization server. Metadata that
//! is for another server is rejected.

use super::challenge::AuthChallenge;
use super::error::{AuthError, AuthResult, sanitize};
use super::grant::GrantScopes;
use super::http::safe_url;
use super::server::ServerAuth;
use serde::Deserialize;
use url::Url;

#[derive(Default, Deserialize)]
pub(super) struct ProtectedResource {
    pub(super) resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    pub(super) scopes_supported: GrantScopes,
    #[serde(default)]
    dpop_bound_access_tokens_required: bool,
    #[serde(default)]
    dpop_signing_alg_values_supported: Vec<String>,
}

impl ProtectedResource {
    /// The defaults for a server older than RFC 9728, which is its own authorization server.
    fn without_document(server: &Url) -> Self {
        Self {
            resource: server.as_str().trim_end_matches('/').to_owned(),
            authorization_servers: vec![server.origin().ascii_serialization()],
            ..Self::default()
        }
    }

    pub(super) fn wants_dpop(&self) -> bool {
        self.dpop_bound_access_tokens_required || !self.dpop_signing_alg_values_supported.is_empty()
    }

    /// The authorization server to use: the preferred one if the server lists it, otherwise the first.
    fn issuer(&self, server: &Url, preferred: Option<&str>) -> AuthResult<&str> {
        let issuers = &self.authorization_servers;
        let mut listed = issuers
            .iter()
            .filter(|issuer| Some(issuer.as_str()) == preferred);
        let issuer = listed.next().or_else(|| issuers.first());
        issuer
            .map(String::as_str)
            .ok_or_else(|| AuthError::NoResourceMetadata(format!("the metadata of {server}")))
    }
}

#[derive(Deserialize)]
pub(super) struct IssuerMetadata {
    pub(super) issuer: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    registration_endpoint: Option<String>,
    #[serde(default)]
    pub(super) scopes_supported: GrantScopes,
    #[serde(default)]
    code_challenge_methods_supported: Vec<String>,
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    dpop_signing_alg_values_supported: Vec<String>,
    #[serde(default)]
    pub(super) client_id_metadata_document_supported: bool,
    #[serde(default)]
    pub(super) authorization_response_iss_parameter_supported: bool,
}

impl IssuerMetadata {
    pub(super) fn token_endpoint(&self, server: &Url) -> AuthResult<Url> {
        let url = self.token_endpoint.as_deref();
        let url = url.ok_or_else(|| self.unsupported("a token endpoint"))?;
        safe_url("the token endpoint", url, server)
    }

    /// The URL for the browser. PKCE is required, so that a stolen code is useless.
    pub(super) fn authorization_endpoint(&self, server: &Url) -> AuthResult<Url> {
        let methods = &self.code_challenge_methods_supported;
        if !methods.iter().any(|method| method == "S256") {
            return Err(self.unsupported("PKCE with S256 (code_challenge_methods_supported)"));
        }
        let url = self.authorization_endpoint.as_deref();
        let url = url.ok_or_else(|| self.unsupported("an authorization endpoint"))?;
        safe_url("the authorization endpoint", url, server)
    }

    pub(super) fn registration_endpoint(&self, server: &Url) -> AuthResult<Url> {
        let url = self.registration_endpoint.as_deref();
        let url = url.ok_or_else(|| AuthError::ClientNotRegistered(self.issuer.clone()))?;
        safe_url("the registration endpoint", url, server)
    }

    pub(super) fn lists_auth_method(&self, name: &str) -> bool {
        let methods = self.token_endpoint_auth_methods_supported.iter().flatten();
        methods.into_iter().any(|method| method == name)
    }

    pub(super) fn supports_dpop(&self, algorithm: &str) -> bool {
        let algorithms = &self.dpop_signing_alg_values_supported;
        algorithms.iter().any(|listed| listed == algorithm)
    }

    pub(super) fn unsupported(&self, what: &'static str) -> AuthError {
        AuthError::Unsupported {
            issuer: self.issuer.clone(),
            what,
        }
    }
}

impl ServerAuth {
    /// Finds the metadata of the server and of its authorization server: the preferred one, if the server lists it.
    pub(super) async fn find_metadata(
        &self,
        challenge: &AuthChallenge,
        preferred: Option<&str>,
    ) -> AuthResult<(ProtectedResource, IssuerMetadata)> {
        match self.resource_metadata(challenge).await {
            Err(missing @ AuthError::NoResourceMetadata(_))
                if challenge.resource_metadata.is_none() =>
            {
                let resource = ProtectedResource::without_document(&self.url);
                let issuer = resource.issuer(&self.url, None)?;
                match self.issuer_metadata(issuer).await {
                    Err(AuthError::NoIssuerMetadata { .. }) => Err(missing),
                    issuer => Ok((resource, issuer?)),
                }
            }
            resource => {
                let resource = resource?;
                let issuer = resource.issuer(&self.url, preferred)?;
                let issuer = self.issuer_metadata(issuer).await?;
                Ok((resource, issuer))
            }
        }
    }

    async fn resource_metadata(&self, challenge: &AuthChallenge) -> AuthResult<ProtectedResource> {
        let name = "oauth-protected-resource";
        let mut urls = match &challenge.resource_metadata {
            Some(url) => vec![safe_url("the server's metadata", url, &self.url)?],
            None => vec![
                well_known_inserted(&self.url, name),
                well_known_at_root(&self.url, name),
            ],
        };
        urls.dedup();
        let found: Option<(&Url, ProtectedResource)> = self.http.document(&urls).await?;
        let (found_at, metadata) =
            found.ok_or_else(|| AuthError::NoResourceMetadata(join_urls(&urls)))?;
        let resource = Url::parse(&metadata.resource).ok();
        let is_accepted = resource.is_some_and(|resource| {
            // The document at the root of the server is about the root (RFC 9728, section 3.3).
            let is_root = challenge.resource_metadata.is_none()
                && *found_at == well_known_at_root(&self.url, name)
                && is_same(&resource, &with_path(&self.url, "/"));
            let is_parent = self.setup.allows_parent_resource && is_parent(&resource, &self.url);
            is_same(&resource, &self.url) || is_root || is_parent
        });
        if !is_accepted {
            return Err(AuthError::ResourceMismatch {
                server: self.url.to_string(),
                resource: sanitize(&metadata.resource),
            });
        }
        Ok(metadata)
    }

    pub(super) async fn issuer_metadata(&self, issuer: &str) -> AuthResult<IssuerMetadata> {
        let url = safe_url("the authorization server", issuer, &self.url)?;
        let openid = "openid-configuration";
        let mut urls = vec![
            well_known_inserted(&url, "oauth-authorization-server"),
            well_known_inserted(&url, openid),
            well_known_appended(&url, openid),
        ];
        urls.dedup();
        let found: Option<(&Url, IssuerMetadata)> = self.http.document(&urls).await?;
        let (_, metadata) = found.ok_or_else(|| AuthError::NoIssuerMetadata {
            issuer: issuer.to_owned(),
            tried: join_urls(&urls),
        })?;
        if metadata.issuer != issuer {
            return Err(AuthError::IssuerMismatch {
                expected: issuer.to_owned(),
                found: sanitize(&metadata.issuer),
            });
        }
        Ok(metadata)
    }
}

/// Whether two URLs are the same, except for a slash at the end of the path.
fn is_same(resource: &Url, server: &Url) -> bool {
    resource.origin() == server.origin()
        && resource.path().trim_end_matches('/') == server.path().trim_end_matches('/')
        && resource.query() == server.query()
        && resource.fragment().is_none()
}

/// Whether a resource is the server or a parent path of it, with or without the server's query.
fn is_parent(resource: &Url, server: &Url) -> bool {
    let path = resource.path().trim_end_matches('/');
    let rest = server.path().strip_prefix(path);
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && (resource.query().is_none() || resource.query() == server.query())
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn well_known_inserted(url: &Url, name: &str) -> Url {
    let path = url.path().trim_end_matches('/');
    with_path(url, &format!("/.well-known/{name}{path}"))
}

fn well_known_appended(url: &Url, name: &str) -> Url {
    let path = url.path().trim_end_matches('/');
    with_path(url, &format!("{path}/.well-known/{name}"))
}

fn well_known_at_root(url: &Url, name: &str) -> Url {
    with_path(url, &format!("/.well-known/{name}"))
}

fn with_path(url: &Url, path: &str) -> Url {
    let mut url = url.clone();
    url.set_path(path);
    url.set_query(None);
    url.set_fragment(None);
    url
}

fn join_urls(urls: &[Url]) -> String {
    let urls: Vec<&str> = urls.iter().map(Url::as_str).collect();
    urls.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(url: &str) -> Url {
        Url::parse(url).unwrap()
    }

    #[test]
    fn well_known_urls_follow_their_specifications() {
        let tenant = url("https://as.example.com/tenant1/?a#b");
        assert_eq!(
            well_known_inserted(&tenant, "x").as_str(),
            "https://as.example.com/.well-known/x/tenant1"
        );
        assert_eq!(
            well_known_appended(&tenant, "x").as_str(),
            "https://as.example.com/tenant1/.well-known/x"
        );
        assert_eq!(
            well_known_at_root(&tenant, "x").as_str(),
            "https://as.example.com/.well-known/x"
        );
        let bare = url("https://as.example.com");
        assert_eq!(
            well_known_inserted(&bare, "x"),
            well_known_appended(&bare, "x")
        );
        assert_eq!(
            well_known_inserted(&bare, "x"),
            well_known_at_root(&bare, "x")
        );
    }

    #[test]
    fn resource_must_be_the_server_or_an_allowed_parent() {
        let server = url("https://mcp.example.com/a/mcp");
        for resource in [
            "https://mcp.example.com/a/mcp",
            "https://mcp.example.com/a/mcp/",
            "HTTPS://MCP.example.com:443/a/mcp",
        ] {
            assert!(is_same(&url(resource), &server), "{resource}");
            assert!(is_parent(&url(resource), &server), "{resource}");
        }
        for resource in [
            "https://mcp.example.com/a",
            "https://mcp.example.com/a/",
            "https://mcp.example.com",
            "HTTPS://MCP.example.com:443/",
        ] {
            assert!(!is_same(&url(resource), &server), "{resource}");
            assert!(is_parent(&url(resource), &server), "{resource}");
        }
        for resource in [
            "https://mcp.example.com/a/m",
            "https://mcp.example.com/a/mcp/b",
            "https://mcp.example.com/b",
            "https://mcp.example.com/a/mcp#x",
            "https://mcp.example.com/a/mcp?x",
            "https://mcp.example.com:8443/a/mcp",
            "http://mcp.example.com/a/mcp",
            "https://evil.example.com/a/mcp",
        ] {
            assert!(!is_same(&url(resource), &server), "{resource}");
            assert!(!is_parent(&url(resource), &server), "{resource}");
        }
        let with_query = url("https://mcp.example.com/a/mcp?tenant=1");
        assert!(!is_same(&server, &with_query));
        assert!(is_parent(&server, &with_query));
    }

    #[test]
    fn preferred_authorization_server_is_used_if_listed() {
        let metadata = ProtectedResource {
            authorization_servers: vec!["https://a".to_owned(), "https://b".to_owned()],
            ..ProtectedResource::default()
        };
        let server = url("https://mcp.example.com");
        let issuer = |preferred| metadata.issuer(&server, preferred).unwrap();
        assert_eq!(issuer(None), "https://a");
        assert_eq!(issuer(Some("https://b")), "https://b");
        assert_eq!(issuer(Some("https://c")), "https://a");
    }
}
