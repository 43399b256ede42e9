//! Access tokens: accepted and rejected tokens, and the resulting caller.

mod claims;
mod dpop;

use crate::support::issuer::{AUDIENCE, ISSUER, Signer, claims, decode, encode, jwks, now};
use crate::support::watch::{LoggedEvent, watch};
use crate::support::{Instance, Request, Response, login, start, text, whoami};
use aws_lc_rs::hmac;
use refrain_server::{
    Jwks, JwtVerifier, JwtVerifierBuilder, JwtVerifierError, ResourceMetadata, Server,
    ServerBuilder, Tool,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tracing::level_filters::LevelFilter;

fn server() -> ServerBuilder {
    Server::builder("jwt", "1")
        .tool(Tool::new("whoami", whoami))
        .tool(Tool::new("write", whoami).scopes(["files:write"]))
}

/// A file with these keys, deleted with its directory.
fn file(keys: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("jwks.json");
    std::fs::write(&path, keys).expect("a file");
    (directory, path)
}

/// An instance that accepts these keys.
async fn instance_with(
    keys: &str,
    configure: impl Fn(JwtVerifierBuilder) -> JwtVerifierBuilder,
) -> Instance {
    let (_directory, path) = file(keys);
    let verifier = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::File(path));
    let verifier = configure(verifier).build().expect("a valid verifier");
    start(server().authenticator(verifier)).await
}

async fn instance(signers: &[&Signer]) -> Instance {
    instance_with(&jwks(signers), |verifier| verifier).await
}

fn call(bearer: &str) -> Request {
    Request::tool("whoami", json!({})).bearer(bearer)
}

/// The principal of a token.
async fn principal(instance: &Instance, bearer: &str) -> String {
    let request = call(bearer).param("inputResponses", login("x"));
    let reply = instance.send(&request).await.reply();
    let name = text(&reply).strip_prefix("x is ");
    name.expect("a name").to_owned()
}

/// Asserts that a token is rejected with this reason.
#[track_caller]
fn assert_rejected(response: &Response, reason: &str) {
    assert_eq!(response.error(401, -32600), reason);
    let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{reason}\"");
    assert_eq!(
        response.header("www-authenticate"),
        Some(challenge.as_str())
    );
}

const UNVERIFIED: &str = "the token cannot be verified";

#[tokio::test]
async fn tokens_of_every_algorithm_are_accepted() {
    let signers = [
        (
            Signer::rsa("r"),
            &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"][..],
        ),
        (Signer::p256("e"), &["ES256"]),
        (Signer::p384("f"), &["ES384"]),
        (Signer::ed25519("o"), &["EdDSA"]),
    ];
    let all: Vec<&Signer> = signers.iter().map(|(signer, _)| signer).collect();
    let instance = instance(&all).await;
    for (signer, algorithms) in &signers {
        for algorithm in *algorithms {
            let header = json!({"alg": algorithm, "kid": signer.jwk()["kid"], "typ": "at+jwt"});
            let token = signer.token_with(&header, &claims("alice"));
            let id = principal(&instance, &token).await;
            assert_eq!(id, "https://login.example.com#alice", "{algorithm}");
        }
    }
}

#[tokio::test]
async fn token_with_invalid_or_missing_claims_is_rejected() {
    let signer = Signer::ed25519("1");
    let instance = instance(&[&signer]).await;
    let other_issuer = "the token is from another issuer";
    let other_audience = "the token is not for this server";
    for (claim, value, reason) in [
        ("iss", json!("https://evil.example.com"), other_issuer),
        ("iss", json!("https://login.example.com/"), other_issuer),
        ("iss", Value::Null, UNVERIFIED),
        ("iss", json!([ISSUER]), UNVERIFIED),
        ("aud", json!("https://mcp.example.com/"), other_audience),
        (
            "aud",
            json!(["https://other.example.com", "refrain"]),
            other_audience,
        ),
        ("aud", json!([]), other_audience),
        ("aud", json!(5), UNVERIFIED),
        ("exp", json!(now() - 31), "the token has expired"),
        ("exp", json!(-1e300), UNVERIFIED),
        ("exp", json!("tomorrow"), UNVERIFIED),
        ("exp", Value::Null, UNVERIFIED),
        ("nbf", json!(now() + 60), "the token is not valid yet"),
        ("nbf", json!("now"), UNVERIFIED),
        ("nbf", Value::Null, UNVERIFIED),
        ("sub", json!(""), "the token has no `sub` claim"),
        ("sub", Value::Null, "the token has no `sub` claim"),
        ("sub", json!(7), UNVERIFIED),
        ("scope", json!({"files": "write"}), UNVERIFIED),
        ("scp", json!([["files:write"]]), UNVERIFIED),
    ] {
        let mut claims = claims("alice");
        claims[claim] = value.clone();
        let response = instance.send(&call(&signer.token(&claims))).await;
        assert_eq!(response.status, 401, "{claim}: {value}");
        assert_rejected(&response, reason);
    }
    for (absent, reason) in [
        ("iss", UNVERIFIED),
        ("aud", other_audience),
        ("exp", UNVERIFIED),
        ("sub", "the token has no `sub` claim"),
    ] {
        let mut claims = claims("alice");
        claims.as_object_mut().expect("claims").remove(absent);
        let response = instance.send(&call(&signer.token(&claims))).await;
        assert_rejected(&response, reason);
    }
    for (claim, value) in [
        ("aud", json!(["https://other.example.com", AUDIENCE])),
        ("exp", json!(now() as f64 + 60.5)),
        // Within the leeway.
        ("exp", json!(now() - 5)),
        ("nbf", json!(now() + 5)),
    ] {
        let mut claims = claims("alice");
        claims[claim] = value;
        principal(&instance, &signer.token(&claims)).await;
    }
}

#[tokio::test]
async fn leeway_and_further_audiences_are_configurable() {
    let signer = Signer::ed25519("1");
    let keys = jwks(&[&signer]);
    let strict = instance_with(&keys, |verifier| {
        verifier.leeway(Duration::ZERO).audience("api://refrain")
    });
    let strict = strict.await;
    let mut old = claims("alice");
    old["exp"] = json!(now());
    let response = strict.send(&call(&signer.token(&old))).await;
    assert_rejected(&response, "the token has expired");
    for audience in [AUDIENCE, "api://refrain"] {
        let mut claims = claims("alice");
        claims["aud"] = json!(audience);
        principal(&strict, &signer.token(&claims)).await;
    }
}

#[tokio::test]
async fn signature_must_match_the_named_key() {
    let (known, other_known) = (Signer::p256("known"), Signer::p256("known"));
    let (rsa, other) = (Signer::rsa("rsa"), Signer::p256("other"));
    let instance = instance(&[&known, &rsa, &other]).await;
    let good = known.token(&claims("alice"));
    principal(&instance, &good).await;
    let (message, signature) = good.rsplit_once('.').expect("three parts");
    let (header, _) = message.split_once('.').expect("three parts");
    let forged = encode(claims("root").to_string());
    let key = |kid: &str, alg: &str| json!({"alg": alg, "kid": kid});
    for (what, bad) in [
        ("wrong key", other_known.token(&claims("alice"))),
        ("other claims", format!("{header}.{forged}.{signature}")),
        ("no signature", format!("{message}.")),
        ("short signature", format!("{message}.{}", &signature[..40])),
        (
            "unknown kid",
            known.token_with(&key("unknown", "ES256"), &claims("alice")),
        ),
        (
            "kid of another",
            known.token_with(&key("other", "ES256"), &claims("alice")),
        ),
        (
            "kid of another kind",
            known.token_with(&key("rsa", "ES256"), &claims("alice")),
        ),
        (
            "other algorithm",
            known.token_with(&key("known", "RS256"), &claims("alice")),
        ),
        (
            "other curve",
            known.token_with(&key("known", "ES384"), &claims("alice")),
        ),
        (
            "not accepted",
            known.token_with(&key("known", "ES256K"), &claims("alice")),
        ),
    ] {
        let response = instance.send(&call(&bad)).await;
        assert_eq!(response.status, 401, "{what}");
        assert_rejected(&response, UNVERIFIED);
    }
}

/// Classic attacks: no signature, and an HMAC with the public key as its secret.
#[tokio::test]
async fn unsigned_and_hmac_tokens_are_rejected() {
    let (rsa, ed25519) = (Signer::rsa("r"), Signer::ed25519("o"));
    let set = jwks(&[&rsa, &ed25519]);
    let secret = json!({"kty": "oct", "kid": "h", "alg": "HS256", "k": encode([7; 32])});
    let mut keys: Value = serde_json::from_str(&set).expect("JSON");
    keys["keys"].as_array_mut().expect("keys").push(secret);
    let instance = instance_with(&keys.to_string(), |verifier| verifier).await;
    let payload = encode(claims("root").to_string());
    for algorithm in ["none", "None", "NONE", ""] {
        for kid in ["r", "o", "h"] {
            let header = encode(json!({"alg": algorithm, "kid": kid}).to_string());
            for signature in ["", "AAAA"] {
                let token = format!("{header}.{payload}.{signature}");
                let response = instance.send(&call(&token)).await;
                assert_rejected(&response, UNVERIFIED);
            }
        }
    }
    let modulus = rsa.jwk()["n"].as_str().expect("a modulus").to_owned();
    let point = ed25519.jwk()["x"].as_str().expect("a point").to_owned();
    for (kid, key) in [
        ("r", decode(&modulus)),
        ("r", modulus.into_bytes()),
        ("r", rsa.jwk().to_string().into_bytes()),
        ("o", decode(&point)),
        ("h", vec![7; 32]),
    ] {
        for (name, algorithm) in [("HS256", hmac::HMAC_SHA256), ("HS512", hmac::HMAC_SHA512)] {
            let header = encode(json!({"alg": name, "kid": kid}).to_string());
            let message = format!("{header}.{payload}");
            let tag = hmac::sign(&hmac::Key::new(algorithm, &key), message.as_bytes());
            let token = format!("{message}.{}", encode(tag));
            let response = instance.send(&call(&token)).await;
            assert_rejected(&response, UNVERIFIED);
        }
    }
}

#[tokio::test]
async fn malformed_token_is_rejected() {
    let signer = Signer::ed25519("1");
    let instance = instance(&[&signer]).await;
    let good = signer.token(&claims("alice"));
    let header = |header: Value| signer.token_with(&header, &claims("alice"));
    let garbage = [
        "x".to_owned(),
        "..".into(),
        "a.b.c".into(),
        format!("{good}.{good}"),
        format!("{good}="),
        good.replace('.', "/"),
        format!("{}.{good}", encode("{}")),
        format!("{}.{}.", encode("[]"), encode("{}")),
        format!("{}.{}.AA", encode(r#"{"alg":"EdDSA""#), encode("{}")),
        format!("{}.{}.AA", encode([0xff, 0xfe]), encode("{}")),
        format!("{good}{}", "A".repeat(17 * 1024)),
        header(json!({"alg": "EdDSA", "kid": 1})),
        header(json!({"alg": "EdDSA", "kid": "1", "crit": ["b64"], "b64": false})),
        header(json!({"alg": "EdDSA", "kid": "1", "typ": "logout+jwt"})),
        header(json!({"kid": "1"})),
        signer.token(&json!([])),
        signer.token(&json!("alice")),
    ];
    for bad in garbage {
        let response = instance.send(&call(&bad)).await;
        assert_eq!(response.status, 401, "{bad}");
        assert_rejected(&response, UNVERIFIED);
    }
    principal(&instance, &good).await;
}

#[tokio::test]
async fn token_cannot_forge_a_log_line() {
    let signer = Signer::ed25519("1");
    let instance = instance(&[&signer]).await;
    let (recorder, _guard) = watch(LevelFilter::DEBUG);
    let forged = "x\n2026-01-01T00:00:00Z ERROR all is lost\r\u{1b}[2J";
    let mut bad = claims("alice");
    bad["nbf"] = json!(forged);
    for token in [
        signer.token_with(&json!({"alg": forged, "kid": "1"}), &claims("alice")),
        signer.token_with(&json!({"alg": "EdDSA", "kid": forged}), &claims("alice")),
        signer.token_with(&json!({"alg": "EdDSA", "typ": forged}), &claims("alice")),
        signer.token(&json!({forged: forged})),
        signer.token(&bad),
        signer.token(&json!(forged)),
    ] {
        instance.send(&call(&token)).await.error(401, -32600);
        let recording = recorder.take();
        let is_rejection = |event: &&LoggedEvent| event.text == "access token rejected";
        let event = recording.events.iter().find(is_rejection);
        let error = &event.expect("a logged rejection").fields["error"];
        assert!(!error.contains(char::is_control), "{error}");
    }
}

#[tokio::test]
async fn key_is_used_for_its_published_purpose_only() {
    let signer = Signer::rsa("r");
    let is_rejected = async |member: &str, value: Value, algorithm: &str| {
        let mut jwk = signer.jwk();
        jwk[member] = value;
        // Another key, because a set without usable keys is rejected.
        let keys = json!({"keys": [jwk, Signer::p256("e").jwk(), {"kty": "new"}, 5]});
        let instance = instance_with(&keys.to_string(), |verifier| verifier).await;
        let header = json!({"alg": algorithm, "kid": "r"});
        let token = signer.token_with(&header, &claims("alice"));
        instance.send(&call(&token)).await.status == 401
    };
    for (member, value, algorithm) in [
        ("alg", json!("RS256"), "PS256"),
        ("alg", json!("RS256"), "RS512"),
        ("alg", json!("RSA-OAEP"), "RS256"),
        ("alg", json!("ES256"), "RS256"),
        ("alg", json!("HS256"), "RS256"),
        ("use", json!("enc"), "RS256"),
        ("key_ops", json!(["encrypt"]), "RS256"),
        ("kty", json!("EC"), "RS256"),
        ("kid", json!(null), "RS256"),
        ("n", json!("AAAA"), "RS256"),
        ("n", json!("not base64url!"), "RS256"),
    ] {
        let case = format!("{member} = {value}, {algorithm}");
        assert!(is_rejected(member, value, algorithm).await, "{case}");
    }
    for (member, value, algorithm) in [
        ("alg", json!("RS512"), "RS512"),
        ("key_ops", json!(["verify"]), "RS256"),
        ("x5t", json!("whatever"), "PS384"),
        // Some servers send a leading zero.
        ("n", json!(encode(padded(&signer))), "RS256"),
    ] {
        let case = format!("{member} = {value}, {algorithm}");
        assert!(!is_rejected(member, value, algorithm).await, "{case}");
    }
}

fn padded(signer: &Signer) -> Vec<u8> {
    let jwk = signer.jwk();
    [vec![0], decode(jwk["n"].as_str().expect("a modulus"))].concat()
}

#[tokio::test]
async fn token_without_key_id_uses_the_only_matching_key() {
    let (one, two) = (Signer::p256("1"), Signer::p256("2"));
    let ed25519 = Signer::ed25519("3");
    let unnamed =
        |signer: &Signer, alg: &str| signer.token_with(&json!({"alg": alg}), &claims("alice"));
    let alone = instance(&[&one, &ed25519]).await;
    principal(&alone, &unnamed(&one, "ES256")).await;
    principal(&alone, &unnamed(&ed25519, "EdDSA")).await;
    let several = instance(&[&one, &two, &ed25519]).await;
    for signer in [&one, &two] {
        let response = several.send(&call(&unnamed(signer, "ES256"))).await;
        assert_rejected(&response, UNVERIFIED);
    }
    principal(&several, &unnamed(&ed25519, "EdDSA")).await;
    // Two keys with the same id are ambiguous.
    let twins = instance(&[&Signer::p256("1"), &one]).await;
    let response = twins.send(&call(&one.token(&claims("alice")))).await;
    assert_rejected(&response, UNVERIFIED);
}

#[tokio::test]
async fn challenge_names_the_resource_metadata() {
    let signer = Signer::ed25519("1");
    let (_directory, path) = file(&jwks(&[&signer]));
    let verifier = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::File(path));
    let builder = server()
        .authenticator(verifier.build().expect("a valid verifier"))
        .scopes(["use"])
        .resource_metadata(ResourceMetadata::new(AUDIENCE, [ISSUER]));
    let instance = start(builder).await;
    let parameters = "scope=\"use\", resource_metadata=\
                 \"https://mcp.example.com/.well-known/oauth-protected-resource/mcp\"";
    let plain = Request::tool("whoami", json!({}));
    let missing = instance.send(&plain).await;
    missing.error(401, -32600);
    let challenge = missing.header("www-authenticate");
    assert_eq!(challenge, Some(format!("Bearer {parameters}").as_str()));
    let mut old = claims("alice");
    old["exp"] = json!(5);
    let expired = instance.send(&call(&signer.token(&old))).await;
    expired.error(401, -32600);
    let challenge = expired.header("www-authenticate");
    let expected = format!(
        "Bearer error=\"invalid_token\", {parameters}, error_description=\"the token has expired\""
    );
    assert_eq!(challenge, Some(expected.as_str()));
    for value in ["Bearer", "Bearer  "] {
        let empty = plain.clone().header("Authorization", value);
        instance.send(&empty).await.error(400, -32600);
    }
}

#[test]
fn invalid_verifier_settings_are_rejected() {
    let (_directory, path) = file(&jwks(&[&Signer::ed25519("1")]));
    let jwks = || Jwks::File(path.clone());
    for issuer in ["", "https://login.example.com#x", "a b"] {
        let error = JwtVerifier::builder(issuer, AUDIENCE, jwks()).build();
        assert!(matches!(error, Err(JwtVerifierError::Issuer { .. })));
    }
    let error = JwtVerifier::builder(ISSUER, "", jwks()).build();
    assert!(matches!(error, Err(JwtVerifierError::Audience)));
    let error = JwtVerifier::builder(ISSUER, AUDIENCE, jwks()).audience("");
    assert!(matches!(error.build(), Err(JwtVerifierError::Audience)));
    for url in [
        "http://login.example.com/jwks",
        "ftp://127.0.0.1/jwks",
        "jwks",
        "https://user:hunter22@login.example.com/",
    ] {
        let built = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::Url(url.into())).build();
        assert!(matches!(built, Err(JwtVerifierError::Url { .. })), "{url}");
    }
    let secret = json!({"keys": [{"kty": "oct", "k": "AAAA"}]}).to_string();
    // One bit less than the minimum.
    let weak = [vec![0, 0x7f], vec![0xff; 255]].concat();
    let weak = json!({"keys": [{"kty": "RSA", "e": "AQAB", "n": encode(weak)}]}).to_string();
    let none = ["", "{}", "[]", r#"{"keys":{}}"#, r#"{"keys":[]}"#];
    let point = |member: &str, bytes: Vec<u8>| {
        let mut jwk = Signer::p256("1").jwk();
        jwk[member] = json!(encode(bytes));
        json!({"keys": [jwk]}).to_string()
    };
    let mut other_curve = Signer::p384("1").jwk();
    other_curve["crv"] = json!("P-256");
    let short = json!({"kty": "OKP", "crv": "Ed25519", "x": encode([7; 31])});
    let points = [
        point("x", vec![7; 31]),
        point("x", vec![7; 33]),
        point("y", vec![]),
        // Not on the curve.
        point("y", vec![7; 32]),
        json!({"keys": [other_curve, short]}).to_string(),
    ];
    let none = none.into_iter().chain([&*secret, &*weak]);
    for bad in none.chain(points.iter().map(String::as_str)) {
        let (_directory, path) = file(bad);
        let built = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::File(path.clone())).build();
        let error = built.expect_err("no usable keys").to_string();
        assert!(
            error.contains(&path.display().to_string()),
            "{bad}: {error}"
        );
    }
    let absent = PathBuf::from("/no/such/jwks.json");
    let built = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::File(absent)).build();
    let error = built.expect_err("no file").to_string();
    assert!(error.contains("/no/such/jwks.json"), "{error}");
}

#[test]
fn debug_output_shows_issuer_and_audiences() {
    let signer = Signer::ed25519("1");
    let (_directory, path) = file(&jwks(&[&signer]));
    let verifier = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::File(path)).build();
    let case = format!("{:?}", verifier.expect("a valid verifier"));
    assert!(case.contains(ISSUER) && case.contains(AUDIENCE), "{case}");
}
