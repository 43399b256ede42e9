//! Requests to a token endpoint.
//!
//! Always: the resource the token is for is named, the client proves who it is as was agreed, and a request that
//! wants a bound token proves that the key is here.

use super::client::{ClientId, Proof, SigningKey};
use super::dpop::{DpopKey, Nonces, PROOF};
use super::error::AuthError;
use super::http::{Http, uri};
use super::scopes::Scopes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use oauth2::basic::{BasicClient, BasicErrorResponse, BasicTokenResponse, BasicTokenType};
use oauth2::{
    AccessToken, AsyncHttpClient, AuthType, AuthorizationCode, EndpointNotSet, EndpointSet,
    PkceCodeVerifier, RedirectUrl, RefreshToken, RequestTokenError, Scope, TokenResponse as _,
    TokenUrl,
};
use serde::Deserialize;
use std::time::{SystemTime, UNIX_EPOCH};
use url::{Url, form_urlencoded};

const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const CLIENT_ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";

/// A client whose token endpoint is known, as the library wants it.
type Requester =
    BasicClient<EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet>;

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// A token endpoint, and what every request to it says.
#[derive(Debug)]
pub(super) struct TokenEndpoint<'a> {
    pub(super) http: &'a Http,
    pub(super) url: Url,
    pub(super) issuer: &'a str,
    pub(super) resource: &'a str,
    pub(super) client: &'a ClientId,
    /// The client's key, where it proves itself with one.
    pub(super) client_key: Option<&'a SigningKey>,
    /// The key that the token shall be bound to.
    pub(super) dpop: Option<&'a DpopKey>,
    pub(super) nonces: &'a Nonces,
}

/// A token that was issued.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) access_token: AccessToken,
    pub(super) is_bound: bool,
    pub(super) refresh_token: Option<RefreshToken>,
    pub(super) expires: Option<u64>,
}

impl TokenEndpoint<'_> {
    /// For a code that a person's browser brought.
    pub(super) async fn by_code(
        &self,
        code: AuthorizationCode,
        verifier: PkceCodeVerifier,
        redirect_uri: &RedirectUrl,
    ) -> Result<Issued, AuthError> {
        let client = self.requester().set_redirect_uri(redirect_uri.clone());
        let mut request = client.exchange_code(code).set_pkce_verifier(verifier);
        for (name, value) in self.extras()? {
            request = request.add_extra_param(name, value);
        }
        self.issued(request.request_async(self).await)
    }

    /// For the refresh token that came with another one.
    pub(super) async fn by_refresh(&self, token: &RefreshToken) -> Result<Issued, AuthError> {
        let client = self.requester();
        let mut request = client.exchange_refresh_token(token);
        for (name, value) in self.extras()? {
            request = request.add_extra_param(name, value);
        }
        self.issued(request.request_async(self).await)
    }

    /// For the client itself.
    pub(super) async fn by_credentials(&self, scopes: &Scopes) -> Result<Issued, AuthError> {
        let client = self.requester();
        let mut request = client.exchange_client_credentials();
        for (name, value) in self.extras()? {
            request = request.add_extra_param(name, value);
        }
        let scopes = scopes.iter().map(|scope| Scope::new(scope.to_owned()));
        let request = request.add_scopes(scopes);
        self.issued(request.request_async(self).await)
    }

    /// For somebody else's word about who this is.
    pub(super) async fn by_assertion(
        &self,
        assertion: &str,
        scopes: &Scopes,
    ) -> Result<Issued, AuthError> {
        let scopes = scopes.to_string();
        let mut form = vec![("grant_type", JWT_BEARER), ("assertion", assertion)];
        if !scopes.is_empty() {
            form.push(("scope", &scopes));
        }
        let response = self.send(self.form(&form)?).await?;
        self.issued(self.token(&response))
    }

    /// Exchanges an identity token for an assertion that this authorization server believes.
    pub(super) async fn exchange(
        &self,
        id_token: &str,
        audience: &str,
        scopes: &Scopes,
    ) -> Result<String, AuthError> {
        #[derive(Deserialize)]
        struct Exchanged {
            access_token: String,
            issued_token_type: String,
        }

        let scopes = scopes.to_string();
        let mut form = vec![
            ("grant_type", TOKEN_EXCHANGE),
            ("requested_token_type", ID_JAG),
            ("audience", audience),
            ("subject_token", id_token),
            ("subject_token_type", ID_TOKEN),
        ];
        if !scopes.is_empty() {
            form.push(("scope", &scopes));
        }
        let response = self.send(self.form(&form)?).await?;
        self.refusal(&response)?;
        let exchanged: Option<Exchanged> = serde_json::from_slice(response.body()).ok();
        exchanged
            .filter(|exchanged| exchanged.issued_token_type == ID_JAG)
            .map(|exchanged| exchanged.access_token)
            .ok_or_else(|| self.bad_answer("it is not an identity assertion"))
    }

    fn requester(&self) -> Requester {
        let id = oauth2::ClientId::new(self.client.id.clone());
        let client = BasicClient::new(id).set_token_uri(TokenUrl::from_url(self.url.clone()));
        let client = match self.client.proof {
            Proof::Basic => client.set_auth_type(AuthType::BasicAuth),
            Proof::None | Proof::Post | Proof::Key => client.set_auth_type(AuthType::RequestBody),
        };
        match (self.client.proof, &self.client.secret) {
            (Proof::Basic | Proof::Post, Some(secret)) => client.set_client_secret(secret.clone()),
            _ => client,
        }
    }

    /// What the library does not know of.
    fn extras(&self) -> Result<Vec<(&'static str, String)>, AuthError> {
        let mut extras = vec![("resource", self.resource.to_owned())];
        if let (Proof::Key, Some(key)) = (self.client.proof, self.client_key) {
            let assertion = key.assertion(&self.client.id, self.issuer)?;
            extras.push(("client_assertion_type", CLIENT_ASSERTION.to_owned()));
            extras.push(("client_assertion", assertion));
        }
        Ok(extras)
    }

    /// A request the library has no type for.
    fn form(&self, form: &[(&str, &str)]) -> Result<Request<Vec<u8>>, AuthError> {
        let ClientId {
            id, secret, proof, ..
        } = self.client;
        let mut request = Request::new(Vec::new());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri(&self.url)?;
        let headers = request.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::ACCEPT, json);
        let urlencoded = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(header::CONTENT_TYPE, urlencoded);
        let mut body = form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(form).extend_pairs(self.extras()?);
        match (proof, secret) {
            (Proof::Basic, Some(secret)) => {
                let encode = |text: &str| -> String {
                    form_urlencoded::byte_serialize(text.as_bytes()).collect()
                };
                let pair = format!("{}:{}", encode(id), encode(secret.secret()));
                let basic = super::authorization("Basic", &STANDARD.encode(pair))?;
                headers.insert(header::AUTHORIZATION, basic);
            }
            (Proof::Post, Some(secret)) => {
                body.append_pair("client_id", id);
                body.append_pair("client_secret", secret.secret());
            }
            _ => _ = body.append_pair("client_id", id),
        }
        *request.body_mut() = body.finish().into_bytes();
        Ok(request)
    }

    /// Sends a request, twice where a proof has to say what the first answer wants.
    async fn send(&self, mut request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, AuthError> {
        let Some(key) = self.dpop else {
            return self.http.send(request).await;
        };
        let prove = || {
            let nonce = self.nonces.get(&self.url);
            key.proof(&Method::POST, &self.url, None, nonce.as_deref())
        };
        request.headers_mut().insert(PROOF, prove()?);
        let response = self.http.send(request.clone()).await?;
        let has_nonce = self.nonces.learn(&self.url, response.headers());
        if !(has_nonce && says(&response, "use_dpop_nonce")) {
            return Ok(response);
        }
        request.headers_mut().insert(PROOF, prove()?);
        let response = self.http.send(request).await?;
        self.nonces.learn(&self.url, response.headers());
        Ok(response)
    }

    fn token(&self, response: &Response<Vec<u8>>) -> Result<BasicTokenResponse, TokenError> {
        self.refusal(response).map_err(RequestTokenError::Request)?;
        serde_json::from_slice(response.body())
            .map_err(|_| RequestTokenError::Other("it is not a token".to_owned()))
    }

    fn refusal(&self, response: &Response<Vec<u8>>) -> Result<(), AuthError> {
        if response.status() == StatusCode::OK {
            return Ok(());
        }
        Err(match serde_json::from_slice(response.body()) {
            Ok(refusal) => self.denied(&refusal),
            Err(_) => self.bad_answer(&format!("it is {}", response.status())),
        })
    }

    fn issued(&self, token: Result<BasicTokenResponse, TokenError>) -> Result<Issued, AuthError> {
        let token = token.map_err(|error| match error {
            RequestTokenError::ServerResponse(refusal) => self.denied(&refusal),
            RequestTokenError::Request(error) => error,
            // What could not be read is not repeated: there may be a token in it.
            RequestTokenError::Parse(..) => self.bad_answer("it is neither a token nor an error"),
            RequestTokenError::Other(reason) => self.bad_answer(&reason),
        })?;
        let is_bound = match token.token_type() {
            BasicTokenType::Bearer => false,
            BasicTokenType::Extension(kind) if kind == "dpop" && self.dpop.is_some() => true,
            other => {
                return Err(AuthError::TokenType {
                    issuer: self.issuer.to_owned(),
                    kind: super::error::quoted(other.as_ref()),
                });
            }
        };
        Ok(Issued {
            access_token: token.access_token().clone(),
            is_bound,
            refresh_token: token.refresh_token().cloned(),
            expires: token
                .expires_in()
                .map(|time| now().saturating_add(time.as_secs())),
        })
    }

    fn denied(&self, refusal: &BasicErrorResponse) -> AuthError {
        let description = refusal.error_description().map(String::as_str);
        AuthError::denied(
            self.issuer,
            "an access token",
            refusal.error().as_ref(),
            description,
        )
    }

    fn bad_answer(&self, reason: &str) -> AuthError {
        AuthError::BadAnswer {
            url: self.url.to_string(),
            reason: super::error::quoted(reason),
        }
    }
}

impl<'c> AsyncHttpClient<'c> for TokenEndpoint<'_> {
    type Error = AuthError;
    type Future = BoxFuture<'c, Result<Response<Vec<u8>>, AuthError>>;

    fn call(&'c self, request: Request<Vec<u8>>) -> Self::Future {
        Box::pin(async move {
            let response = self.send(request).await?;
            self.refusal(&response)?;
            Ok(response)
        })
    }
}

type TokenError = RequestTokenError<AuthError, BasicErrorResponse>;

fn says(response: &Response<Vec<u8>>, error: &str) -> bool {
    let refusal: Option<BasicErrorResponse> = serde_json::from_slice(response.body()).ok();
    response.status().is_client_error()
        && refusal.is_some_and(|refusal| refusal.error().as_ref() == error)
}
