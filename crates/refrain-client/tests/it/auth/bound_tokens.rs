//! A server of this project that requires DPoP-bound access tokens.

use super::support::{OAuthServer, by_browser, within};
use refrain::auth::{Jwks, JwtVerifier, ResourceMetadata};
use refrain::prelude::*;
use refrain::server::{AllowedHosts, Server};
use refrain_client::{Client, ToolResult};
use refrain_testkit::net::issuer::{Signer, encode, jwks, now};
use refrain_testkit::net::{Instance, Request, listen, start_on, url_of};
use serde_json::{Value, json};
use std::sync::Arc;

/// Returns the caller's name.
#[tool]
async fn whoami(cx: Cx) -> Result<String> {
    Ok(cx.principal().id().unwrap_or("anonymous").to_owned())
}

/// Starts a server, and makes the issuer bind tokens.
async fn start(issuer: &OAuthServer) -> (Instance, String) {
    let listener = listen().await;
    let url = url_of(&listener);
    let signer = Signer::p256("1");
    let directory = tempfile::tempdir().expect("a directory");
    let keys = directory.path().join("jwks.json");
    std::fs::write(&keys, jwks(&[&signer])).expect("a file");
    let verifier = JwtVerifier::builder(&issuer.origin, &url, Jwks::File(keys))
        .require_dpop()
        .build()
        .expect("a valid verifier");
    let builder = Server::builder("bound", "1")
        .tool(whoami())
        .authenticator(verifier)
        .resource_metadata(ResourceMetadata::new(&url, [&issuer.origin]));
    let (origin, audience) = (issuer.origin.clone(), url.clone());
    issuer.change(|does| {
        does.metadata = json!({"dpop_signing_alg_values_supported": ["ES256"]});
        does.token_type = "DPoP";
        does.mint = Some(Arc::new(move |thumbprint| {
            signer.token(&json!({
                "iss": origin, "aud": audience, "sub": "alice",
                "iat": now(), "nbf": now(), "exp": now() + 300,
                "cnf": {"jkt": thumbprint.expect("a thumbprint")},
            }))
        }));
    });
    (start_on(listener, builder, AllowedHosts::local()), url)
}

fn proof(url: &str, key: &Signer, token: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes());
    let mut jwk = key.jwk();
    jwk.as_object_mut().expect("an object").remove("kid");
    let claims: Value = json!({
        "jti": "1", "htm": "POST", "htu": url, "iat": now(), "ath": encode(digest),
    });
    key.token_with(
        &json!({"typ": "dpop+jwt", "alg": "ES256", "jwk": jwk}),
        &claims,
    )
}

#[tokio::test]
async fn client_calls_a_server_that_requires_dpop_and_a_stolen_token_is_rejected() {
    let issuer = OAuthServer::start().await;
    let (instance, url) = start(&issuer).await;
    // The client learns from the server that it needs a bound token.
    let oauth = by_browser().build().expect("a valid setup");
    let client = within(Client::builder().authorize(oauth).connect(&url)).await;
    let client = client.expect("a connection");
    for _ in 0..3 {
        let result = within(client.call_tool("whoami", json!({})))
            .await
            .expect("a result");
        let expected = ToolResult::text(format!("{}#alice", issuer.origin));
        assert_eq!(result.content, expected.content);
    }
    assert_eq!(issuer.requests_to("/token").len(), 1);

    let stolen = issuer.stolen_token();
    let call = |scheme: &str| {
        Request::tool("whoami", json!({})).header("Authorization", &format!("{scheme} {stolen}"))
    };
    let other_key = Signer::p256("2");
    for (request, error) in [
        (call("Bearer"), "invalid_token"),
        (call("DPoP"), "invalid_dpop_proof"),
        (
            call("DPoP").header("DPoP", &proof(&url, &other_key, &stolen)),
            "invalid_dpop_proof",
        ),
    ] {
        let response = instance.send(&request).await;
        response.error(401, -32600);
        let challenge = response.header("www-authenticate").expect("a challenge");
        assert!(challenge.starts_with("DPoP algs=\"ES256 "), "{challenge}");
        assert!(challenge.contains(error), "{challenge}");
    }
}
