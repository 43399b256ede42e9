//! Claims of a token: audience, expiry, principal and scopes.

use super::{assert_rejected, call, file, instance, instance_with, principal, server};
use crate::support::issuer::{AUDIENCE, ISSUER, Signer, claims, jwks, now};
use crate::support::{Request, keys, login, start, text, token};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use refrain_server::{Authenticator, Jwks, JwtVerifier};
use serde_json::{Value, json};
use std::time::{Duration, UNIX_EPOCH};

#[tokio::test]
async fn audience_ignores_case_of_scheme_and_host_only() {
    let signer = Signer::ed25519("1");
    let keys = jwks(&[&signer]);
    let instance = instance_with(&keys, |verifier| {
        let verifier = verifier.audience("https://MCP.example.org:8443?Q");
        verifier
            .audience("Files")
            .audience("https://me@example.org")
    });
    let instance = instance.await;
    for (audience, accepted) in [
        ("HTTPS://MCP.Example.COM/mcp", true),
        ("https://mcp.example.ORG:8443?Q", true),
        ("Files", true),
        ("https://me@example.org", true),
        ("https://mcp.example.com/MCP", false),
        ("https://mcp.example.com", false),
        ("https://mcp.example.org:8443?q", false),
        ("https://mcp.example.org:8444?Q", false),
        ("http://mcp.example.com/mcp", false),
        ("files", false),
        ("https://Me@example.org", false),
        ("https://mcp.example.co\u{212a}/mcp", false),
        ("", false),
    ] {
        let mut claims = claims("alice");
        claims["aud"] = json!(["other", audience]);
        let response = instance.send(&call(&signer.token(&claims))).await;
        let expected = if accepted { 200 } else { 401 };
        assert_eq!(response.status, expected, "{audience}");
        if !accepted {
            assert_rejected(&response, "the token is not for this server");
        }
    }
}

#[tokio::test]
async fn caller_expires_with_its_token() {
    let signer = Signer::ed25519("1");
    let (_directory, path) = file(&jwks(&[&signer]));
    let verifier = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::File(path));
    let verifier = verifier.leeway(Duration::from_secs(10)).build();
    let verifier = verifier.expect("a valid verifier");
    let expires = async |exp: Value| {
        let mut claims = claims("alice");
        claims["exp"] = exp;
        let bearer = format!("Bearer {}", signer.token(&claims));
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, bearer.parse().expect("a header"));
        let caller = verifier.authenticate(&headers).await;
        let expires = caller.expect("a valid token").expires;
        expires.map(|end| end.duration_since(UNIX_EPOCH).expect("a time after 1970"))
    };
    let soon = now() as u64 + 60;
    // The leeway is included.
    let end = Duration::from_secs(soon + 10);
    assert_eq!(expires(json!(soon)).await, Some(end));
    let half = Duration::from_millis(500);
    let fraction = json!(soon as f64 + 0.5);
    assert_eq!(expires(fraction).await, Some(end + half));
    assert_eq!(expires(json!(u64::MAX)).await, None);
    assert_eq!(expires(json!(1e19)).await, None);
}

#[tokio::test]
async fn scopes_are_parsed_in_every_form() {
    let signer = Signer::ed25519("1");
    let instance = instance(&[&signer]).await;
    let status = async |claim: &str, value: Value| {
        let mut claims = claims("alice");
        claims[claim] = value;
        let request = Request::tool("write", json!({}));
        let bearer = format!("Bearer {}", signer.token(&claims));
        instance
            .send(&request.header("Authorization", &bearer))
            .await
            .status
    };
    for value in [json!("files:write"), json!("openid files:write")] {
        assert_eq!(status("scope", value.clone()).await, 200);
        assert_eq!(status("scp", value).await, 200);
    }
    for value in [
        json!(["openid", "files:write"]),
        json!(["openid files:write"]),
    ] {
        assert_eq!(status("scope", value.clone()).await, 200);
        assert_eq!(status("scp", value).await, 200);
    }
    for value in [
        json!(""),
        json!("files:writer files"),
        json!("FILES:WRITE"),
        json!([]),
        Value::Null,
    ] {
        assert_eq!(status("scope", value.clone()).await, 403);
        assert_eq!(status("scp", value).await, 403);
    }
    assert_eq!(status("other", json!("files:write")).await, 403);
}

#[tokio::test]
async fn flow_is_bound_to_issuer_and_subject() {
    let signer = Signer::ed25519("1");
    let (_directory, path) = file(&jwks(&[&signer]));
    let keys = keys();
    let build = async |issuer: &str| {
        let verifier = JwtVerifier::builder(issuer, AUDIENCE, Jwks::File(path.clone()));
        let verifier = verifier.build().expect("a valid verifier");
        start(server().keys(keys.clone()).authenticator(verifier)).await
    };
    let (ours, theirs) = (
        build(ISSUER).await,
        build("https://other.example.com").await,
    );
    let alice = signer.token(&claims("alice"));
    let state = token(&ours.send(&call(&alice)).await.reply());

    let bob = signer.token(&claims("bob"));
    let stolen = ours.send(&call(&bob).again(&state, login("x"))).await;
    stolen.error(200, -32602);
    let nonsense = ours.send(&call(&bob).again("nonsense", login("x"))).await;
    assert_eq!(stolen.json(), nonsense.json());

    let mut other = claims("alice");
    other["iss"] = json!("https://other.example.com");
    let namesake = signer.token(&other);
    assert_eq!(
        principal(&theirs, &namesake).await,
        "https://other.example.com#alice"
    );
    let request = call(&namesake).again(&state, login("x"));
    theirs.send(&request).await.error(200, -32602);

    // A refreshed token with other times and another id continues the flow.
    let mut refreshed = claims("alice");
    refreshed["exp"] = json!(now() + 3600);
    refreshed["jti"] = json!("another");
    let refreshed = signer.token(&refreshed);
    assert_ne!(refreshed, alice);
    let done = ours.send(&call(&refreshed).again(&state, login("x"))).await;
    assert_eq!(text(&done.reply()), "x is https://login.example.com#alice");
}
