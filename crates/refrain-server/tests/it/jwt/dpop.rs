//! Access tokens that are bound to a key (DPoP).

use super::{assert_rejected, call, instance_with, server};
use crate::support::issuer::{AUDIENCE, ISSUER, Signer, claims, decode, encode, jwks, now};
use crate::support::{Instance, Request, start};
use aws_lc_rs::digest::{SHA256, digest};
use refrain_server::{Jwks, JwtVerifier, JwtVerifierError, ResourceMetadata};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

const ALGS: &str = "ES256 ES384 EdDSA PS256 PS384 PS512 RS256 RS384 RS512";

/// The public key of a client, without further members.
fn public(key: &Signer) -> Value {
    let mut jwk = key.jwk();
    let members = jwk.as_object_mut().expect("an object");
    members.remove("kid");
    members.remove("use");
    jwk
}

/// The thumbprint of RFC 7638.
fn thumbprint(key: &Signer) -> String {
    let jwk = public(key);
    let text = match jwk["kty"].as_str() {
        Some("EC") => format!(
            r#"{{"crv":{},"kty":"EC","x":{},"y":{}}}"#,
            jwk["crv"], jwk["x"], jwk["y"]
        ),
        Some("OKP") => format!(r#"{{"crv":{},"kty":"OKP","x":{}}}"#, jwk["crv"], jwk["x"]),
        _ => format!(r#"{{"e":{},"kty":"RSA","n":{}}}"#, jwk["e"], jwk["n"]),
    };
    encode(digest(&SHA256, text.as_bytes()))
}

/// A token that is bound to this key.
fn bound(issuer: &Signer, key: &Signer) -> String {
    let mut claims = claims("alice");
    claims["cnf"] = json!({"jkt": thumbprint(key)});
    issuer.token(&claims)
}

/// The header and the claims of a valid proof.
fn proof(key: &Signer, algorithm: &str, token: &str) -> (Value, Value) {
    static JTI: AtomicUsize = AtomicUsize::new(0);
    let header = json!({"typ": "dpop+jwt", "alg": algorithm, "jwk": public(key)});
    let claims = json!({
        "jti": format!("{}", JTI.fetch_add(1, Ordering::Relaxed)),
        "htm": "POST", "htu": AUDIENCE, "iat": now(),
        "ath": encode(digest(&SHA256, token.as_bytes())),
    });
    (header, claims)
}

fn with_proof(token: &str, proof: &str) -> Request {
    call(token)
        .header("Authorization", &format!("DPoP {token}"))
        .header("DPoP", proof)
}

/// A call with this token and a valid proof of this key.
fn proven(key: &Signer, token: &str) -> Request {
    let (header, claims) = proof(key, "ES256", token);
    with_proof(token, &key.token_with(&header, &claims))
}

async fn accepting(issuer: &Signer) -> Instance {
    instance_with(&jwks(&[issuer]), |verifier| verifier).await
}

/// Asserts that the proof is rejected with this reason.
async fn assert_proof_rejected(instance: &Instance, request: &Request, reason: &str) {
    let response = instance.send(request).await;
    assert_eq!(response.error(401, -32600), reason);
    let challenge = format!(
        "DPoP algs=\"{ALGS}\", error=\"invalid_dpop_proof\", error_description=\"{}\"",
        reason.replace('"', "'")
    );
    assert_eq!(
        response.header("www-authenticate"),
        Some(challenge.as_str())
    );
}

#[tokio::test]
async fn bound_token_is_accepted_with_a_proof_of_every_algorithm() {
    let issuer = Signer::ed25519("1");
    let instance = accepting(&issuer).await;
    for (key, algorithms) in [
        (Signer::p256(""), &["ES256"][..]),
        (Signer::p384(""), &["ES384"]),
        (Signer::ed25519(""), &["EdDSA"]),
        (Signer::rsa(""), &["RS256", "PS512"]),
    ] {
        let token = bound(&issuer, &key);
        for algorithm in algorithms {
            let (header, claims) = proof(&key, algorithm, &token);
            let request = with_proof(&token, &key.token_with(&header, &claims));
            instance.send(&request).await.reply();
        }
    }
}

#[tokio::test]
async fn invalid_proof_is_rejected() {
    let (issuer, key, other) = (Signer::ed25519("1"), Signer::p256(""), Signer::p256(""));
    let instance = accepting(&issuer).await;
    let token = bound(&issuer, &key);
    let mut private = public(&key);
    private["d"] = json!("AA");
    let wrong_key = "the DPoP proof has no usable public key in `jwk`";
    let malformed = "malformed DPoP proof";
    let wrong_type = "the DPoP proof has the wrong `typ`, or a `crit` member";
    for (part, member, value, reason) in [
        (0, "typ", json!("JWT"), wrong_type),
        (0, "typ", Value::Null, wrong_type),
        (0, "crit", json!(["b64"]), wrong_type),
        (
            0,
            "alg",
            json!("HS256"),
            "the DPoP proof has an unsupported `alg`",
        ),
        (
            0,
            "alg",
            json!("none"),
            "the DPoP proof has an unsupported `alg`",
        ),
        (0, "alg", json!("ES384"), wrong_key),
        (0, "jwk", Value::Null, wrong_key),
        (0, "jwk", json!({"kty": "oct", "k": "AAAA"}), wrong_key),
        (0, "jwk", private, wrong_key),
        (
            0,
            "jwk",
            public(&other),
            "the signature of the DPoP proof is invalid",
        ),
        (1, "jti", Value::Null, malformed),
        (1, "jti", json!(""), malformed),
        (1, "jti", json!("x".repeat(2000)), malformed),
        (
            1,
            "htm",
            json!("GET"),
            "the DPoP proof is for another HTTP method",
        ),
        (
            1,
            "htm",
            json!("post"),
            "the DPoP proof is for another HTTP method",
        ),
        (
            1,
            "htu",
            json!("https://evil.example/mcp"),
            "the DPoP proof is for another URL",
        ),
        (
            1,
            "htu",
            json!("https://mcp.example.com/"),
            "the DPoP proof is for another URL",
        ),
        (1, "htu", json!("/mcp"), "the DPoP proof is for another URL"),
        (
            1,
            "iat",
            json!(now() - 120),
            "the DPoP proof has expired or is not valid yet",
        ),
        (
            1,
            "iat",
            json!(now() + 60),
            "the DPoP proof has expired or is not valid yet",
        ),
        (1, "iat", json!("now"), malformed),
        (1, "iat", Value::Null, malformed),
        (
            1,
            "ath",
            json!(encode(digest(&SHA256, b"other"))),
            "the DPoP proof is for another access token",
        ),
        (1, "ath", Value::Null, malformed),
    ] {
        let mut parts = proof(&key, "ES256", &token);
        let changed = if part == 0 {
            &mut parts.0
        } else {
            &mut parts.1
        };
        changed[member] = value.clone();
        let request = with_proof(&token, &key.token_with(&parts.0, &parts.1));
        let response = instance.send(&request).await;
        assert_eq!(response.error(401, -32600), reason, "{member}: {value}");
    }
    // A query and a fragment in `htu` are ignored.
    let (header, mut claims) = proof(&key, "ES256", &token);
    claims["htu"] = json!(format!("{AUDIENCE}?a=b#c"));
    let request = with_proof(&token, &key.token_with(&header, &claims));
    instance.send(&request).await.reply();
}

#[tokio::test]
async fn missing_or_repeated_proof_is_rejected() {
    let (issuer, key) = (Signer::ed25519("1"), Signer::p256(""));
    let instance = accepting(&issuer).await;
    let token = bound(&issuer, &key);
    let one = proven(&key, &token);
    let missing = "missing or repeated DPoP header";
    assert_proof_rejected(&instance, &one.clone().without_header("DPoP"), missing).await;
    assert_proof_rejected(&instance, &one.clone().second_header("DPoP", "x"), missing).await;
    let no_jwt = one.header("DPoP", "x");
    assert_proof_rejected(&instance, &no_jwt, "malformed DPoP proof").await;
}

#[tokio::test]
async fn proof_is_accepted_once() {
    let (issuer, key) = (Signer::ed25519("1"), Signer::p256(""));
    let instance = accepting(&issuer).await;
    let token = bound(&issuer, &key);
    let (header, claims) = proof(&key, "ES256", &token);
    let request = with_proof(&token, &key.token_with(&header, &claims));
    instance.send(&request).await.reply();
    let replayed = "the DPoP proof was used before";
    assert_proof_rejected(&instance, &request, replayed).await;
    // Another signature of the same claims is the same proof.
    let request = with_proof(&token, &key.token_with(&header, &claims));
    assert_proof_rejected(&instance, &request, replayed).await;
}

#[tokio::test]
async fn proof_of_another_key_is_rejected() {
    let (issuer, key, thief) = (Signer::ed25519("1"), Signer::p256(""), Signer::p256(""));
    let instance = accepting(&issuer).await;
    let token = bound(&issuer, &key);
    let request = proven(&thief, &token);
    let reason = "the access token is bound to another key";
    assert_proof_rejected(&instance, &request, reason).await;
}

#[tokio::test]
async fn bound_token_is_rejected_as_a_bearer_token() {
    let (issuer, key) = (Signer::ed25519("1"), Signer::p256(""));
    let instance = accepting(&issuer).await;
    let token = bound(&issuer, &key);
    let (header, claims) = proof(&key, "ES256", &token);
    let reason = "the token is bound to a key: send it with the scheme DPoP and a proof";
    assert_rejected(&instance.send(&call(&token)).await, reason);
    let unused = call(&token).header("DPoP", &key.token_with(&header, &claims));
    assert_rejected(&instance.send(&unused).await, reason);
    // An unbound token is a bearer token, with the scheme Bearer only.
    let unbound = issuer.token(&super::claims("alice"));
    instance.send(&call(&unbound)).await.reply();
    let request = proven(&key, &unbound);
    assert_rejected(
        &instance.send(&request).await,
        "the token is not bound to a key (DPoP)",
    );
}

#[tokio::test]
async fn required_dpop_is_announced() {
    let (issuer, key) = (Signer::ed25519("1"), Signer::p256(""));
    let (_directory, path) = super::file(&jwks(&[&issuer]));
    let verifier = |audience: &str| {
        JwtVerifier::builder(ISSUER, audience, Jwks::File(path.clone())).require_dpop()
    };
    let authenticator = verifier(AUDIENCE).build().expect("a valid verifier");
    let metadata = ResourceMetadata::new(AUDIENCE, [ISSUER]);
    let builder = server()
        .authenticator(authenticator)
        .resource_metadata(metadata);
    let instance = start(builder.scopes(["files:read"])).await;
    let missing = instance
        .send(&call("x").without_header("Authorization"))
        .await;
    assert_eq!(missing.status, 401);
    let url = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp";
    let expected =
        format!("DPoP algs=\"{ALGS}\", scope=\"files:read\", resource_metadata=\"{url}\"");
    assert_eq!(missing.header("www-authenticate"), Some(expected.as_str()));
    let unbound = instance.send(&call(&issuer.token(&claims("alice")))).await;
    let reason = unbound.error(401, -32600);
    assert_eq!(reason, "the token is not bound to a key (DPoP)");
    let challenge = unbound.header("www-authenticate").expect("a challenge");
    assert!(challenge.starts_with("DPoP ") && challenge.contains("error=\"invalid_token\""));
    let request = proven(&key, &bound(&issuer, &key));
    let forbidden = instance.send(&request).await;
    let challenge = forbidden.header("www-authenticate").expect("a challenge");
    assert!(challenge.starts_with("DPoP ") && challenge.contains("insufficient_scope"));

    let page = instance.get("/.well-known/oauth-protected-resource").await;
    let page: Value = serde_json::from_slice(&page.body).expect("JSON");
    assert_eq!(page["dpop_bound_access_tokens_required"], true);
    let algorithms: Vec<&str> = ALGS.split(' ').collect();
    assert_eq!(page["dpop_signing_alg_values_supported"], json!(algorithms));

    // The URL in proofs must be known.
    let error = verifier("api://files").build().expect_err("no URL");
    assert!(
        matches!(error, JwtVerifierError::Resource { .. }),
        "{error}"
    );
    verifier("api://files")
        .resource(AUDIENCE)
        .build()
        .expect("a URL");
    assert_eq!(decode(&thumbprint(&key)).len(), 32);
}
