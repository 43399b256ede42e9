//! Unsafe or invalid servers and responses are rejected before secrets are sent.

use super::support::{
    CannedResponse, OAuthServer, approve, by_browser, pem, redirect_uri, request,
};
use refrain_client::{AuthError, OAuth, RegisteredClient};
use serde_json::{Value, json};
use url::Url;

async fn failure(server: &OAuthServer) -> AuthError {
    let oauth = by_browser().build().expect("a valid setup");
    request(&oauth, &server.url()).await.expect_err("a failure")
}

#[tokio::test]
async fn unsafe_endpoints_are_rejected() {
    for name in [
        "authorization_endpoint",
        "token_endpoint",
        "registration_endpoint",
    ] {
        for url in ["http://as.example.com/x", "ftp://127.0.0.1/x", "nonsense"] {
            let server = OAuthServer::start().await;
            server.change(|does| does.metadata = json!({name: url}));
            let error = failure(&server).await;
            assert!(matches!(&error, AuthError::UnsafeUrl { url: named, .. } if named == url));
            assert_eq!(server.requests_to("/token").len(), 0, "{name} {url}");
        }
    }
    let server = OAuthServer::start().await;
    server
        .change(|does| does.resource = json!({"authorization_servers": ["http://as.example.com"]}));
    assert!(matches!(
        failure(&server).await,
        AuthError::UnsafeUrl { .. }
    ));
}

#[tokio::test]
async fn remote_http_server_is_rejected() {
    let oauth = by_browser().build().unwrap();
    let remote = Url::parse("http://mcp.example.com/mcp").unwrap();
    let outcome = request(&oauth, &remote).await;
    assert!(matches!(outcome, Err(AuthError::UnsafeUrl { .. })));
}

#[tokio::test]
async fn too_large_document_is_rejected() {
    for path in [
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/register",
        "/token",
    ] {
        let server = OAuthServer::start().await;
        server.instead(path, 200, " ".repeat(1 << 20));
        let text = failure(&server).await.to_string();
        assert!(text.contains("larger than 262144 bytes"), "{path}: {text}");
    }
}

#[tokio::test]
async fn invalid_metadata_is_rejected() {
    let path = "/.well-known/oauth-authorization-server";
    for (status, body, reason) in [
        (200, "<html>", "not the expected metadata"),
        (200, "{\"issuer\": 1}", "not the expected metadata"),
        (503, "", "503"),
        (404, "", "has no metadata"),
    ] {
        let server = OAuthServer::start().await;
        server.instead(path, status, body);
        let text = failure(&server).await.to_string();
        assert!(
            text.contains(reason) && text.contains(&server.origin),
            "{text}"
        );
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (server, other) = (OAuthServer::start().await, OAuthServer::start().await);
    let answer = CannedResponse::new(302).header("location", format!("{}/x", other.origin));
    for path in ["/.well-known/oauth-authorization-server", "/token"] {
        server.change(|does| {
            does.instead.clear();
            does.instead.insert(path, answer.clone());
        });
        failure(&server).await;
    }
    assert_eq!(other.requests_to("/x").len(), 0);
}

#[tokio::test]
async fn metadata_of_a_parent_is_rejected_unless_allowed() {
    for parent in ["", "/"] {
        let server = OAuthServer::start().await;
        let resource = format!("{}{parent}", server.origin);
        server.change(|does| does.resource = json!({"resource": resource}));
        let error = failure(&server).await;
        assert_matches!(error, AuthError::ResourceMismatch { .. });
        assert_eq!(server.requests_to("/token").len(), 0);

        let oauth = by_browser().allow_parent_resource().build().unwrap();
        let status = request(&oauth, &server.url()).await.expect("a response");
        assert!(status.is_success(), "{status}");
        assert_eq!(server.requests_to("/token")[0].params["resource"], resource);
    }
    let server = OAuthServer::start().await;
    let resource = format!("{}/another", server.origin);
    server.change(|does| does.resource = json!({"resource": resource}));
    let oauth = by_browser().allow_parent_resource().build().unwrap();
    let outcome = request(&oauth, &server.url()).await;
    assert_matches!(outcome, Err(AuthError::ResourceMismatch { .. }));
}

#[tokio::test]
async fn metadata_at_the_root_may_be_for_the_root() {
    let root = "/.well-known/oauth-protected-resource";
    let metadata = |server: &OAuthServer, path: &str| {
        let resource = format!("{}{path}", server.origin);
        let metadata = json!({"resource": resource, "authorization_servers": [server.origin]});
        server.instead(root, 200, metadata.to_string());
    };
    let server = OAuthServer::start().await;
    server.instead("/.well-known/oauth-protected-resource/mcp", 404, "");
    server.instead("/mcp", 401, "");
    metadata(&server, "/another");
    let error = failure(&server).await;
    assert_matches!(error, AuthError::ResourceMismatch { .. });
    assert_eq!(server.requests_to("/token").len(), 0);
    for path in ["", "/mcp"] {
        metadata(&server, path);
        // The server rejects every token; only the token request matters.
        assert_matches!(failure(&server).await, AuthError::TokenRejected(None));
        let tokens = server.requests_to("/token");
        let resource = format!("{}{path}", server.origin);
        assert_eq!(
            tokens.last().expect("a request").params["resource"],
            resource
        );
    }

    // A document that a challenge names must be for the server itself, even at the root.
    metadata(&server, "");
    let challenge = format!("Bearer resource_metadata=\"{}{root}\"", server.origin);
    server.answer(
        "/mcp",
        CannedResponse::new(401).header("www-authenticate", challenge),
    );
    let error = failure(&server).await;
    assert_matches!(error, AuthError::ResourceMismatch { .. });
}

#[tokio::test]
async fn server_without_metadata_is_its_own_authorization_server() {
    let server = OAuthServer::start().await;
    server.instead("/.well-known/oauth-protected-resource/mcp", 404, "");
    server.instead("/mcp", 401, "");
    let oauth = by_browser().build().unwrap();
    let url = server.url();
    // The server rejects every token; only the token request matters.
    let outcome = request(&oauth, &url).await;
    assert_matches!(outcome, Err(AuthError::TokenRejected(None)));
    assert_eq!(
        server.requests_to("/token")[0].params["resource"],
        url.as_str()
    );

    server.instead("/.well-known/oauth-authorization-server", 404, "");
    let error = request(&by_browser().build().unwrap(), &url)
        .await
        .unwrap_err();
    assert!(matches!(error, AuthError::NoResourceMetadata { .. }));
    assert!(
        error
            .to_string()
            .contains("/.well-known/oauth-protected-resource")
    );
}

#[tokio::test]
async fn forged_redirect_is_rejected() {
    type Forge = fn(&mut Url);
    let forged: [(Forge, &str); 4] = [
        (
            |url| _ = url.query_pairs_mut().clear().append_pair("code", "x"),
            "state",
        ),
        (
            |url| _ = url.query_pairs_mut().append_pair("state", "x"),
            "state",
        ),
        (
            |url| _ = url.query_pairs_mut().append_pair("iss", "https://x"),
            "iss",
        ),
        (|url| url.set_query(None), "state"),
    ];
    for (forge, reason) in forged {
        let server = OAuthServer::start().await;
        let oauth = OAuth::by_browser(redirect_uri(), move |url| async move {
            let mut back = approve(url).await?;
            forge(&mut back);
            Ok(back)
        });
        let outcome = request(&oauth.build().unwrap(), &server.url()).await;
        let Err(AuthError::InvalidRedirect(why)) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(why.to_string().contains(reason), "{why}");
        assert_eq!(server.requests_to("/token").len(), 0);
    }
}

#[tokio::test]
async fn missing_pkce_support_is_rejected() {
    for methods in [Value::Null, json!([]), json!(["plain"])] {
        let server = OAuthServer::start().await;
        server.change(|does| does.metadata = json!({"code_challenge_methods_supported": methods}));
        let error = failure(&server).await;
        assert_matches!(error, AuthError::Unsupported { .. });
        assert_eq!(server.requests_to("/authorize").len(), 0);
    }
}

#[tokio::test]
async fn secret_is_not_sent_to_another_authorization_server() {
    let (server, other) = (OAuthServer::start().await, OAuthServer::start().await);
    let client = || RegisteredClient::new("me").secret("my-secret");
    let url = server.url();

    // A client with a configured issuer.
    let bound = by_browser().client(client().issuer("https://as.example.com"));
    let outcome = request(&bound.build().unwrap(), &url).await;
    assert!(matches!(
        outcome,
        Err(AuthError::ClientIssuerMismatch { .. })
    ));
    assert_eq!(server.requests_to("/authorize").len(), 0);

    // A client without a configured issuer belongs to the first issuer it was used with.
    let unbound = by_browser().client(client()).build().unwrap();
    assert_eq!(request(&unbound, &url).await.unwrap(), 200);
    let basic = server.requests_to("/token")[0]
        .headers
        .get("authorization")
        .cloned();
    assert!(basic.unwrap().to_str().unwrap().starts_with("Basic "));
    server.expire_access_tokens();
    server.change(|does| does.resource = json!({"authorization_servers": [other.origin]}));
    let outcome = request(&unbound, &url).await;
    assert!(matches!(
        outcome,
        Err(AuthError::ClientIssuerMismatch { .. })
    ));
    assert_eq!(other.requests_to("/token").len(), 0);
}

#[tokio::test]
async fn repeated_rejections_are_given_up() {
    // The server rejects every token.
    let server = OAuthServer::start().await;
    server.instead("/mcp", 401, "");
    assert_matches!(failure(&server).await, AuthError::TokenRejected(None));
    assert_eq!(server.requests_to("/authorize").len(), 1);
    assert_eq!(server.requests_to("/token").len(), 1);

    // The server always demands more scopes.
    let server = OAuthServer::start().await;
    let challenge = "Bearer error=insufficient_scope, scope=a";
    server.answer(
        "/mcp",
        CannedResponse::new(403).header("www-authenticate", challenge),
    );
    let oauth = by_browser().build().unwrap();
    for _ in 0..3 {
        let outcome = request(&oauth, &server.url()).await;
        assert_matches!(outcome, Err(AuthError::InsufficientScope { .. }));
    }
    assert_eq!(server.requests_to("/authorize").len(), 1);
}

#[tokio::test]
async fn plain_403_is_returned_unchanged() {
    let server = OAuthServer::start().await;
    server.instead("/mcp", 403, "");
    let oauth = by_browser().build().unwrap();
    assert_eq!(request(&oauth, &server.url()).await.unwrap(), 403);
    assert_eq!(server.requests_to("/authorize").len(), 0);
}

#[tokio::test]
async fn demanded_scopes_are_added_to_granted_ones() {
    let server = OAuthServer::start().await;
    let oauth = by_browser().scopes(["mine"]).build().unwrap();
    let url = server.url();
    for scope in ["read", "write"] {
        server.change(|does| does.scope = Some(scope));
        assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    }
    let asked = server.requests_to("/authorize");
    let scopes: Vec<&str> = asked
        .iter()
        .map(|asked| asked.params["scope"].as_str())
        .collect();
    assert_eq!(scopes, ["mine read", "mine read write"]);
}

#[tokio::test]
async fn oauth_error_is_reported_without_control_characters() {
    let server = OAuthServer::start().await;
    let body =
        json!({"error": "invalid_redirect_uri", "error_description": "\u{1b}[2Jnot this one"});
    server.instead("/register", 400, body.to_string());
    let text = failure(&server).await.to_string();
    assert!(
        text.contains("rejected the client registration: invalid_redirect_uri ([2Jnot this one)"),
        "{text}"
    );
    server.instead(
        "/token",
        400,
        r#"{"error": "invalid_grant", "error_description": "used up"}"#,
    );
    server.change(|does| _ = does.instead.remove("/register"));
    let text = failure(&server).await.to_string();
    assert!(
        text.contains("rejected the token request: invalid_grant (used up)"),
        "{text}"
    );
}

#[tokio::test]
async fn missing_registration_endpoint_is_reported() {
    let server = OAuthServer::start().await;
    server.change(|does| does.metadata = json!({"registration_endpoint": null}));
    let error = failure(&server).await;
    assert_matches!(error, AuthError::ClientNotRegistered { .. });
}

#[tokio::test]
async fn token_of_another_type_is_rejected() {
    let server = OAuthServer::start().await;
    server.change(|does| does.token_type = "mac");
    let error = failure(&server).await;
    assert!(matches!(&error, AuthError::TokenType { kind, .. } if kind == "mac"));

    // An unbound token, although DPoP is required.
    let server = OAuthServer::start().await;
    let oauth = by_browser().require_dpop().build().unwrap();
    let outcome = request(&oauth, &server.url()).await;
    assert!(matches!(outcome, Err(AuthError::Unsupported { .. })));
    assert_eq!(server.requests_to("/authorize").len(), 0);
    server.change(|does| does.metadata = json!({"dpop_signing_alg_values_supported": ["ES256"]}));
    let outcome = request(&oauth, &server.url()).await;
    assert!(matches!(outcome, Err(AuthError::Unsupported { .. })));
    assert_eq!(server.requests_to("/mcp").len(), 2);
}

#[tokio::test]
async fn secret_is_not_sent_to_an_issuer_named_by_another_server() {
    let (ours, other) = (OAuthServer::start().await, OAuthServer::start().await);
    let keyed = RegisteredClient::new("me").private_key(&pem(), "ES256");
    let clients = [
        RegisteredClient::new("me").secret("secret-of-mine"),
        keyed.expect("a key"),
    ];
    for client in clients {
        let oauth = OAuth::by_credentials(client)
            .build()
            .expect("a valid setup");
        assert_eq!(request(&oauth, &ours.url()).await.unwrap(), 200);
        let error = request(&oauth, &other.url()).await.unwrap_err();
        let AuthError::ClientIssuerMismatch { registered, named } = &error else {
            panic!("{error}");
        };
        assert_eq!((registered, named), (&ours.origin, &other.origin));
    }
    assert_eq!(ours.requests_to("/token").len(), 2);
    assert_eq!(other.requests_to("/token").len(), 0);
    // A client id without credentials may be sent anywhere.
    let oauth = by_browser().client(RegisteredClient::new("me"));
    let oauth = oauth.build().expect("a valid setup");
    for server in [&ours, &other] {
        assert_eq!(request(&oauth, &server.url()).await.unwrap(), 200);
    }
}
