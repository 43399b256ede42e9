//! [`OAuth`] and its builder.

use super::client::RegisteredClient;
use super::error::{AuthError, AuthResult, SetupError};
use super::grant::{Grant, GrantScopes, Grants};
use super::http::{AuthHttp, is_loopback, safe_url};
use super::server::ServerAuth;
use super::{Authorize, RejectedRequest};
use crate::error::BoxError;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use url::Url;

/// OAuth authorization: gets access tokens from the authorization server that an MCP server names.
///
/// Each token is sent only to the server that it is for. There are five ways to get one:
///
/// | flow | authorized by |
/// | --- | --- |
/// | [`by_browser`](Self::by_browser) | a person, in a browser |
/// | [`by_credentials`](Self::by_credentials) | the client's own credentials |
/// | [`by_identity_provider`](Self::by_identity_provider) | an enterprise identity provider, for a person |
/// | [`by_workload`](Self::by_workload) | the platform, for a workload |
/// | [`by_stored_grants`](Self::by_stored_grants) | an earlier authorization, whose grant was stored |
///
/// ```
/// use refrain_client::{Client, OAuth, RegisteredClient};
///
/// # fn run() -> Result<(), refrain_client::AuthError> {
/// let client = RegisteredClient::new("nightly-report")
///     .secret("the-client-secret")
///     .issuer("https://login.example.com");
/// let oauth = OAuth::by_credentials(client).scopes(["reports:read"]).build()?;
/// let builder = Client::builder().authorize(oauth);
/// # Ok(())
/// # }
/// # run().unwrap();
/// ```
///
/// Concurrent rejected requests share one authorization. A request is sent at most four times.
pub struct OAuth {
    setup: Arc<OAuthSetup>,
    http: AuthHttp,
    servers: Mutex<HashMap<Url, Arc<ServerAuth>>>,
}

pub(super) type Callback<A, B> =
    Arc<dyn Fn(A) -> BoxFuture<'static, Result<B, BoxError>> + Send + Sync>;

pub(super) struct OAuthSetup {
    pub(super) flow: OAuthFlow,
    pub(super) client: Option<RegisteredClient>,
    pub(super) metadata_url: Option<Url>,
    pub(super) name: String,
    pub(super) scopes: GrantScopes,
    pub(super) grants: Option<Arc<dyn Grants>>,
    pub(super) requires_dpop: bool,
    /// Whether the server's metadata may be for a parent of its URL.
    pub(super) allows_parent_resource: bool,
    /// The first authorization server used, for a client without a configured issuer.
    pub(super) first_issuer: OnceLock<String>,
}

pub(super) enum OAuthFlow {
    Browser {
        redirect_uri: Url,
        visit: Callback<Url, Url>,
    },
    Credentials,
    Enterprise(IdentityProvider),
    Workload(Callback<String, String>),
    /// Only grants in the host's storage, and their refresh tokens.
    Stored,
}

/// An enterprise identity provider, which issues assertions about signed-in people.
#[derive(Clone)]
pub struct IdentityProvider {
    pub(super) token_endpoint: Url,
    pub(super) client: RegisteredClient,
    pub(super) id_token: Callback<(), String>,
}

impl IdentityProvider {
    /// The token endpoint of the identity provider, the client registered there, and a callback that returns the
    /// person's identity token.
    pub fn new<F, Fut>(token_endpoint: Url, client: RegisteredClient, id_token: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, BoxError>> + Send + 'static,
    {
        Self {
            token_endpoint,
            client,
            id_token: Arc::new(move |()| Box::pin(id_token())),
        }
    }
}

impl OAuth {
    /// Authorization by a person in a browser. `visit` receives a URL to show, and returns the URL that the browser was
    /// redirected to. It decides how long to wait.
    ///
    /// On the person's machine, a [`Loopback`](crate::Loopback) receives the redirect:
    ///
    /// ```
    /// use refrain_client::{Client, Loopback, OAuth};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let loopback = Arc::new(Loopback::bind(0).await?);
    /// let oauth = OAuth::by_browser(loopback.redirect_uri().clone(), move |url| {
    ///     let loopback = Arc::clone(&loopback);
    ///     async move {
    ///         println!("Please open {url}");
    ///         Ok(loopback.wait_for_redirect(&url, Duration::from_secs(300)).await?)
    ///     }
    /// });
    /// let builder = Client::builder().authorize(oauth.client_name("My editor").build()?);
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    pub fn by_browser<F, Fut>(redirect_uri: Url, visit: F) -> OAuthBuilder
    where
        F: Fn(Url) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Url, BoxError>> + Send + 'static,
    {
        let visit: Callback<Url, Url> = Arc::new(move |url| Box::pin(visit(url)));
        let flow = OAuthFlow::Browser {
            redirect_uri,
            visit,
        };
        OAuthBuilder::new(flow, None)
    }

    /// Authorization by the client's own credentials: a secret or a private key.
    pub fn by_credentials(client: RegisteredClient) -> OAuthBuilder {
        OAuthBuilder::new(OAuthFlow::Credentials, Some(client))
    }

    /// Authorization by an enterprise identity provider: exchanges the person's identity token for an assertion, and
    /// that for an access token. `client` is registered with the server's authorization server.
    pub fn by_identity_provider(
        provider: IdentityProvider,
        client: RegisteredClient,
    ) -> OAuthBuilder {
        OAuthBuilder::new(OAuthFlow::Enterprise(provider), Some(client))
    }

    /// Authorization by the platform of a workload: `assertion` receives the issuer of the authorization server, and
    /// returns a JWT of the platform for that audience.
    pub fn by_workload<F, Fut>(client: RegisteredClient, assertion: F) -> OAuthBuilder
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, BoxError>> + Send + 'static,
    {
        let assertion: Callback<String, String> =
            Arc::new(move |issuer| Box::pin(assertion(issuer)));
        OAuthBuilder::new(OAuthFlow::Workload(assertion), Some(client))
    }

    /// Authorization by grants that were stored before, such as by a login command. They are renewed with their refresh
    /// tokens. Without a usable grant, requests fail with [`AuthError::LoginRequired`], or with
    /// [`AuthError::ScopeRequired`] if the grant lacks a scope.
    ///
    /// ```
    /// use refrain_client::{AuthError, Client, Grants, OAuth};
    ///
    /// # fn run(grants: impl Grants) -> Result<(), AuthError> {
    /// let builder = Client::builder().authorize(OAuth::by_stored_grants(grants).build()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_stored_grants(grants: impl Grants) -> OAuthBuilder {
        OAuthBuilder::new(OAuthFlow::Stored, None).grants(grants)
    }

    /// The state of one server. Fails for an unsafe URL: tokens are not sent over plain HTTP, except to a loopback address.
    fn server(&self, url: &Url) -> AuthResult<Arc<ServerAuth>> {
        let mut url = safe_url("the server", url.as_str(), url)?;
        url.set_fragment(None);
        let mut servers = self.servers.lock();
        let server = servers.entry(url).or_insert_with_key(|url| {
            let setup = Arc::clone(&self.setup);
            Arc::new(ServerAuth::new(setup, self.http.clone(), url.clone()))
        });
        Ok(Arc::clone(server))
    }
}

impl Authorize for OAuth {
    fn headers<'a>(
        &'a self,
        method: &'a Method,
        url: &'a Url,
    ) -> BoxFuture<'a, AuthResult<HeaderMap>> {
        Box::pin(async move { self.server(url)?.headers(method, url).await })
    }

    fn handle_rejection<'a>(
        &'a self,
        rejection: RejectedRequest<'a>,
    ) -> BoxFuture<'a, AuthResult<bool>> {
        Box::pin(async move {
            self.server(rejection.url)?
                .handle_rejection(rejection)
                .await
        })
    }
}

/// Builds an [`OAuth`].
pub struct OAuthBuilder(OAuthSetup);

impl OAuthBuilder {
    fn new(flow: OAuthFlow, client: Option<RegisteredClient>) -> Self {
        Self(OAuthSetup {
            flow,
            client,
            metadata_url: None,
            name: "Refrain".to_owned(),
            scopes: GrantScopes::default(),
            grants: None,
            requires_dpop: false,
            allows_parent_resource: false,
            first_issuer: OnceLock::new(),
        })
    }

    /// Uses a client that is already registered.
    #[must_use]
    pub fn client(mut self, client: RegisteredClient) -> Self {
        self.0.client = Some(client);
        self
    }

    /// Sets the URL of this client's metadata document. It is the client id at authorization servers that support such
    /// documents.
    #[must_use]
    pub fn client_metadata_url(mut self, url: Url) -> Self {
        self.0.metadata_url = Some(url);
        self
    }

    /// Sets the name under which the client registers itself (default `Refrain`). People see it.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Always requests these scopes, in addition to those that a server demands. Without either,
    /// requests all scopes that the server's metadata lists.
    #[must_use]
    pub fn scopes<I>(mut self, scopes: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let scopes = scopes.into_iter().map(|scope| scope.as_ref().to_owned());
        self.0.scopes = GrantScopes(scopes.collect());
        self
    }

    /// Stores grants persistently. By default they are dropped with the [`OAuth`].
    #[must_use]
    pub fn grants(mut self, grants: impl Grants) -> Self {
        self.0.grants = Some(Arc::new(grants));
        self
    }

    /// Accepts only access tokens that are bound to a key (DPoP). By default tokens are bound if the server wants that
    /// and its authorization server supports it.
    #[must_use]
    pub fn require_dpop(mut self) -> Self {
        self.0.requires_dpop = true;
        self
    }

    /// Accepts a server whose metadata is for a parent of its URL, such as its origin. Access tokens may then be valid
    /// for all servers below that parent: use this only if you trust all of them. By default the metadata must be for
    /// exactly the server's URL, or for the root of its origin if it was found at the root.
    #[must_use]
    pub fn allow_parent_resource(mut self) -> Self {
        self.0.allows_parent_resource = true;
        self
    }

    /// Checks the settings, and builds the [`OAuth`].
    pub fn build(self) -> Result<OAuth, AuthError> {
        self.0.check()?;
        Ok(OAuth {
            setup: Arc::new(self.0),
            http: AuthHttp::new(),
            servers: Mutex::default(),
        })
    }
}

impl OAuthSetup {
    /// Whether a stored grant is for the configured client, with the required binding.
    pub(super) fn accepts(&self, grant: &Grant) -> bool {
        let is_client = self.client.as_ref().is_none_or(|client| {
            let is_issuer = |issuer| issuer == grant.issuer;
            client.id == grant.client.id && client.issuer.as_deref().is_none_or(is_issuer)
        });
        is_client && (grant.key.is_some() || !self.requires_dpop)
    }

    fn check(&self) -> Result<(), SetupError> {
        if let Some(url) = &self.metadata_url
            && (url.scheme() != "https" || url.path() == "/" || url.fragment().is_some())
        {
            return Err(SetupError::MetadataUrl(url.to_string()));
        }
        match &self.flow {
            OAuthFlow::Browser { redirect_uri, .. } => {
                let is_local = redirect_uri.scheme() == "http" && is_loopback(redirect_uri);
                let is_safe = redirect_uri.scheme() == "https" || is_local;
                if !is_safe || redirect_uri.fragment().is_some() {
                    return Err(SetupError::RedirectUri(redirect_uri.to_string()));
                }
            }
            OAuthFlow::Credentials => {
                if !self
                    .client
                    .as_ref()
                    .is_some_and(RegisteredClient::has_credentials)
                {
                    return Err(SetupError::NoCredentials);
                }
            }
            OAuthFlow::Enterprise(IdentityProvider { token_endpoint, .. }) => {
                if token_endpoint.scheme() != "https" && !is_loopback(token_endpoint) {
                    return Err(SetupError::TokenEndpoint(token_endpoint.to_string()));
                }
            }
            OAuthFlow::Workload(_) | OAuthFlow::Stored => {}
        }
        Ok(())
    }
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OAuth(..)")
    }
}

impl fmt::Debug for OAuthBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OAuthBuilder(..)")
    }
}

impl fmt::Debug for IdentityProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentityProvider(..)")
    }
}
