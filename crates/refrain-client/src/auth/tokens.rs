//! Requests to a token endpoint.
//!
//! Each request names the resource and authenticates the client. A request for a DPoP-bound token contains a proof.

use super::client::{ClientAuth, ClientIdentity, SigningKey};
use super::dpop::{DpopKey, Nonces, PROOF};
use super::error::{AuthError, AuthResult, OAuthFailure, ResponseError};
use super::grant::GrantScopes;
use super::http::AuthHttp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Method, Response, StatusCode, header};
use oauth2::basic::BasicTokenResponse;
use serde::Deserialize;
use std::time::{SystemTime, UNIX_EPOCH};
use url::{Url, form_urlencoded};

pub(super) const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const CLIENT_ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";

pub(super) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

pub(super) struct TokenEndpoint<'a> {
    pub(super) http: &'a AuthHttp,
    pub(super) url: Url,
    pub(super) issuer: &'a str,
    pub(super) resource: &'a str,
    pub(super) client: &'a ClientIdentity,
    pub(super) client_key: Option<&'a SigningKey>,
    pub(super) dpop: Option<&'a DpopKey>,
    pub(super) nonces: &'a Nonces,
}

impl TokenEndpoint<'_> {
    pub(super) async fn token(
        &self,
        grant_type: &str,
        params: &[(&str, &str)],
        scopes: Option<&GrantScopes>,
    ) -> AuthResult<BasicTokenResponse> {
        let body = self.request(grant_type, params, scopes).await?;
        serde_json::from_slice(&body).map_err(|_| self.invalid_response(ResponseError::NotToken))
    }

    /// Exchanges an identity token for an assertion for the authorization server `audience`.
    pub(super) async fn exchange(
        &self,
        id_token: &str,
        audience: &str,
        scopes: &GrantScopes,
    ) -> AuthResult<String> {
        #[derive(Deserialize)]
        struct ExchangeResponse {
            access_token: String,
            issued_token_type: String,
        }

        let params = [
            ("requested_token_type", ID_JAG),
            ("audience", audience),
            ("subject_token", id_token),
            ("subject_token_type", ID_TOKEN),
        ];
        let body = self.request(TOKEN_EXCHANGE, &params, Some(scopes)).await?;
        let exchanged: Option<ExchangeResponse> = serde_json::from_slice(&body).ok();
        exchanged
            .filter(|exchanged| exchanged.issued_token_type == ID_JAG)
            .map(|exchanged| exchanged.access_token)
            .ok_or_else(|| self.invalid_response(ResponseError::NotAssertion))
    }

    /// Sends a form, and repeats it if the server requires a nonce in the proof. Returns the response body.
    async fn request(
        &self,
        grant_type: &str,
        params: &[(&str, &str)],
        scopes: Option<&GrantScopes>,
    ) -> AuthResult<Vec<u8>> {
        let mut headers = HeaderMap::new();
        let body = self.form(grant_type, params, scopes, &mut headers)?;
        let mut response = self.send(headers.clone(), body.clone()).await?;
        let has_nonce = self.nonces.update(&self.url, response.headers());
        if self.dpop.is_some() && has_nonce && requires_nonce(&response) {
            response = self.send(headers, body).await?;
            self.nonces.update(&self.url, response.headers());
        }
        match (response.status(), OAuthFailure::read(response.body())) {
            (StatusCode::OK, _) => Ok(response.into_body()),
            (_, Some(failure)) => Err(failure.into_error(self.issuer, "the token request")),
            (status, None) => Err(self.invalid_response(ResponseError::Status(status))),
        }
    }

    /// The body of a request. Adds the `Authorization` header of a client that uses HTTP Basic.
    fn form(
        &self,
        grant_type: &str,
        params: &[(&str, &str)],
        scopes: Option<&GrantScopes>,
        headers: &mut HeaderMap,
    ) -> AuthResult<String> {
        let mut body = form_urlencoded::Serializer::new(String::new());
        body.append_pair("grant_type", grant_type);
        body.append_pair("resource", self.resource);
        body.extend_pairs(params);
        if let Some(scopes) = scopes.filter(|scopes| !scopes.is_empty()) {
            body.append_pair("scope", &scopes.to_string());
        }
        let ClientIdentity { id, secret, .. } = self.client;
        match (self.client.auth, secret, self.client_key) {
            (ClientAuth::Basic, Some(secret), _) => {
                let encode = |text: &str| -> String {
                    form_urlencoded::byte_serialize(text.as_bytes()).collect()
                };
                let pair = format!("{}:{}", encode(id), encode(secret.secret()));
                let basic = super::authorization("Basic", &STANDARD.encode(pair))?;
                headers.insert(header::AUTHORIZATION, basic);
                return Ok(body.finish());
            }
            (ClientAuth::Post, Some(secret), _) => {
                body.append_pair("client_secret", secret.secret());
            }
            (ClientAuth::Key, _, Some(key)) => {
                body.append_pair("client_assertion_type", CLIENT_ASSERTION);
                body.append_pair("client_assertion", &key.assertion(id, self.issuer)?);
            }
            _ => {}
        }
        body.append_pair("client_id", id);
        Ok(body.finish())
    }

    async fn send(&self, mut headers: HeaderMap, body: String) -> AuthResult<Response<Vec<u8>>> {
        if let Some(key) = self.dpop {
            let nonce = self.nonces.get(&self.url);
            let proof = key.proof(&Method::POST, &self.url, None, nonce.as_deref())?;
            headers.insert(PROOF, proof);
        }
        let form = "application/x-www-form-urlencoded";
        self.http.post(&self.url, form, headers, body).await
    }

    fn invalid_response(&self, source: ResponseError) -> AuthError {
        AuthError::invalid_response(&self.url, source)
    }
}

fn requires_nonce(response: &Response<Vec<u8>>) -> bool {
    let failure = OAuthFailure::read(response.body());
    response.status().is_client_error()
        && failure.is_some_and(|failure| failure.error == "use_dpop_nonce")
}
