//! OAuth for every server that a client talks to, and its builder.

use super::client::RegisteredClient;
use super::error::{AuthError, AuthResult, BoxError, SetupError};
use super::grant::{Grant, Grants, Scopes};
use super::http::{Http, is_here, safe_url};
use super::server::Server;
use super::{Authorize, Refusal};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use url::Url;

/// Gets access tokens from the authorization server that a server names, and shows each to that server alone.
///
/// There are four ways to get one. A person says yes in a browser ([`by_browser`](Self::by_browser)); the client has
/// its own rights ([`by_credentials`](Self::by_credentials)); an enterprise's identity provider vouches for the
/// person ([`by_identity_provider`](Self::by_identity_provider)); the platform vouches for the workload
/// ([`by_workload`](Self::by_workload)).
///
/// ```
/// use refrain_client::{Client, OAuth, RegisteredClient};
///
/// # fn run() -> Result<(), refrain_client::AuthError> {
/// let client = RegisteredClient::new("nightly-report")
///     .secret("from a vault")
///     .issuer("https://login.example.com");
/// let oauth = OAuth::by_credentials(client).scopes(["reports:read"]).build()?;
/// let client = Client::builder().authorize(oauth);
/// # Ok(())
/// # }
/// # run().unwrap();
/// ```
///
/// Concurrent requests that are refused wait for one authorization. A request is sent at most four times.
pub struct OAuth {
    setup: Arc<Setup>,
    http: Http,
    servers: Mutex<HashMap<Url, Arc<Server>>>,
}

pub(super) type Hook<A, B> =
    Arc<dyn Fn(A) -> BoxFuture<'static, Result<B, BoxError>> + Send + Sync>;

/// The settings of an [`OAuth`], the same for every server.
pub(super) struct Setup {
    pub(super) flow: Flow,
    pub(super) client: Option<RegisteredClient>,
    pub(super) metadata_url: Option<Url>,
    pub(super) name: String,
    pub(super) scopes: Scopes,
    pub(super) grants: Option<Arc<dyn Grants>>,
    /// Whether only DPoP-bound tokens are accepted.
    pub(super) dpop: bool,
    /// The first authorization server of a client whose issuer is not configured.
    pub(super) first_issuer: OnceLock<String>,
}

pub(super) enum Flow {
    Browser {
        redirect_uri: Url,
        visit: Hook<Url, Url>,
    },
    Credentials,
    Enterprise(IdentityProvider),
    Workload(Hook<String, String>),
}

/// An enterprise's identity provider, which vouches for the people who are signed in there.
#[derive(Clone)]
pub struct IdentityProvider {
    pub(super) token_endpoint: Url,
    pub(super) client: RegisteredClient,
    pub(super) id_token: Hook<(), String>,
}

impl IdentityProvider {
    /// The token endpoint of the identity provider, the client that is registered there, and a callback for the identity
    /// token of the person.
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
    /// A person says yes in a browser. `visit` is given a URL to show to them, and returns the URL that the browser was
    /// redirected to: the redirect URI with a result in its query. It decides how long to wait.
    ///
    /// On the person's own machine a [`Loopback`](crate::Loopback) can receive the redirect:
    ///
    /// ```
    /// use refrain_client::{Client, Loopback, OAuth};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let here = Arc::new(Loopback::bind(0).await?);
    /// let oauth = OAuth::by_browser(here.redirect_uri().clone(), move |url| {
    ///     let here = Arc::clone(&here);
    ///     async move {
    ///         println!("Please open {url}");
    ///         Ok(here.answer_from(&url, Duration::from_secs(300)).await?)
    ///     }
    /// });
    /// let client = Client::builder().authorize(oauth.client_name("My editor").build()?);
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    pub fn by_browser<F, Fut>(redirect_uri: Url, visit: F) -> OAuthBuilder
    where
        F: Fn(Url) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Url, BoxError>> + Send + 'static,
    {
        let visit: Hook<Url, Url> = Arc::new(move |url| Box::pin(visit(url)));
        let flow = Flow::Browser {
            redirect_uri,
            visit,
        };
        OAuthBuilder::new(flow, None)
    }

    /// The client has its own rights. It needs a secret or a private key.
    pub fn by_credentials(client: RegisteredClient) -> OAuthBuilder {
        OAuthBuilder::new(Flow::Credentials, Some(client))
    }

    /// An enterprise's identity provider vouches for the person: its identity token is exchanged for an assertion,
    /// and that for an access token. `client` is registered with the server's authorization server.
    pub fn by_identity_provider(
        provider: IdentityProvider,
        client: RegisteredClient,
    ) -> OAuthBuilder {
        OAuthBuilder::new(Flow::Enterprise(provider), Some(client))
    }

    /// The platform vouches for the workload: `assertion` is given the authorization server's issuer and returns a
    /// token of the platform (a JWT) for that audience.
    pub fn by_workload<F, Fut>(client: RegisteredClient, assertion: F) -> OAuthBuilder
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, BoxError>> + Send + 'static,
    {
        let assertion: Hook<String, String> = Arc::new(move |issuer| Box::pin(assertion(issuer)));
        OAuthBuilder::new(Flow::Workload(assertion), Some(client))
    }

    /// The state of one server. Its URL must be safe: a token is not sent over plain HTTP.
    fn server(&self, url: &Url) -> AuthResult<Arc<Server>> {
        let mut url = safe_url("the server", url.as_str(), url)?;
        url.set_fragment(None);
        let mut servers = self.servers.lock();
        let server = servers.entry(url).or_insert_with_key(|url| {
            let setup = Arc::clone(&self.setup);
            Arc::new(Server::new(setup, self.http.clone(), url.clone()))
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

    fn refused<'a>(&'a self, refusal: Refusal<'a>) -> BoxFuture<'a, AuthResult<bool>> {
        Box::pin(async move { self.server(refusal.url)?.refused(refusal).await })
    }
}

/// Builds an [`OAuth`].
pub struct OAuthBuilder(Setup);

impl OAuthBuilder {
    fn new(flow: Flow, client: Option<RegisteredClient>) -> Self {
        Self(Setup {
            flow,
            client,
            metadata_url: None,
            name: "Refrain".to_owned(),
            scopes: Scopes::default(),
            grants: None,
            dpop: false,
            first_issuer: OnceLock::new(),
        })
    }

    /// Uses a client that was registered beforehand.
    #[must_use]
    pub fn client(mut self, client: RegisteredClient) -> Self {
        self.0.client = Some(client);
        self
    }

    /// The URL of this client's metadata document. It is the client's id with every authorization server that takes
    /// such documents.
    #[must_use]
    pub fn client_metadata_url(mut self, url: Url) -> Self {
        self.0.metadata_url = Some(url);
        self
    }

    /// The name that people are shown when the client registers itself (`Refrain`).
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Scopes that are always requested, beside those that a server demands. Without it, those that the server lists.
    #[must_use]
    pub fn scopes<I>(mut self, scopes: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let scopes = scopes.into_iter().map(|scope| scope.as_ref().to_owned());
        self.0.scopes = Scopes(scopes.collect());
        self
    }

    /// Stores grants. Without it, they are lost with the [`OAuth`].
    #[must_use]
    pub fn grants(mut self, grants: impl Grants) -> Self {
        self.0.grants = Some(Arc::new(grants));
        self
    }

    /// Accepts only access tokens that are bound to a key (DPoP). Without it they are bound where the server asks for it
    /// and its authorization server can.
    #[must_use]
    pub fn require_dpop(mut self) -> Self {
        self.0.dpop = true;
        self
    }

    /// Builds it, if it can work.
    pub fn build(self) -> Result<OAuth, AuthError> {
        self.0.check()?;
        Ok(OAuth {
            setup: Arc::new(self.0),
            http: Http::new()?,
            servers: Mutex::default(),
        })
    }
}

impl Setup {
    /// Whether a stored grant was given to the configured client, with the required binding.
    pub(super) fn is_ours(&self, grant: &Grant) -> bool {
        let is_client = self.client.as_ref().is_none_or(|client| {
            let is_from_there = |issuer| issuer == grant.issuer;
            client.id == grant.client.id && client.issuer.as_deref().is_none_or(is_from_there)
        });
        is_client && (grant.key.is_some() || !self.dpop)
    }

    fn check(&self) -> Result<(), SetupError> {
        if let Some(url) = &self.metadata_url
            && (url.scheme() != "https" || url.path() == "/" || url.fragment().is_some())
        {
            return Err(SetupError::MetadataUrl(url.to_string()));
        }
        match &self.flow {
            Flow::Browser { redirect_uri, .. } => {
                let is_local = redirect_uri.scheme() == "http" && is_here(redirect_uri);
                let is_safe = redirect_uri.scheme() == "https" || is_local;
                if !is_safe || redirect_uri.fragment().is_some() {
                    return Err(SetupError::RedirectUri(redirect_uri.to_string()));
                }
            }
            Flow::Credentials => {
                if !self
                    .client
                    .as_ref()
                    .is_some_and(RegisteredClient::has_credentials)
                {
                    return Err(SetupError::NoCredentials);
                }
            }
            Flow::Enterprise(IdentityProvider { token_endpoint, .. }) => {
                if token_endpoint.scheme() != "https" && !is_here(token_endpoint) {
                    return Err(SetupError::TokenEndpoint(token_endpoint.to_string()));
                }
            }
            Flow::Workload(_) => {}
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
