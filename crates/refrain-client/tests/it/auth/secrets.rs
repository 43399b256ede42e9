//! Debug output and errors contain no secrets.

use super::support::{BoxError, OAuthServer, approve, by_browser, pem, redirect_uri, request};
use futures_util::future::BoxFuture;
use refrain_client::{
    Authorize, Bearer, Grant, Grants, IdentityProvider, OAuth, RegisteredClient, RejectedRequest,
};
use serde_json::json;
use std::sync::{Arc, Mutex};
use url::Url;

/// Records the Debug output and the JSON of each grant.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<(String, String)>>>);

impl Grants for Recorder {
    fn get<'a>(&'a self, _server: &'a Url) -> BoxFuture<'a, Result<Option<Grant>, BoxError>> {
        Box::pin(async { Ok(None) })
    }

    fn put<'a>(
        &'a self,
        _server: &'a Url,
        grant: &'a Grant,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        let (debug, stored) = (format!("{grant:?} {grant:#?}"), json!(grant).to_string());
        self.0
            .lock()
            .expect("the lock is not poisoned")
            .push((debug, stored));
        Box::pin(async { Ok(()) })
    }
}

fn assert_no_secrets(text: &str) {
    for secret in ["secret", "PRIVATE", "MIG", "eyJ"] {
        assert!(!text.contains(secret), "{secret:?} is in {text}");
    }
}

#[tokio::test]
async fn debug_output_of_grants_and_headers_hides_secrets() {
    let server = OAuthServer::start().await;
    server.change(|does| {
        does.metadata = json!({"dpop_signing_alg_values_supported": ["ES256"]});
        does.token_type = "DPoP";
    });
    let recorder = Recorder::default();
    let client = RegisteredClient::new("me").secret("secret-of-mine");
    let oauth = by_browser()
        .client(client)
        .grants(recorder.clone())
        .require_dpop();
    assert_no_secrets(&format!("{oauth:?}"));
    let oauth = oauth.build().unwrap();
    let url = server.url();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    assert_no_secrets(&format!("{oauth:?} {oauth:#?}"));
    let grants = recorder.0.lock().unwrap().clone();
    let [(debug, stored)] = grants.as_slice() else {
        panic!("{} grants", grants.len());
    };
    assert_no_secrets(debug);
    assert!(debug.contains(&server.origin));
    for secret in ["secret-access-0", "secret-refresh-0", "secret-of-mine"] {
        assert!(stored.contains(secret), "{stored}");
    }

    let sent = oauth.headers(&http::Method::POST, &url).await.unwrap();
    assert_eq!(sent.len(), 2);
    let headers = http::HeaderMap::new();
    let rejection = RejectedRequest {
        url: &url,
        sent: &sent,
        status: http::StatusCode::UNAUTHORIZED,
        headers: &headers,
        previous: 0,
    };
    assert_no_secrets(&format!("{sent:?} {rejection:?}"));
}

#[tokio::test]
async fn errors_do_not_repeat_response_bodies() {
    for (path, body) in [
        ("/token", "secret".to_owned()),
        ("/token", json!({"access_token": "secret"}).to_string()),
        (
            "/token",
            json!({"access_token": ["secret"], "token_type": "Bearer"}).to_string(),
        ),
        (
            "/register",
            json!({"client_id": 1, "client_secret": "secret"}).to_string(),
        ),
        (
            "/register",
            json!({"client_id": "x", "client_secret": ["secret"]}).to_string(),
        ),
    ] {
        let server = OAuthServer::start().await;
        server.instead(path, 200, body);
        let oauth = by_browser().build().unwrap();
        let error = request(&oauth, &server.url()).await.unwrap_err();
        assert_no_secrets(&format!("{error} {error:?}"));
        assert!(error.to_string().contains(path), "{error}");
    }
    // The redirect contains the authorization code.
    let server = OAuthServer::start().await;
    let oauth = OAuth::by_browser(redirect_uri(), |url| async {
        let mut back = approve(url).await?;
        back.query_pairs_mut().append_pair("state", "x");
        Ok(back)
    });
    let error = request(&oauth.build().unwrap(), &server.url())
        .await
        .unwrap_err();
    assert_no_secrets(&format!("{error} {error:?}"));
}

#[test]
fn debug_output_of_setups_hides_secrets() {
    let pem = &pem();
    let client = RegisteredClient::new("me").secret("secret");
    let client = client.private_key(pem, "ES256").unwrap();
    assert_no_secrets(&format!("{client:?} {client:#?}").replace("secret:", ""));
    let endpoint = Url::parse("https://idp.example.com/token").unwrap();
    let provider =
        IdentityProvider::new(endpoint, client.clone(), || async { Ok("secret".into()) });
    assert_no_secrets(&format!("{provider:?}"));
    let builder = OAuth::by_identity_provider(provider, client);
    assert_no_secrets(&format!("{builder:?} {:?}", Bearer::new("secret").unwrap()));
}
