//! Protocol rules for authorization that the official conformance suite does not check.

use super::support::{OAuthServer, approve, by_browser, request};
use refrain_client::{AuthError, OAuth, OAuthBuilder, RegisteredClient};
use serde_json::{Value, json};
use url::Url;

const DOCUMENT: &str = "https://app.example.com/client.json";

/// The body of the registration request.
fn registration(server: &OAuthServer) -> Value {
    let asked = server.requests_to("/register");
    let body = asked[0].params.keys().next().expect("a body");
    serde_json::from_str(body).expect("an object")
}

#[tokio::test]
async fn registration_names_its_application_type() {
    for (redirect_uri, kind) in [
        ("http://127.0.0.1:8085/callback", "native"),
        ("http://localhost/callback", "native"),
        ("https://app.example.com/callback", "web"),
    ] {
        let server = OAuthServer::start().await;
        let redirect_uri = Url::parse(redirect_uri).unwrap();
        let oauth = OAuth::by_browser(redirect_uri.clone(), approve);
        let status = request(&oauth.build().unwrap(), &server.url()).await;
        assert!(status.unwrap().is_success());
        let sent = registration(&server);
        assert_eq!(sent["application_type"], kind);
        assert_eq!(sent["redirect_uris"], json!([redirect_uri]));
        let grants = json!(["authorization_code", "refresh_token"]);
        assert_eq!(sent["grant_types"], grants);
        let asked = &server.requests_to("/authorize")[0].params;
        assert_eq!(asked["redirect_uri"], redirect_uri.as_str());
    }
}

#[tokio::test]
async fn rejected_registration_reports_the_reason() {
    let server = OAuthServer::start().await;
    let why = json!({"error": "invalid_redirect_uri", "error_description": "https only"});
    server.instead("/register", 400, why.to_string());
    let outcome = request(&by_browser().build().unwrap(), &server.url()).await;
    let error = outcome.unwrap_err();
    assert_matches!(error, AuthError::Denied { .. });
    for word in ["registration", "invalid_redirect_uri", "https only"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(server.requests_to("/authorize").len(), 0);
}

#[tokio::test]
async fn client_id_prefers_setup_then_document_then_registration() {
    let documented = || by_browser().client_metadata_url(Url::parse(DOCUMENT).unwrap());
    let known = || documented().client(RegisteredClient::new("known"));
    let cases: [(OAuthBuilder, bool, &str); 5] = [
        (known(), true, "known"),
        (known(), false, "known"),
        (documented(), true, DOCUMENT),
        (documented(), false, "registered"),
        (by_browser(), true, "registered"),
    ];
    for (oauth, supports_documents, id) in cases {
        let server = OAuthServer::start().await;
        let metadata = json!({"client_id_metadata_document_supported": supports_documents});
        server.change(|does| does.metadata = metadata);
        let status = request(&oauth.build().unwrap(), &server.url()).await;
        assert!(status.unwrap().is_success());
        assert_eq!(server.requests_to("/authorize")[0].params["client_id"], id);
        let has_registered = !server.requests_to("/register").is_empty();
        assert_eq!(has_registered, id == "registered");
    }
}

#[tokio::test]
async fn openid_connect_without_pkce_is_rejected() {
    for has_pkce in [true, false] {
        let server = OAuthServer::start().await;
        let at = |path: &str| format!("{}{path}", server.origin);
        let mut metadata = json!({
            "issuer": server.origin,
            "authorization_endpoint": at("/authorize"),
            "token_endpoint": at("/token"),
            "registration_endpoint": at("/register"),
        });
        if has_pkce {
            metadata["code_challenge_methods_supported"] = json!(["plain", "S256"]);
        }
        server.instead("/.well-known/oauth-authorization-server", 404, "");
        let openid = "/.well-known/openid-configuration";
        server.instead(openid, 200, metadata.to_string());
        let outcome = request(&by_browser().build().unwrap(), &server.url()).await;
        if has_pkce {
            assert!(outcome.unwrap().is_success());
            let asked = &server.requests_to("/authorize")[0].params;
            assert_eq!(asked["code_challenge_method"], "S256");
        } else {
            assert!(matches!(outcome, Err(AuthError::Unsupported { .. })));
            assert_eq!(server.requests_to("/authorize").len(), 0);
        }
    }
}

#[tokio::test]
async fn resource_of_a_root_server_has_no_slash() {
    let server = OAuthServer::start().await;
    server.instead("/", 401, "");
    let root = Url::parse(&server.origin).unwrap();
    // The server rejects every token; only the requested resource matters.
    let outcome = request(&by_browser().build().unwrap(), &root).await;
    assert_matches!(outcome, Err(AuthError::TokenRejected(None)));
    for path in ["/authorize", "/token"] {
        assert_eq!(
            server.requests_to(path)[0].params["resource"],
            server.origin
        );
    }
}
