//! Refresh tokens, and the host's storage for grants.

use super::support::{BoxError, Memory, OAuthServer, by_browser, request, without_person};
use futures_util::future::BoxFuture;
use http::StatusCode;
use refrain_client::{AuthError, Grant, Grants, OAuth, RegisteredClient};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use url::Url;

/// Stores each grant in a file, as a host might.
struct FileGrants(PathBuf);

impl FileGrants {
    fn path(&self, server: &Url) -> PathBuf {
        let name: String = server.as_str().replace(|c: char| !c.is_alphanumeric(), "_");
        self.0.join(name)
    }
}

impl Grants for FileGrants {
    fn get<'a>(&'a self, server: &'a Url) -> BoxFuture<'a, Result<Option<Grant>, BoxError>> {
        Box::pin(async {
            match fs::read(self.path(server)) {
                Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
                Err(_) => Ok(None),
            }
        })
    }

    fn put<'a>(&'a self, server: &'a Url, grant: &'a Grant) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async { Ok(fs::write(self.path(server), serde_json::to_vec(grant)?)?) })
    }
}

/// A storage that fails on write, or also on read.
struct BrokenStorage {
    fails_on_read: bool,
}

impl Grants for BrokenStorage {
    fn get<'a>(&'a self, _server: &'a Url) -> BoxFuture<'a, Result<Option<Grant>, BoxError>> {
        Box::pin(async {
            if self.fails_on_read {
                Err("locked".into())
            } else {
                Ok(None)
            }
        })
    }

    fn put<'a>(&'a self, _: &'a Url, _: &'a Grant) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async { Err("full".into()) })
    }
}

#[tokio::test]
async fn token_is_refreshed_before_it_expires() {
    let server = OAuthServer::start().await;
    let memory = Memory::default();
    let url = server.url();
    let oauth = by_browser().grants(memory.clone()).build().unwrap();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    for number in 0..3 {
        memory.age();
        let oauth = without_person().grants(memory.clone()).build().unwrap();
        assert_eq!(request(&oauth, &url).await.unwrap(), 200);
        assert_eq!(request(&oauth, &url).await.unwrap(), 200);
        let tokens = server.requests_to("/token");
        assert_eq!(tokens.len(), number + 2);
        let renewal = &tokens[number + 1].params;
        assert_eq!(renewal["grant_type"], "refresh_token");
        assert_eq!(renewal["refresh_token"], format!("secret-refresh-{number}"));
        assert_eq!(renewal["resource"], url.as_str());
    }
    assert_eq!(server.refusals(), 1);
}

#[tokio::test]
async fn short_lived_token_is_used_while_valid() {
    let server = OAuthServer::start().await;
    server.change(|does| does.expires_in = 25);
    let oauth = by_browser().build().unwrap();
    for _ in 0..3 {
        assert_eq!(request(&oauth, &server.url()).await.unwrap(), 200);
    }
    assert_eq!(server.requests_to("/token").len(), 1);
}

#[tokio::test]
async fn token_is_used_while_valid_if_refresh_fails() {
    let server = OAuthServer::start().await;
    let memory = Memory::default();
    let url = server.url();
    let oauth = by_browser().grants(memory.clone()).build().unwrap();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    memory.age();
    server.instead("/token", 503, "");
    let oauth = without_person().grants(memory.clone()).build().unwrap();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    assert_eq!(server.refusals(), 1);

    // Once the token is invalid, the failed refresh is the error.
    server.expire_access_tokens();
    let error = request(&oauth, &url).await.unwrap_err().to_string();
    assert!(error.contains("/token") && error.contains("503"), "{error}");
}

#[tokio::test]
async fn rejected_token_is_refreshed_without_the_person() {
    let server = OAuthServer::start().await;
    let oauth = by_browser().build().unwrap();
    let url = server.url();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    server.expire_access_tokens();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    assert_eq!(server.requests_to("/authorize").len(), 1);
    assert_eq!(server.requests_to("/token").len(), 2);
}

#[tokio::test]
async fn refresh_token_is_reused_if_not_rotated() {
    let server = OAuthServer::start().await;
    server.change(|does| does.has_rotation = false);
    let oauth = by_browser().build().unwrap();
    for _ in 0..3 {
        assert_eq!(request(&oauth, &server.url()).await.unwrap(), 200);
        server.expire_access_tokens();
    }
    assert_eq!(server.requests_to("/authorize").len(), 1);
    assert_eq!(server.requests_to("/token").len(), 3);
}

#[tokio::test]
async fn rejected_refresh_asks_the_person_again() {
    let server = OAuthServer::start().await;
    let oauth = by_browser().build().unwrap();
    let url = server.url();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    server.expire_access_tokens();
    server.change(|does| does.refresh_tokens.clear());
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    assert_eq!(server.requests_to("/authorize").len(), 2);
    // The second authorization reuses the client registration.
    assert_eq!(server.requests_to("/register").len(), 1);
}

#[tokio::test]
async fn stored_grant_is_used_by_other_clients() {
    let server = OAuthServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let storage = || FileGrants(dir.path().to_owned());
    let url = server.url();
    let first = by_browser().grants(storage()).build().unwrap();
    assert_eq!(request(&first, &url).await.unwrap(), 200);
    drop(first);

    let second = without_person().grants(storage()).build().unwrap();
    assert_eq!(request(&second, &url).await.unwrap(), 200);
    assert_eq!(server.refusals(), 1);

    // `second` refreshes the token with the client id that `first` registered.
    server.expire_access_tokens();
    assert_eq!(request(&second, &url).await.unwrap(), 200);
    let tokens = server.requests_to("/token");
    assert_eq!(tokens.last().unwrap().params["client_id"], "registered");

    // A process with an outdated grant reads the storage before it uses a refresh token again.
    let third = without_person().grants(storage()).build().unwrap();
    assert_eq!(request(&third, &url).await.unwrap(), 200);
    server.expire_access_tokens();
    assert_eq!(request(&second, &url).await.unwrap(), 200);
    let count = server.requests_to("/token").len();
    assert_eq!(request(&third, &url).await.unwrap(), 200);
    assert_eq!(server.requests_to("/token").len(), count);
}

#[tokio::test]
async fn stored_grant_of_another_client_is_ignored() {
    let server = OAuthServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let storage = || FileGrants(dir.path().to_owned());
    let url = server.url();
    let first = by_browser().grants(storage()).build().unwrap();
    assert_eq!(request(&first, &url).await.unwrap(), 200);
    let client = RegisteredClient::new("mine").secret("mine");
    let mine = OAuth::by_credentials(client)
        .grants(storage())
        .build()
        .unwrap();
    assert_eq!(request(&mine, &url).await.unwrap(), 200);
    let tokens = server.requests_to("/token");
    assert_eq!(
        tokens.last().unwrap().params["grant_type"],
        "client_credentials"
    );
}

#[tokio::test]
async fn unreadable_grant_storage_is_an_error_but_unwritable_is_not() {
    let server = OAuthServer::start().await;
    let url = server.url();
    let unreadable = by_browser()
        .grants(BrokenStorage {
            fails_on_read: true,
        })
        .build()
        .unwrap();
    let outcome = request(&unreadable, &url).await;
    assert_matches!(outcome, Err(AuthError::Grants(_)));
    assert!(outcome.unwrap_err().to_string().contains("locked"));
    let unwritable = by_browser()
        .grants(BrokenStorage {
            fails_on_read: false,
        })
        .build()
        .unwrap();
    assert_eq!(request(&unwritable, &url).await.unwrap(), 200);
    assert_eq!(request(&unwritable, &url).await.unwrap(), 200);
    assert_eq!(server.requests_to("/authorize").len(), 1);
}

#[tokio::test]
async fn dpop_key_is_stored_with_its_token() {
    let server = OAuthServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let storage = || FileGrants(dir.path().to_owned());
    let url = server.url();
    server.change(|does| {
        does.metadata = json!({"dpop_signing_alg_values_supported": ["ES256"]});
        does.token_type = "DPoP";
    });
    let first = by_browser()
        .grants(storage())
        .require_dpop()
        .build()
        .unwrap();
    assert_eq!(request(&first, &url).await.unwrap(), 200);
    let second = without_person()
        .grants(storage())
        .require_dpop()
        .build()
        .unwrap();
    assert_eq!(request(&second, &url).await.unwrap(), 200);

    let proofs: Vec<Value> = ["/token", "/mcp"]
        .iter()
        .flat_map(|path| server.requests_to(path))
        .filter_map(|asked| Some(asked.headers.get("dpop")?.to_str().unwrap().to_owned()))
        .map(|proof| json!(jsonwebtoken::decode_header(proof).unwrap().jwk))
        .collect();
    assert_eq!(proofs.len(), 3);
    assert!(
        proofs
            .iter()
            .all(|jwk| jwk["kty"] == "EC" && *jwk == proofs[0])
    );
    let asked = &server.requests_to("/authorize")[0];
    assert_eq!(asked.params["dpop_jkt"].len(), 43);
    for request in &server.requests_to("/mcp")[1..] {
        let token = request.headers["authorization"].to_str().unwrap();
        assert!(token.starts_with("DPoP secret-access-"));
    }
}

#[tokio::test]
async fn unbound_stored_token_is_ignored_if_dpop_is_required() {
    let server = OAuthServer::start().await;
    let memory = Memory::default();
    let url = server.url();
    let first = by_browser().grants(memory.clone()).build().unwrap();
    assert_eq!(request(&first, &url).await.unwrap(), 200);
    server.change(|does| {
        does.metadata = json!({"dpop_signing_alg_values_supported": ["ES256"]});
        does.token_type = "DPoP";
    });
    let second = by_browser().grants(memory).require_dpop().build().unwrap();
    assert_eq!(request(&second, &url).await.unwrap(), 200);
    let tokens: Vec<_> = server.requests_to("/mcp");
    let schemes = tokens.iter().filter_map(|asked| {
        let token = asked.headers.get("authorization")?.to_str().ok()?;
        token.split(' ').next()
    });
    assert_eq!(schemes.collect::<Vec<_>>(), ["Bearer", "DPoP"]);
}

#[tokio::test]
async fn token_of_one_server_is_not_sent_to_another() {
    let (one, other) = (OAuthServer::start().await, OAuthServer::start().await);
    let oauth = by_browser().build().unwrap();
    assert_eq!(request(&oauth, &one.url()).await.unwrap(), 200);
    other.instead("/mcp", 200, "{}");
    assert_eq!(request(&oauth, &other.url()).await.unwrap(), 200);
    let asked = other.requests_to("/mcp");
    assert_eq!(asked.len(), 1);
    assert!(!asked[0].headers.contains_key("authorization"));
}

#[tokio::test]
async fn stored_grants_are_used_without_a_person() {
    let (server, memory) = (OAuthServer::start().await, Memory::default());
    let url = server.url();
    let stored = async || {
        let oauth = OAuth::by_stored_grants(memory.clone()).build().unwrap();
        request(&oauth, &url).await
    };
    let assert_login_required = |outcome: Result<StatusCode, AuthError>| match outcome {
        Err(AuthError::LoginRequired(server)) => assert_eq!(server, url.as_str()),
        other => panic!("{other:?}"),
    };
    assert_login_required(stored().await);
    assert_eq!(server.requests_to("/register").len(), 0);

    let oauth = by_browser().grants(memory.clone()).build().unwrap();
    request(&oauth, &url).await.unwrap();
    assert_eq!(stored().await.unwrap(), StatusCode::OK);
    memory.age();
    assert_eq!(stored().await.unwrap(), StatusCode::OK);
    let grants = server.requests_to("/token").len();
    assert_eq!(grants, 2, "one by the browser, one by the refresh token");

    server.expire_access_tokens();
    server.change(|behaviour| behaviour.refresh_tokens.clear());
    assert_login_required(stored().await);
    assert_eq!(server.requests_to("/authorize").len(), 1);
}

#[tokio::test]
async fn stored_grant_without_a_required_scope_names_it() {
    let (server, memory) = (OAuthServer::start().await, Memory::default());
    let url = server.url();
    let first = by_browser().scopes(["read"]).grants(memory.clone());
    request(&first.build().unwrap(), &url).await.unwrap();
    server.change(|does| does.scope = Some("write"));
    let stored = OAuth::by_stored_grants(memory).build().unwrap();
    match request(&stored, &url).await {
        Err(AuthError::ScopeRequired {
            server,
            required,
            scopes,
        }) => {
            assert_eq!(server, url.as_str());
            assert_eq!((&*required, &*scopes), ("write", "read write"));
        }
        other => panic!("{other:?}"),
    }
}
