//! Puts the authorization of a client together, and says why it cannot be.

use super::client::RegisteredClient;
use super::error::{AuthError, BoxError};
use super::grant::{Grant, Grants};
use super::http::{Http, is_here};
use super::oauth::OAuth;
use super::scopes::Scopes;
use futures_util::future::BoxFuture;
use std::fmt;
use std::sync::{Arc, OnceLock};
use url::Url;

/// Something the host does with one thing to get another.
pub(super) type Hook<A, B> =
    Arc<dyn Fn(A) -> BoxFuture<'static, Result<B, BoxError>> + Send + Sync>;

/// What every server's authorization has in common.
pub(super) struct Setup {
    pub(super) way: Way,
    pub(super) client: Option<RegisteredClient>,
    pub(super) metadata_url: Option<Url>,
    pub(super) name: String,
    pub(super) scopes: Option<Scopes>,
    pub(super) grants: Option<Arc<dyn Grants>>,
    pub(super) dpop: bool,
    /// The authorization server that a client of which it is not said was used with first.
    pub(super) first_issuer: OnceLock<String>,
}

/// How an access token is got.
pub(super) enum Way {
    /// A person says yes in a browser.
    Browser {
        redirect_uri: Url,
        visit: Hook<Url, Url>,
    },
    /// The client has rights of its own.
    Credentials,
    /// The identity provider of an enterprise says who the person is.
    Enterprise(IdentityProvider),
    /// The platform it runs on says who this workload is.
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
    /// The token endpoint of the identity provider, this client as it is registered there, and the identity token of
    /// the person who is signed in, which is asked for whenever one is needed.
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

impl fmt::Debug for IdentityProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityProvider")
            .field("token_endpoint", &self.token_endpoint.as_str())
            .finish_non_exhaustive()
    }
}

/// Puts an [`OAuth`] together.
pub struct OAuthBuilder(Setup);

impl OAuthBuilder {
    pub(super) fn new(way: Way, client: Option<RegisteredClient>) -> Self {
        Self(Setup {
            way,
            client,
            metadata_url: None,
            name: "Refrain".to_owned(),
            scopes: None,
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

    /// Where the host serves the metadata document of this client. Its URL is the client's id with every
    /// authorization server that takes such documents.
    #[must_use]
    pub fn client_metadata_url(mut self, url: Url) -> Self {
        self.0.metadata_url = Some(url);
        self
    }

    /// The name that people are shown when the client registers itself. Without it: `Refrain`.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Scopes to ask for whatever happens, beside those that a server demands. Without it, what the server lists.
    #[must_use]
    pub fn scopes<I>(mut self, scopes: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        self.0.scopes = Some(scopes.into_iter().collect());
        self
    }

    /// Keeps what authorization servers give. Without it, it is forgotten with the [`OAuth`].
    #[must_use]
    pub fn grants(mut self, grants: impl Grants) -> Self {
        self.0.grants = Some(Arc::new(grants));
        self
    }

    /// Takes only access tokens that are bound to a key (DPoP). Without it they are bound where a server asks for it
    /// and its authorization server can.
    #[must_use]
    pub fn require_dpop(mut self) -> Self {
        self.0.dpop = true;
        self
    }

    /// Builds it, if it can work.
    pub fn build(self) -> Result<OAuth, AuthError> {
        self.0.check()?;
        Ok(OAuth::new(self.0, Http::new()?))
    }
}

impl Setup {
    /// Whether something kept was given to the client that the host says this is, in the way it wants it.
    pub(super) fn is_ours(&self, grant: &Grant) -> bool {
        let is_client = self.client.as_ref().is_none_or(|client| {
            let is_from_there = |issuer| issuer == grant.issuer();
            client.id == grant.client.id && client.issuer.as_deref().is_none_or(is_from_there)
        });
        is_client && (grant.key.is_some() || !self.dpop)
    }

    fn check(&self) -> Result<(), AuthError> {
        if let Some(url) = &self.metadata_url
            && (url.scheme() != "https" || url.path() == "/" || url.fragment().is_some())
        {
            return Err(AuthError::Setup(format!(
                "the client metadata URL {url} must be https and have a path, and no fragment"
            )));
        }
        match &self.way {
            Way::Browser { redirect_uri, .. } => check_redirect(redirect_uri),
            Way::Credentials => match &self.client {
                Some(client) if client.can_prove_itself() => Ok(()),
                _ => Err(AuthError::Setup(
                    "client credentials need a client with a secret or a private key".into(),
                )),
            },
            Way::Enterprise(provider) => {
                let url = &provider.token_endpoint;
                let is_safe = url.scheme() == "https" || is_here(url);
                is_safe.then_some(()).ok_or_else(|| {
                    let why = format!("the identity provider's token endpoint {url} must be https");
                    AuthError::Setup(why)
                })
            }
            Way::Workload(_) => Ok(()),
        }
    }
}

fn check_redirect(url: &Url) -> Result<(), AuthError> {
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && is_here(url));
    if is_safe && url.fragment().is_none() {
        return Ok(());
    }
    Err(AuthError::Setup(format!(
        "the redirect URI {url} must be https, or http on this machine such as http://127.0.0.1:8085/callback, \
         without a fragment"
    )))
}

impl fmt::Debug for OAuthBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthBuilder")
            .field("way", &self.0.way)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Browser { .. } => "Browser",
            Self::Credentials => "Credentials",
            Self::Enterprise(_) => "Enterprise",
            Self::Workload(_) => "Workload",
        })
    }
}
