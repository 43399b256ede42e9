//! A client that gets its own access tokens, for every server it talks to.

use super::client::RegisteredClient;
use super::error::{AuthError, BoxError};
use super::http::{Http, safe_url};
use super::server::Server;
use super::setup::{Hook, IdentityProvider, OAuthBuilder, Setup, Way};
use super::{Authorize, Refusal};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use url::Url;

/// Gets access tokens from the authorization server that a server names, and shows each to that server alone.
///
/// There are four ways to get one. A person says yes in a browser ([`by_browser`](Self::by_browser)); the client has
/// rights of its own ([`by_credentials`](Self::by_credentials)); an enterprise's identity provider vouches for the
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
/// Requests may be made at once: those that are refused while authorization is being asked for wait for it. A request
/// is sent at most four times.
pub struct OAuth {
    setup: Arc<Setup>,
    http: Http,
    servers: Mutex<HashMap<Url, Arc<Server>>>,
}

impl OAuth {
    /// A person says yes in a browser. `visit` is given a URL to show to them, and gives back the URL that the
    /// browser was sent to afterwards: the redirect URI with an answer in its query. It decides how long to wait.
    ///
    /// On the person's own machine a [`Loopback`](crate::Loopback) can be what the browser is sent to:
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
        let way = Way::Browser {
            redirect_uri,
            visit,
        };
        OAuthBuilder::new(way, None)
    }

    /// The client has rights of its own. It needs a secret or a private key.
    pub fn by_credentials(client: RegisteredClient) -> OAuthBuilder {
        OAuthBuilder::new(Way::Credentials, Some(client))
    }

    /// An enterprise's identity provider vouches for the person: its identity token is exchanged for an assertion,
    /// and that for an access token. `client` is this client as the server's authorization server knows it.
    pub fn by_identity_provider(
        provider: IdentityProvider,
        client: RegisteredClient,
    ) -> OAuthBuilder {
        OAuthBuilder::new(Way::Enterprise(provider), Some(client))
    }

    /// The platform vouches for the workload: `assertion` is given the authorization server's issuer and gives a
    /// token of the platform (a JWT) for that audience.
    pub fn by_workload<F, Fut>(client: RegisteredClient, assertion: F) -> OAuthBuilder
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, BoxError>> + Send + 'static,
    {
        let assertion: Hook<String, String> = Arc::new(move |issuer| Box::pin(assertion(issuer)));
        OAuthBuilder::new(Way::Workload(assertion), Some(client))
    }

    pub(super) fn new(setup: Setup, http: Http) -> Self {
        Self {
            setup: Arc::new(setup),
            http,
            servers: Mutex::new(HashMap::new()),
        }
    }

    /// What is known of a server. A token is never shown over an open line.
    fn server(&self, url: &Url) -> Result<Arc<Server>, AuthError> {
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
    ) -> BoxFuture<'a, Result<HeaderMap, AuthError>> {
        Box::pin(async move { self.server(url)?.headers(method, url).await })
    }

    fn refused<'a>(&'a self, refusal: Refusal<'a>) -> BoxFuture<'a, Result<bool, AuthError>> {
        Box::pin(async move { self.server(refusal.url)?.refused(refusal).await })
    }
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuth")
            .field("way", &self.setup.way)
            .finish_non_exhaustive()
    }
}
