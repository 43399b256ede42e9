//! Callers that a proxy vouches for.

use crate::support::{Instance, Request, start, text, token};
use refrain_core::{Cx, Result};
use refrain_server::{ResourceMetadata, Server, ServerBuilder, Tool, TrustedProxy};
use serde_json::json;

const SECRET: &str = "correct horse battery staple";

async fn whoami(cx: Cx) -> Result<String> {
    let login: crate::support::Login = cx.elicit("login", "Who?").await?;
    let id = cx.principal().id().unwrap_or("nobody");
    Ok(format!("{} is {id}", login.name))
}

fn builder(proxy: TrustedProxy) -> ServerBuilder {
    Server::builder("proxy", "1")
        .tool(Tool::new("whoami", whoami))
        .tool(Tool::new("write", whoami).scopes(["files:write"]))
        .authenticator(proxy)
}

async fn instance() -> Instance {
    let proxy = TrustedProxy::new(SECRET).expect("a good secret");
    start(builder(proxy)).await
}

/// A request as the proxy passes it on.
fn vouched(user: &str) -> Request {
    Request::tool("whoami", json!({}))
        .header("X-Proxy-Secret", SECRET)
        .header("X-Forwarded-User", user)
}

fn answers() -> serde_json::Value {
    json!({"login": {"action": "accept", "content": {"name": "x"}}})
}

#[tokio::test]
async fn the_proxy_says_who_is_calling() {
    let instance = instance().await;
    for (user, known) in [
        ("alice", "alice"),
        ("alice@example.com", "alice@example.com"),
        ("  alice  ", "alice"),
        ("zoë", "zoë"),
        ("Alice  Smith", "Alice  Smith"),
    ] {
        let request = vouched(user).param("inputResponses", answers());
        let reply = instance.send(&request).await.reply();
        assert_eq!(text(&reply), format!("x is {known}"));
    }
    let alices = token(&instance.send(&vouched("alice")).await.reply());
    let stolen = vouched("bob").again(&alices, answers());
    instance.send(&stolen).await.error(200, -32602);
    let own = vouched("alice").again(&alices, answers());
    assert_eq!(text(&instance.send(&own).await.reply()), "x is alice");
}

#[tokio::test]
async fn without_the_secret_nobody_is_believed() {
    let instance = instance().await;
    let plain = || vouched("alice").without_header("X-Proxy-Secret");
    let mut refusals = Vec::new();
    for request in [
        plain(),
        plain().header("X-Proxy-Secret", ""),
        plain().header("X-Proxy-Secret", "wrong"),
        plain().header("X-Proxy-Secret", &SECRET[1..]),
        plain().header("X-Proxy-Secret", &SECRET.to_uppercase()),
        plain().header("X-Proxy-Secret", &format!("{SECRET}{SECRET}")),
        plain().header("Authorization", &format!("Bearer {SECRET}")),
        plain().without_header("X-Forwarded-User"),
    ] {
        let response = instance.send(&request).await;
        response.error(403, -32600);
        assert_eq!(response.header("www-authenticate"), None);
        refusals.push(response.json());
    }
    assert!(refusals.iter().all(|refusal| *refusal == refusals[0]));
    assert!(!refusals[0].to_string().contains("horse"));
}

#[tokio::test]
async fn headers_that_are_there_twice_are_refused() {
    let proxy = TrustedProxy::new(SECRET).and_then(|proxy| proxy.scopes_header("X-Scopes"));
    let instance = start(builder(proxy.expect("a good proxy"))).await;
    let scoped = || vouched("alice").header("X-Scopes", "a");
    for (name, value) in [
        ("X-Proxy-Secret", SECRET),
        ("X-Proxy-Secret", "wrong"),
        ("X-Forwarded-User", "root"),
        ("X-Forwarded-User", "alice"),
        ("X-Scopes", "files:write"),
    ] {
        let request = scoped().second_header(name, value);
        let message = instance.send(&request).await.error(400, -32600);
        let expected = format!("repeated {} header", name.to_lowercase());
        assert_eq!(message, expected);
    }
    token(&instance.send(&scoped()).await.reply());
}

#[tokio::test]
async fn a_caller_without_a_name_is_told_to_get_one() {
    let proxy = TrustedProxy::new(SECRET).expect("a good secret");
    let metadata =
        ResourceMetadata::new("https://mcp.example.com/mcp", ["https://login.example.com"]);
    let instance = start(builder(proxy).resource_metadata(metadata)).await;
    for request in [
        vouched("alice").without_header("X-Forwarded-User"),
        vouched(""),
        vouched("   "),
    ] {
        let response = instance.send(&request).await;
        response.error(401, -32600);
        let challenge = "Bearer resource_metadata=\
             \"https://mcp.example.com/.well-known/oauth-protected-resource/mcp\"";
        assert_eq!(response.header("www-authenticate"), Some(challenge));
    }
    let mut bytes = vouched("alice").to_bytes("localhost");
    let at = bytes.windows(5).position(|window| window == b"alice");
    bytes[at.expect("a name")] = 0xff;
    instance.send_bytes(&bytes).await.error(400, -32600);
}

/// Nobody is made somebody else by what cannot be seen.
#[tokio::test]
async fn a_name_is_taken_as_it_came() {
    let instance = instance().await;
    for user in [
        "alice\u{2003}",
        "\u{a0}alice",
        "\u{2003}",
        "al\tice",
        "alice\u{85}",
    ] {
        let message = instance.send(&vouched(user)).await.error(400, -32600);
        assert!(message.contains("x-forwarded-user"), "{message}");
    }
}

#[tokio::test]
async fn headers_can_be_named_and_bring_scopes() {
    let proxy = TrustedProxy::new(SECRET)
        .and_then(|proxy| proxy.secret_header("x-gate"))
        .and_then(|proxy| proxy.user_header("Remote-User"))
        .and_then(|proxy| proxy.scopes_header("Remote-Scopes"));
    let instance = start(builder(proxy.expect("a good proxy"))).await;
    let write = || {
        Request::tool("write", json!({}))
            .header("X-Gate", SECRET)
            .header("Remote-User", "alice")
    };
    let scoped = write().header("Remote-Scopes", "files:read files:write");
    token(&instance.send(&scoped).await.reply());
    for lacking in [write(), write().header("Remote-Scopes", "files:read")] {
        instance.send(&lacking).await.error(403, -32600);
    }
    // The names that are used unless others are given count for nothing now.
    instance.send(&vouched("alice")).await.error(403, -32600);
}

#[test]
fn what_cannot_work_is_refused_and_nothing_secret_is_shown() {
    for bad in [
        "",
        "short",
        "fifteen letters",
        " correct horse battery staple",
        "sixteen\u{7f}letters..",
        "sechzehn Zeichen für dich",
    ] {
        let error = TrustedProxy::new(bad)
            .expect_err("a bad secret")
            .to_string();
        assert!(error.contains("secret"), "{error}");
        assert!(bad.is_empty() || !error.contains(bad), "{error}");
    }
    let proxy = TrustedProxy::new(SECRET).expect("a good secret");
    let error = proxy
        .clone()
        .user_header("no such header")
        .expect_err("a bad name");
    assert!(error.to_string().contains("no such header"), "{error}");
    let shown = format!("{proxy:?} {proxy:#?}");
    assert!(shown.contains("x-forwarded-user"), "{shown}");
    assert!(!shown.contains("horse"), "{shown}");
}
