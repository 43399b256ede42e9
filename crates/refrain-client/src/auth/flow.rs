//! Asking for authorization: from a refusal to a grant.

use super::challenge::Demand;
use super::client::{ClientId, Proof, RegisteredClient};
use super::dpop::{self, DpopKey};
use super::error::AuthError;
use super::grant::Grant;
use super::metadata::{self, IssuerMetadata, ResourceMetadata};
use super::redirect;
use super::register::Registration;
use super::scopes::Scopes;
use super::server::Server;
use super::setup::{Hook, IdentityProvider, Way};
use super::tokens::{Issued, TokenEndpoint, now};
use oauth2::basic::BasicClient;
use oauth2::{AuthUrl, CsrfToken, PkceCodeChallenge, RedirectUrl, RefreshToken, Scope};
use url::Url;

/// The scope of a client that wants to come back without the person.
const OFFLINE: &str = "offline_access";

impl Server {
    /// Gets a grant that meets a demand. What was had before tells who the client is, and what else it needs.
    pub(super) async fn authorize(
        &self,
        demand: &Demand,
        prior: Option<&Grant>,
        lacks_scope: bool,
    ) -> Result<Grant, AuthError> {
        let registered = self.setup.client.as_ref();
        let known = registered
            .and_then(|client| client.issuer.as_deref())
            .or_else(|| prior.map(|prior| prior.issuer.as_str()));
        let (resource, issuer) = metadata::find(&self.http, &self.url, demand, known).await?;
        if let Some(client) = registered {
            check_issuer(client, prior, &issuer)?;
        }
        let mut prior = prior.filter(|prior| prior.issuer == issuer.issuer);
        if let Some(grant) = prior
            && let Some(token) = &grant.refresh_token
            && !lacks_scope
            && grant
                .scopes
                .contains_all(&demand.scopes.clone().unwrap_or_default())
        {
            match self.renewal(grant, &issuer).by_refresh(token).await {
                Ok(renewed) => return Ok(renewed),
                Err(AuthError::Denied { error, .. }) if error == "invalid_client" => prior = None,
                Err(AuthError::Denied { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let ask = self.first(demand, prior, &resource, &issuer).await?;
        match &self.setup.way {
            Way::Browser {
                redirect_uri,
                visit,
            } => ask.by_browser(redirect_uri, visit).await,
            Way::Credentials => ask.by_credentials().await,
            Way::Enterprise(provider) => ask.by_provider(provider).await,
            Way::Workload(assertion) => ask.by_workload(assertion).await,
        }
    }

    /// Gets the next access token with the refresh token that came with the last.
    pub(super) async fn refresh(
        &self,
        grant: &Grant,
        token: &RefreshToken,
    ) -> Result<Grant, AuthError> {
        let issuer = metadata::of_issuer(&self.http, &grant.issuer, &self.url).await?;
        self.renewal(grant, &issuer).by_refresh(token).await
    }

    fn renewal<'a>(&'a self, grant: &Grant, issuer: &'a IssuerMetadata) -> Ask<'a> {
        Ask {
            server: self,
            issuer,
            resource: grant.resource.clone(),
            client: grant.client.clone(),
            key: grant.key.clone(),
            scopes: grant.scopes.clone(),
        }
    }

    async fn first<'a>(
        &'a self,
        demand: &Demand,
        prior: Option<&Grant>,
        resource: &ResourceMetadata,
        issuer: &'a IssuerMetadata,
    ) -> Result<Ask<'a>, AuthError> {
        let key = self.key(demand.dpop || resource.wants_dpop(), prior, issuer)?;
        Ok(Ask {
            server: self,
            issuer,
            resource: resource.resource.clone(),
            client: self.client(prior, issuer, key.is_some()).await?,
            key,
            scopes: self.scopes(demand, prior, resource, issuer),
        })
    }

    /// What is asked for: what the server demands now, what was asked for before, and what the host always wants.
    fn scopes(
        &self,
        demand: &Demand,
        prior: Option<&Grant>,
        resource: &ResourceMetadata,
        issuer: &IssuerMetadata,
    ) -> Scopes {
        let mut scopes = prior.map(|prior| prior.scopes.clone()).unwrap_or_default();
        scopes = scopes.with(&self.setup.scopes.clone().unwrap_or_default());
        match &demand.scopes {
            Some(demanded) => scopes = scopes.with(demanded),
            None if scopes.is_empty() => scopes = resource.scopes_supported.clone(),
            None => {}
        }
        let offline = Scopes::parse(OFFLINE);
        let is_person = matches!(self.setup.way, Way::Browser { .. });
        if is_person && issuer.scopes_supported.contains_all(&offline) {
            scopes = scopes.with(&offline);
        }
        scopes
    }

    /// The key that the token shall be bound to, if it shall be.
    fn key(
        &self,
        is_wanted: bool,
        prior: Option<&Grant>,
        issuer: &IssuerMetadata,
    ) -> Result<Option<DpopKey>, AuthError> {
        let is_known = issuer.takes_dpop(dpop::ALGORITHM);
        if self.setup.dpop && !is_known {
            return Err(
                issuer.unsupported("access tokens that are bound to a key (DPoP with ES256)")
            );
        }
        if !is_known || !(is_wanted || self.setup.dpop) {
            return Ok(None);
        }
        match prior.and_then(|prior| prior.key.clone()) {
            Some(key) => Ok(Some(key)),
            None => DpopKey::generate().map(Some),
        }
    }

    /// Who this client is to the authorization server: as the host says, as its metadata document says, or as it
    /// registers itself.
    async fn client(
        &self,
        prior: Option<&Grant>,
        issuer: &IssuerMetadata,
        dpop: bool,
    ) -> Result<ClientId, AuthError> {
        if let Some(client) = &self.setup.client {
            return Ok(client.at(issuer));
        }
        if let Some(url) = &self.setup.metadata_url
            && issuer.client_id_metadata_document_supported
        {
            return Ok(ClientId {
                id: url.to_string(),
                secret: None,
                proof: Proof::None,
                redirect_uri: None,
            });
        }
        let no_client = || AuthError::NoClient {
            issuer: issuer.issuer.clone(),
        };
        let Way::Browser { redirect_uri, .. } = &self.setup.way else {
            return Err(no_client());
        };
        if let Some(prior) = prior
            && prior.client.redirect_uri.as_deref() == Some(redirect_uri.as_str())
        {
            return Ok(prior.client.clone());
        }
        let endpoint = issuer.registration_endpoint(&self.url);
        let endpoint = endpoint.ok_or_else(no_client)??;
        let registration = Registration {
            name: &self.setup.name,
            redirect_uri,
            dpop,
        };
        registration.send(&self.http, &endpoint, issuer).await
    }
}

/// A client's credentials are for the authorization server they come from, or for the first they were used with.
fn check_issuer(
    client: &RegisteredClient,
    prior: Option<&Grant>,
    issuer: &IssuerMetadata,
) -> Result<(), AuthError> {
    let used_with = prior.filter(|prior| prior.client.id == client.id);
    let registered = client.issuer.as_deref();
    match registered.or(used_with.map(|prior| prior.issuer.as_str())) {
        Some(registered) if registered != issuer.issuer => Err(AuthError::ClientOfOther {
            registered: registered.to_owned(),
            named: issuer.issuer.clone(),
        }),
        _ => Ok(()),
    }
}

/// One asking: for whom, at whom, for what.
struct Ask<'a> {
    server: &'a Server,
    issuer: &'a IssuerMetadata,
    resource: String,
    client: ClientId,
    key: Option<DpopKey>,
    scopes: Scopes,
}

impl Ask<'_> {
    async fn by_browser(
        self,
        redirect_uri: &Url,
        visit: &Hook<Url, Url>,
    ) -> Result<Grant, AuthError> {
        let endpoint = self.issuer.authorization_endpoint(&self.server.url)?;
        let redirect_uri = RedirectUrl::from_url(redirect_uri.clone());
        let client = BasicClient::new(oauth2::ClientId::new(self.client.id.clone()))
            .set_auth_uri(AuthUrl::from_url(endpoint))
            .set_redirect_uri(redirect_uri.clone());
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let scopes = self.scopes.iter().map(|scope| Scope::new(scope.to_owned()));
        let mut request = client
            .authorize_url(CsrfToken::new_random)
            .add_scopes(scopes)
            .set_pkce_challenge(challenge)
            .add_extra_param("resource", self.resource.clone());
        if let Some(key) = &self.key {
            request = request.add_extra_param("dpop_jkt", key.thumbprint()?);
        }
        let (url, state) = request.url();
        let back = visit(url).await.map_err(AuthError::Browser)?;
        let code = redirect::read(&back, state.secret(), self.issuer)?;
        let issued = self
            .endpoint()?
            .by_code(code, verifier, &redirect_uri)
            .await?;
        self.grant(issued)
    }

    async fn by_credentials(self) -> Result<Grant, AuthError> {
        let issued = self.endpoint()?.by_credentials(&self.scopes).await?;
        self.grant(issued)
    }

    async fn by_provider(self, provider: &IdentityProvider) -> Result<Grant, AuthError> {
        let id_token = (provider.id_token)(())
            .await
            .map_err(AuthError::Assertion)?;
        let client = provider.client.at_provider();
        let exchange = TokenEndpoint {
            url: provider.token_endpoint.clone(),
            issuer: provider.token_endpoint.as_str(),
            client: &client,
            client_key: provider.client.key.as_ref(),
            dpop: None,
            ..self.endpoint()?
        };
        let assertion = exchange
            .exchange(&id_token, &self.issuer.issuer, &self.scopes)
            .await?;
        self.by_assertion(&assertion).await
    }

    async fn by_workload(self, assertion: &Hook<String, String>) -> Result<Grant, AuthError> {
        let assertion = assertion(self.issuer.issuer.clone()).await;
        self.by_assertion(&assertion.map_err(AuthError::Assertion)?)
            .await
    }

    async fn by_assertion(self, assertion: &str) -> Result<Grant, AuthError> {
        let endpoint = self.endpoint()?;
        let issued = endpoint.by_assertion(assertion, &self.scopes).await?;
        self.grant(issued)
    }

    async fn by_refresh(self, token: &RefreshToken) -> Result<Grant, AuthError> {
        let mut issued = self.endpoint()?.by_refresh(token).await?;
        // Where no new one came, the old one is still good.
        issued.refresh_token.get_or_insert_with(|| token.clone());
        self.grant(issued)
    }

    fn endpoint(&self) -> Result<TokenEndpoint<'_>, AuthError> {
        let registered = self.server.setup.client.as_ref();
        Ok(TokenEndpoint {
            http: &self.server.http,
            url: self.issuer.token_endpoint(&self.server.url)?,
            issuer: &self.issuer.issuer,
            resource: &self.resource,
            client: &self.client,
            client_key: registered.and_then(|client| client.key.as_ref()),
            dpop: self.key.as_ref(),
            nonces: &self.server.nonces,
        })
    }

    fn grant(self, issued: Issued) -> Result<Grant, AuthError> {
        if self.server.setup.dpop && !issued.is_bound {
            return Err(self
                .issuer
                .unsupported("access tokens that are bound to a key"));
        }
        Ok(Grant {
            issuer: self.issuer.issuer.clone(),
            resource: self.resource,
            client: self.client,
            access_token: issued.access_token,
            refresh_token: issued.refresh_token,
            obtained: now(),
            expires: issued.expires,
            scopes: self.scopes,
            key: self.key.filter(|_| issued.is_bound),
        })
    }
}
