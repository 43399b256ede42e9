//! Registers this client with an authorization server that takes clients it does not know (RFC 7591).

use super::client::{ClientId, Proof};
use super::error::AuthError;
use super::http::{Http, is_here, uri};
use super::metadata::IssuerMetadata;
use http::{HeaderValue, Method, Request, header};
use oauth2::ClientSecret;
use serde::Deserialize;
use serde_json::json;
use url::Url;

/// What the client says about itself.
#[derive(Debug)]
pub(super) struct Registration<'a> {
    pub(super) name: &'a str,
    pub(super) redirect_uri: &'a Url,
    pub(super) dpop: bool,
}

/// What the authorization server makes of it.
#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<ClientSecret>,
    token_endpoint_auth_method: Option<String>,
}

/// What it says when it does not.
#[derive(Deserialize)]
struct Refused {
    error: String,
    error_description: Option<String>,
}

impl Registration<'_> {
    pub(super) async fn send(
        &self,
        http: &Http,
        endpoint: &Url,
        metadata: &IssuerMetadata,
    ) -> Result<ClientId, AuthError> {
        let mut request = Request::new(self.body(metadata).to_string().into_bytes());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri(endpoint)?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::ACCEPT, json.clone());
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        let response = http.send(request).await?;
        let body = response.body();
        if let Ok(registered) = serde_json::from_slice::<Registered>(body)
            && response.status().is_success()
        {
            return Ok(self.registered(registered, metadata));
        }
        Err(match serde_json::from_slice::<Refused>(body) {
            Ok(refused) => AuthError::denied(
                &metadata.issuer,
                "to register this client",
                &refused.error,
                refused.error_description.as_deref(),
            ),
            // What could not be read is not repeated: there may be a secret in it.
            Err(_) => AuthError::BadAnswer {
                url: endpoint.to_string(),
                reason: format!("it is {} without a client", response.status()),
            },
        })
    }

    fn body(&self, metadata: &IssuerMetadata) -> serde_json::Value {
        let methods = metadata.token_endpoint_auth_methods_supported.as_deref();
        let wished = ["none", "client_secret_basic", "client_secret_post"];
        let method = wished.into_iter().find(|method| match methods {
            Some(methods) => methods.iter().any(|listed| listed == method),
            None => *method == "client_secret_basic",
        });
        let kind = if is_here(self.redirect_uri) {
            "native"
        } else {
            "web"
        };
        let mut body = json!({
            "client_name": self.name,
            "redirect_uris": [self.redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": kind,
            "token_endpoint_auth_method": method.unwrap_or("none"),
        });
        if self.dpop {
            body["dpop_bound_access_tokens"] = true.into();
        }
        body
    }

    fn registered(&self, registered: Registered, metadata: &IssuerMetadata) -> ClientId {
        let agreed = registered.token_endpoint_auth_method.as_deref();
        let proof = match &registered.client_secret {
            Some(_) => Proof::of_secret(metadata, agreed),
            None => Proof::None,
        };
        ClientId {
            id: registered.client_id,
            secret: registered.client_secret,
            proof,
            redirect_uri: Some(self.redirect_uri.to_string()),
        }
    }
}
