//! Who is calling: bearer tokens, and flows that belong to whoever began them.

use crate::support::{Instance, Request, start, text, token};
use refrain_core::{Cx, KeyRing, Principal, Result, SystemSource};
use refrain_server::{
    AuthFuture, AuthRejection, Authenticator, BearerTokens, Server, ServerBuilder, Tool,
};
use serde_json::{Value, json};

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

async fn whoami(cx: Cx) -> Result<String> {
    let login: crate::support::Login = cx.elicit("login", "Who?").await?;
    let id = cx.principal().id().unwrap_or("nobody");
    Ok(format!("{} is {id}", login.name))
}

fn builder() -> ServerBuilder {
    Server::builder("auth", "1").tool(Tool::new("whoami", whoami))
}

async fn instance() -> Instance {
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    start(builder().authenticator(tokens)).await
}

fn call(bearer: &str) -> Request {
    Request::tool("whoami", json!({})).header("Authorization", &format!("Bearer {bearer}"))
}

fn answers() -> Value {
    json!({"login": {"action": "accept", "content": {"name": "x"}}})
}

#[tokio::test]
async fn without_a_bearer_token_nothing_is_answered() {
    let instance = instance().await;
    let nothing = [
        Request::tool("whoami", json!({})),
        Request::rpc("tools/list", json!({})),
        Request::bytes("not JSON"),
        Request::bytes(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#),
    ];
    for request in nothing {
        let response = instance.send(&request).await;
        assert!(response.error(401, -32600).contains("Authorization"));
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
    // Whether it lives is no secret.
    assert_eq!(instance.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn the_refusal_has_the_id_of_the_request() {
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
async fn a_bearer_token_that_is_not_known_is_refused() {
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
        // Another scheme is no attempt at all.
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
    assert!(response.error(400, -32600).contains("more than once"));
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let request = Request::tool("whoami", json!({}));
        let request = request.header("Authorization", &format!("{scheme} {ALICE}"));
        token(&instance.send(&request).await.reply());
    }
}

#[tokio::test]
async fn a_bearer_token_counts_in_its_header_only() {
    let instance = instance().await;
    let path = concat!("/mcp?access_token=", "alice-0123456789abcdef");
    assert!(path.ends_with(ALICE));
    let plain = || Request::tool("whoami", json!({})).path(path);
    let refused = instance.send(&plain()).await;
    assert!(refused.error(401, -32600).contains("Authorization"));
    let body = plain().param("access_token", json!(ALICE));
    instance.send(&body).await.error(401, -32600);
    let both = plain().header("Authorization", &format!("Bearer {BOB}"));
    let answered = both.param("inputResponses", answers());
    assert_eq!(text(&instance.send(&answered).await.reply()), "x is bob");
}

#[tokio::test]
async fn a_flow_belongs_to_whoever_began_it() {
    let instance = instance().await;
    let alices = token(&instance.send(&call(ALICE)).await.reply());
    let stolen = instance.send(&call(BOB).again(&alices, answers())).await;
    stolen.error(200, -32602);
    // Bob is told what he would be told of any token that does not open.
    let nonsense = instance.send(&call(BOB).again("nonsense", answers())).await;
    assert_eq!(stolen.json(), nonsense.json());
    let reply = instance
        .send(&call(ALICE).again(&alices, answers()))
        .await
        .reply();
    assert_eq!(text(&reply), "x is alice");
}

#[tokio::test]
async fn a_named_principal_is_not_the_anonymous_one() {
    let keys = KeyRing::generate(&SystemSource::new());
    let tokens = BearerTokens::new().with("", ALICE);
    let named = start(builder().keys(keys.clone()).authenticator(tokens)).await;
    let open = start(builder().keys(keys)).await;
    let theirs = token(&named.send(&call(ALICE)).await.reply());
    open.send(&call(ALICE).again(&theirs, answers()))
        .await
        .error(200, -32602);
    let anyones = token(&open.send(&call(ALICE)).await.reply());
    named
        .send(&call(ALICE).again(&anyones, answers()))
        .await
        .error(200, -32602);
    let reply = open
        .send(&call(BOB).again(&anyones, answers()))
        .await
        .reply();
    assert_eq!(text(&reply), "x is nobody");
}

#[tokio::test]
async fn an_authenticator_of_ones_own_decides() {
    struct ByHeader;
    impl Authenticator for ByHeader {
        fn authenticate<'a>(&'a self, headers: &'a http::HeaderMap) -> AuthFuture<'a> {
            Box::pin(async move {
                tokio::task::yield_now().await;
                let user = headers.get("x-user").and_then(|user| user.to_str().ok());
                let caller = user.map(|user| Principal::new(user).into());
                caller.ok_or_else(|| AuthRejection::Challenged {
                    reason: "who are you?".into(),
                    challenge: "Custom realm=\"x\"".into(),
                })
            })
        }
    }
    let instance = start(builder().authenticator(ByHeader)).await;
    let plain = || Request::tool("whoami", json!({}));
    let refused = instance.send(&plain()).await;
    assert_eq!(refused.error(401, -32600), "who are you?");
    assert_eq!(
        refused.header("www-authenticate"),
        Some("Custom realm=\"x\"")
    );
    let request = plain()
        .header("X-User", "carol")
        .param("inputResponses", answers());
    assert_eq!(text(&instance.send(&request).await.reply()), "x is carol");
}

#[test]
fn no_secret_is_shown() {
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let shown = format!("{tokens:?} {tokens:#?}");
    assert!(shown.contains("alice") && shown.contains("bob"));
    assert!(!shown.contains("0123456789abcdef"), "{shown}");
}

#[test]
fn a_list_of_tokens_is_read_and_its_mistakes_are_located() {
    let text = format!("# callers\n\n  alice {ALICE}\nbob\t{BOB}  \n");
    let tokens = BearerTokens::parse(&text).expect("a good list");
    assert_eq!(format!("{tokens:?}").matches("Principal").count(), 2);
    let scoped = BearerTokens::parse(&format!("alice {ALICE} a:b  c")).expect("a good list");
    let same = BearerTokens::new().with_scopes("alice", ALICE, ["a:b", "c"]);
    assert_eq!(format!("{scoped:?}"), format!("{same:?}"));
    for (text, line, word) in [
        (format!("alice {ALICE}\nbob\n"), 2, "PRINCIPAL TOKEN"),
        ("# nobody\n\nalice short\n".into(), 3, "16 characters"),
        (format!("alice {ALICE}\n#\nbob {ALICE}"), 3, "twice"),
        (format!("alice {ALICE} read \"write\""), 1, "a scope is"),
        (format!("alice {ALICE} offline_access"), 1, "offline_access"),
    ] {
        let error = BearerTokens::parse(&text).expect_err("a bad list");
        assert_eq!(error.line, line);
        let shown = error.to_string();
        assert!(
            shown.contains(&format!("line {line}")) && shown.contains(word),
            "{shown}"
        );
        assert!(!shown.contains(ALICE), "{shown}");
    }
}
