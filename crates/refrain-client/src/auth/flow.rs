//! The OAuth flows: each gets tokens from an authorization server, and returns them as a [`Grant`].

use super::challenge::AuthChallenge;
use super::client::{ClientAuth, ClientIdentity, RegisteredClient};
use super::dpop::{self, DpopKey};
use super::error::{AuthError, AuthResult, sanitize};
use super::grant::{Grant, GrantScopes};
use super::metadata::{IssuerMetadata, ProtectedResource};
use super::oauth::{Callback, IdentityProvider, OAuthFlow};
use super::redirect;
use super::server::ServerAuth;
use super::tokens::{JWT_BEARER, TokenEndpoint, now};
use oauth2::basic::{BasicClient, BasicTokenResponse, BasicTokenType};
use oauth2::{
    AuthUrl, CsrfToken, PkceCodeChallenge, RedirectUrl, RefreshToken, Scope, TokenResponse as _,
};
use url::Url;

const OFFLINE: &str = "offline_access";

impl ServerAuth {
    /// Gets a grant that satisfies a challenge. Reuses the client identity and the scopes of the previous grant (`prior`).
    /// `lacks_scope`: the access token is valid, but lacks a scope. `storage_lock` guards the use of a refresh token.
    pub(super) async fn authorize(
        &self,
        challenge: &AuthChallenge,
        prior: Option<&Grant>,
        lacks_scope: bool,
        storage_lock: &mut Option<Box<dyn Send>>,
    ) -> AuthResult<Grant> {
        let registered = self.setup.client.as_ref();
        let preferred = registered
            .and_then(|client| client.issuer.as_deref())
            .or_else(|| self.setup.first_issuer.get().map(String::as_str))
            .or_else(|| prior.map(|prior| prior.issuer.as_str()));
        let (resource, issuer) = self.find_metadata(challenge, preferred).await?;
        if let Some(client) = registered {
            let used_with = prior.filter(|prior| prior.client.id == client.id);
            self.check_issuer(client, used_with, &issuer.issuer)?;
        }
        let mut prior = prior.filter(|prior| prior.issuer == issuer.issuer);
        let required = challenge.scopes.clone().unwrap_or_default();
        if let Some(grant) = prior
            && let Some(token) = &grant.refresh_token
            && !lacks_scope
            && grant.scopes.contains_all(&required)
        {
            match self.renewal(grant, &issuer).by_refresh(token).await {
                Ok(renewed) => return Ok(renewed),
                // The authorization server no longer knows this client: register it again.
                Err(AuthError::Denied { error, .. }) if error == "invalid_client" => prior = None,
                Err(AuthError::Denied { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if let OAuthFlow::Stored = self.setup.flow {
            return Err(match prior {
                Some(grant) if lacks_scope => AuthError::ScopeRequired {
                    server: self.url.to_string(),
                    required: required.to_string(),
                    scopes: grant.scopes.clone().with(&required).to_string(),
                },
                _ => self.login_required(),
            });
        }
        // The flows below use no refresh token, and a login in a browser may take minutes: unlock the storage.
        *storage_lock = None;
        let key = self.dpop_key(challenge.has_dpop || resource.wants_dpop(), prior, &issuer)?;
        let request = GrantRequest {
            server: self,
            issuer: &issuer,
            client: self.identity(prior, &issuer, key.is_some()).await?,
            key,
            scopes: self.scopes(challenge, prior, &resource, &issuer),
            resource: resource.resource,
        };
        request.send(&self.setup.flow).await
    }

    pub(super) async fn refresh(&self, grant: &Grant, token: &RefreshToken) -> AuthResult<Grant> {
        if let Some(client) = &self.setup.client {
            self.check_issuer(client, Some(grant), &grant.issuer)?;
        }
        let issuer = self.issuer_metadata(&grant.issuer).await?;
        self.renewal(grant, &issuer).by_refresh(token).await
    }

    fn renewal<'a>(&'a self, grant: &Grant, issuer: &'a IssuerMetadata) -> GrantRequest<'a> {
        GrantRequest {
            server: self,
            issuer,
            resource: grant.resource.clone(),
            client: grant.client.clone(),
            key: grant.key.clone(),
            scopes: grant.scopes.clone(),
        }
    }

    /// The scopes to request: those of the previous grant, the configured ones, and those of the challenge. If there are none,
    /// all scopes that the server supports. A browser flow adds `offline_access`, if the authorization server has it.
    fn scopes(
        &self,
        challenge: &AuthChallenge,
        prior: Option<&Grant>,
        resource: &ProtectedResource,
        issuer: &IssuerMetadata,
    ) -> GrantScopes {
        let mut scopes = prior.map(|prior| prior.scopes.clone()).unwrap_or_default();
        scopes = scopes.with(&self.setup.scopes);
        match &challenge.scopes {
            Some(required) => scopes = scopes.with(required),
            None if scopes.is_empty() => scopes = resource.scopes_supported.clone(),
            None => {}
        }
        let offline = GrantScopes::parse(OFFLINE);
        let is_interactive = matches!(self.setup.flow, OAuthFlow::Browser { .. });
        if is_interactive && issuer.scopes_supported.contains_all(&offline) {
            scopes = scopes.with(&offline);
        }
        scopes
    }

    fn dpop_key(
        &self,
        is_wanted: bool,
        prior: Option<&Grant>,
        issuer: &IssuerMetadata,
    ) -> AuthResult<Option<DpopKey>> {
        let is_supported = issuer.supports_dpop(dpop::ALGORITHM);
        if self.setup.requires_dpop && !is_supported {
            let what = "access tokens bound to a key (DPoP with ES256)";
            return Err(issuer.unsupported(what));
        }
        if !is_supported || !(is_wanted || self.setup.requires_dpop) {
            return Ok(None);
        }
        match prior.and_then(|prior| prior.key.clone()) {
            Some(key) => Ok(Some(key)),
            None => DpopKey::generate().map(Some),
        }
    }

    /// The client identity: configured, from a metadata document, or by registration.
    async fn identity(
        &self,
        prior: Option<&Grant>,
        issuer: &IssuerMetadata,
        dpop: bool,
    ) -> AuthResult<ClientIdentity> {
        if let Some(client) = &self.setup.client {
            return Ok(client.identity(Some(issuer)));
        }
        if let Some(url) = &self.setup.metadata_url
            && issuer.client_id_metadata_document_supported
        {
            return Ok(ClientIdentity {
                id: url.to_string(),
                secret: None,
                auth: ClientAuth::None,
                redirect_uri: None,
            });
        }
        let OAuthFlow::Browser { redirect_uri, .. } = &self.setup.flow else {
            return Err(AuthError::ClientNotRegistered(issuer.issuer.clone()));
        };
        match prior.map(|prior| &prior.client) {
            Some(client) if client.redirect_uri.as_deref() == Some(redirect_uri.as_str()) => {
                Ok(client.clone())
            }
            _ => self.register(issuer, redirect_uri, dpop).await,
        }
    }

    fn login_required(&self) -> AuthError {
        AuthError::LoginRequired(self.url.to_string())
    }

    /// Checks that the client is registered with the authorization server that the MCP server names (`named`). Without a
    /// configured issuer, the client counts as registered with the first authorization server used.
    fn check_issuer(
        &self,
        client: &RegisteredClient,
        prior: Option<&Grant>,
        named: &str,
    ) -> AuthResult<()> {
        let used_with = prior.map_or(named, |grant| grant.issuer.as_str());
        let registered = match client.issuer.as_deref() {
            Some(issuer) => issuer,
            None if client.has_credentials() => {
                let first = &self.setup.first_issuer;
                first.get_or_init(|| used_with.to_owned())
            }
            None => used_with,
        };
        if registered != named {
            return Err(AuthError::ClientIssuerMismatch {
                registered: registered.to_owned(),
                named: named.to_owned(),
            });
        }
        Ok(())
    }
}

struct GrantRequest<'a> {
    server: &'a ServerAuth,
    issuer: &'a IssuerMetadata,
    resource: String,
    client: ClientIdentity,
    key: Option<DpopKey>,
    scopes: GrantScopes,
}

impl GrantRequest<'_> {
    async fn send(self, flow: &OAuthFlow) -> AuthResult<Grant> {
        let token = match flow {
            OAuthFlow::Browser {
                redirect_uri,
                visit,
            } => self.by_browser(redirect_uri, visit).await?,
            OAuthFlow::Credentials => {
                let endpoint = self.endpoint()?;
                let sent = endpoint.token("client_credentials", &[], Some(&self.scopes));
                sent.await?
            }
            OAuthFlow::Enterprise(provider) => {
                let assertion = self.id_assertion(provider).await?;
                self.by_assertion(&assertion).await?
            }
            OAuthFlow::Workload(assertion) => {
                let assertion = assertion(self.issuer.issuer.clone()).await;
                let assertion = assertion.map_err(|error| AuthError::Assertion(error.into()))?;
                self.by_assertion(&assertion).await?
            }
            OAuthFlow::Stored => return Err(self.server.login_required()),
        };
        self.grant(&token)
    }

    async fn by_browser(
        &self,
        redirect_uri: &Url,
        visit: &Callback<Url, Url>,
    ) -> AuthResult<BasicTokenResponse> {
        let endpoint = self.issuer.authorization_endpoint(&self.server.url)?;
        let client = BasicClient::new(oauth2::ClientId::new(self.client.id.clone()))
            .set_auth_uri(AuthUrl::from_url(endpoint))
            .set_redirect_uri(RedirectUrl::from_url(redirect_uri.clone()));
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let mut request = client
            .authorize_url(CsrfToken::new_random)
            .add_scopes(self.scopes.0.iter().cloned().map(Scope::new))
            .set_pkce_challenge(challenge)
            .add_extra_param("resource", self.resource.clone());
        if let Some(key) = &self.key {
            request = request.add_extra_param("dpop_jkt", key.thumbprint()?);
        }
        let (url, state) = request.url();
        let redirect = visit(url).await;
        let redirect = redirect.map_err(|error| AuthError::Browser(error.into()))?;
        let code = redirect::read(&redirect, state.secret(), self.issuer)?;
        let params = [
            ("code", code.as_str()),
            ("code_verifier", verifier.secret()),
            ("redirect_uri", redirect_uri.as_str()),
        ];
        let endpoint = self.endpoint()?;
        endpoint.token("authorization_code", &params, None).await
    }

    async fn id_assertion(&self, provider: &IdentityProvider) -> AuthResult<String> {
        let id_token = (provider.id_token)(()).await;
        let id_token = id_token.map_err(|error| AuthError::Assertion(error.into()))?;
        let endpoint = TokenEndpoint {
            url: provider.token_endpoint.clone(),
            issuer: provider.token_endpoint.as_str(),
            client: &provider.client.identity(None),
            client_key: provider.client.key.as_ref(),
            dpop: None,
            ..self.endpoint()?
        };
        let audience = &self.issuer.issuer;
        endpoint.exchange(&id_token, audience, &self.scopes).await
    }

    async fn by_assertion(&self, assertion: &str) -> AuthResult<BasicTokenResponse> {
        let params = [("assertion", assertion)];
        let endpoint = self.endpoint()?;
        endpoint
            .token(JWT_BEARER, &params, Some(&self.scopes))
            .await
    }

    async fn by_refresh(self, refresh_token: &RefreshToken) -> AuthResult<Grant> {
        let params = [("refresh_token", refresh_token.secret().as_str())];
        let endpoint = self.endpoint()?;
        let token = endpoint.token("refresh_token", &params, None).await?;
        let mut grant = self.grant(&token)?;
        // Without a new refresh token, the old one remains valid.
        grant
            .refresh_token
            .get_or_insert_with(|| refresh_token.clone());
        Ok(grant)
    }

    fn endpoint(&self) -> AuthResult<TokenEndpoint<'_>> {
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

    fn grant(self, token: &BasicTokenResponse) -> AuthResult<Grant> {
        let is_bound = match token.token_type() {
            BasicTokenType::Bearer => false,
            BasicTokenType::Extension(kind) if kind == "dpop" && self.key.is_some() => true,
            other => {
                return Err(AuthError::TokenType {
                    issuer: self.issuer.issuer.clone(),
                    kind: sanitize(other.as_ref()),
                });
            }
        };
        if self.server.setup.requires_dpop && !is_bound {
            let what = "access tokens bound to a key";
            return Err(self.issuer.unsupported(what));
        }
        let expires = token.expires_in();
        Ok(Grant {
            issuer: self.issuer.issuer.clone(),
            resource: self.resource,
            client: self.client,
            access_token: token.access_token().clone(),
            refresh_token: token.refresh_token().cloned(),
            obtained: now(),
            expires: expires.map(|time| now().saturating_add(time.as_secs())),
            scopes: self.scopes,
            key: self.key.filter(|_| is_bound),
        })
    }
}
