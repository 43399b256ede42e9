//! Authentication: bearer tokens, custom authenticators, and flows bound to their principal.

use crate::support::{Instance, Request, keys, login, start, text, token, whoami};
use refrain_core::Principal;
use refrain_server::{
    AuthFuture, AuthRejection, Authenticator, BearerTokens, Server, ServerBuilder, Tool,
};
use serde_json::json;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

fn builder() -> ServerBuilder {
    Server::builder("auth", "1").tool(Tool::new("whoami", whoami))
}

async fn instance() -> Instance {
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    start(builder().authenticator(tokens)).await
}

fn call(bearer: &str) -> Request {
    Request::tool("whoami", json!({})).bearer(bearer)
}

#[tokio::test]
async fn request_without_bearer_token_is_rejected() {
    let instance = instance().await;
    let requests = [
        Request::tool("whoami", json!({})),
        Request::rpc("tools/list", json!({})),
        Request::bytes("not JSON"),
        Request::bytes(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#),
    ];
    for request in requests {
        let response = instance.send(&request).await;
        assert!(response.error(401, -32600).contains("Authorization"));
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
    // The health check needs no authentication.
    assert_eq!(instance.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn authentication_error_has_the_request_id() {
    let instance = instance().await;
    for (request, id) in [
        (
            Request::tool("whoami", json!({})).id(json!("a")),
            json!("a"),
        ),
        (Request::rpc("no/such", json!({})).id(json!(7)), json!(7)),
        (
            Request::bytes(r#"{"jsonrpc":"1.0","id":"b","method":"tools/list"}"#),
            json!("b"),
        ),
        (
            Request::bytes(r#"{"jsonrpc":"2.0","method":"x"}"#),
            json!(null),
        ),
        (Request::bytes("not JSON"), json!(null)),
    ] {
        let response = instance.send(&request).await;
        response.error(401, -32600);
        assert_eq!(response.json()["id"], id, "{request:?}");
    }
}

#[tokio::test]
async fn unknown_bearer_token_is_rejected() {
    const UNKNOWN: &str =
        r#"Bearer error="invalid_token", error_description="unknown bearer token""#;
    let empty = r#"Bearer error="invalid_request", error_description="invalid Authorization header: empty bearer token""#;
    let instance = instance().await;
    let nearly = &ALICE[..ALICE.len() - 1];
    for (value, status, expected) in [
        ("Bearer nonsense", 401, UNKNOWN),
        (&format!("Bearer {nearly}"), 401, UNKNOWN),
        (&format!("Bearer {ALICE}x"), 401, UNKNOWN),
        (&format!("Bearer {ALICE},{BOB}"), 401, UNKNOWN),
        ("Bearer ", 400, empty),
        ("Bearer", 400, empty),
        // Another scheme counts as missing credentials.
        (&format!("Basic {ALICE}"), 401, "Bearer"),
        (ALICE, 401, "Bearer"),
    ] {
        let request = Request::tool("whoami", json!({})).header("Authorization", value);
        let response = instance.send(&request).await;
        let message = response.error(status, -32600);
        assert!(!message.contains(nearly), "{message}");
        let challenge = response.header("www-authenticate");
        assert_eq!(challenge, Some(expected), "{value}");
    }
    let twice = call(ALICE).second_header("Authorization", &format!("Bearer {BOB}"));
    let response = instance.send(&twice).await;
    assert!(
        response
            .error(400, -32600)
            .contains("repeated authorization header")
    );
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let request = Request::tool("whoami", json!({}));
        let request = request.header("Authorization", &format!("{scheme} {ALICE}"));
        token(&instance.send(&request).await.reply());
    }
}

#[tokio::test]
async fn bearer_token_is_accepted_in_the_header_only() {
    let instance = instance().await;
    let path = concat!("/mcp?access_token=", "alice-0123456789abcdef");
    assert!(path.ends_with(ALICE));
    let plain = || Request::tool("whoami", json!({})).path(path);
    let rejected = instance.send(&plain()).await;
    assert!(rejected.error(401, -32600).contains("Authorization"));
    let body = plain().param("access_token", json!(ALICE));
    instance.send(&body).await.error(401, -32600);
    let both = plain().bearer(BOB);
    let answered = both.param("inputResponses", login("x"));
    assert_eq!(text(&instance.send(&answered).await.reply()), "x is bob");
}

#[tokio::test]
async fn flow_token_is_bound_to_its_principal() {
    let instance = instance().await;
    let alices = token(&instance.send(&call(ALICE)).await.reply());
    let stolen = instance.send(&call(BOB).again(&alices, login("x"))).await;
    stolen.error(200, -32602);
    // The same error as for any invalid token.
    let nonsense = instance
        .send(&call(BOB).again("nonsense", login("x")))
        .await;
    assert_eq!(stolen.json(), nonsense.json());
    let reply = instance
        .send(&call(ALICE).again(&alices, login("x")))
        .await
        .reply();
    assert_eq!(text(&reply), "x is alice");
}

#[tokio::test]
async fn named_principal_differs_from_anonymous() {
    let keys = keys();
    let tokens = BearerTokens::new().with("", ALICE);
    let authenticating = start(builder().keys(keys.clone()).authenticator(tokens)).await;
    let open = start(builder().keys(keys)).await;
    let principal_token = token(&authenticating.send(&call(ALICE)).await.reply());
    open.send(&call(ALICE).again(&principal_token, login("x")))
        .await
        .error(200, -32602);
    let anonymous_token = token(&open.send(&call(ALICE)).await.reply());
    authenticating
        .send(&call(ALICE).again(&anonymous_token, login("x")))
        .await
        .error(200, -32602);
    let reply = open
        .send(&call(BOB).again(&anonymous_token, login("x")))
        .await
        .reply();
    assert_eq!(text(&reply), "x is anonymous");
}

#[tokio::test]
async fn custom_authenticator_is_used() {
    struct ByHeader;
    impl Authenticator for ByHeader {
        fn authenticate<'a>(&'a self, headers: &'a http::HeaderMap) -> AuthFuture<'a> {
            Box::pin(async move {
                tokio::task::yield_now().await;
                let user = headers.get("x-user").and_then(|user| user.to_str().ok());
                let caller = user.map(|user| Principal::new(user).into());
                caller.ok_or_else(|| AuthRejection::Challenged {
                    reason: "missing X-User header".into(),
                    challenge: "Custom realm=\"x\"".into(),
                })
            })
        }
    }
    let instance = start(builder().authenticator(ByHeader)).await;
    let plain = || Request::tool("whoami", json!({}));
    let rejected = instance.send(&plain()).await;
    assert_eq!(rejected.error(401, -32600), "missing X-User header");
    assert_eq!(
        rejected.header("www-authenticate"),
        Some("Custom realm=\"x\"")
    );
    let request = plain()
        .header("X-User", "carol")
        .param("inputResponses", login("x"));
    assert_eq!(text(&instance.send(&request).await.reply()), "x is carol");
}

#[test]
fn debug_output_contains_no_token() {
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let output = format!("{tokens:?} {tokens:#?}");
    assert!(output.contains("alice") && output.contains("bob"));
    assert!(!output.contains("0123456789abcdef"), "{output}");
}

#[test]
fn token_list_errors_name_the_line() {
    let text = format!("# callers\n\n  alice {ALICE}\nbob\t{BOB}  \n");
    let tokens = BearerTokens::parse(&text).expect("a valid list");
    assert_eq!(format!("{tokens:?}").matches("Principal").count(), 2);
    let scoped = BearerTokens::parse(&format!("alice {ALICE} a:b  c")).expect("a valid list");
    let same = BearerTokens::new().with_scopes("alice", ALICE, ["a:b", "c"]);
    assert_eq!(format!("{scoped:?}"), format!("{same:?}"));
    for (text, line, expected) in [
        (format!("alice {ALICE}\nbob\n"), 2, "PRINCIPAL ACCESS_TOKEN"),
        ("# comment\n\nalice short\n".into(), 3, "16 characters"),
        (String::new(), 1, "no caller; expected lines"),
        ("# alice\n".into(), 1, "no caller; expected lines"),
        (
            format!("alice {ALICE}\n#\nbob {ALICE}"),
            3,
            "duplicate token",
        ),
        (
            format!("alice {ALICE} read \"write\""),
            1,
            "printable ASCII",
        ),
        (format!("alice {ALICE} offline_access"), 1, "offline_access"),
    ] {
        let error = BearerTokens::parse(&text).expect_err("an invalid list");
        assert_eq!(error.line, line);
        let output = error.to_string();
        assert!(output.contains(expected), "{output}");
        // A list without a caller has no line to correct.
        let names_line = output.starts_with(&format!("line {line}: "));
        assert_eq!(names_line, !output.starts_with("no caller"), "{output}");
        assert!(!output.contains(ALICE), "{output}");
    }
}
