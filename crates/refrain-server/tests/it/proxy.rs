//! Callers authenticated by a trusted proxy.

use crate::support::{Instance, Request, login, start, text, token, whoami};
use refrain_server::{ResourceMetadata, Server, ServerBuilder, Tool, TrustedProxy};
use serde_json::json;

const SECRET: &str = "correct horse battery staple";

fn builder(proxy: TrustedProxy) -> ServerBuilder {
    Server::builder("proxy", "1")
        .tool(Tool::new("whoami", whoami))
        .tool(Tool::new("write", whoami).scopes(["files:write"]))
        .authenticator(proxy)
}

async fn instance() -> Instance {
    let proxy = TrustedProxy::new(SECRET).expect("a valid secret");
    start(builder(proxy)).await
}

/// A request forwarded by the proxy.
fn forwarded(user: &str) -> Request {
    Request::tool("whoami", json!({}))
        .header("X-Proxy-Secret", SECRET)
        .header("X-Forwarded-User", user)
}

#[tokio::test]
async fn proxy_header_names_the_caller() {
    let instance = instance().await;
    for (user, principal) in [
        ("alice", "alice"),
        ("alice@example.com", "alice@example.com"),
        ("  alice  ", "alice"),
        ("zoë", "zoë"),
        ("Alice  Smith", "Alice  Smith"),
    ] {
        let request = forwarded(user).param("inputResponses", login("x"));
        let reply = instance.send(&request).await.reply();
        assert_eq!(text(&reply), format!("x is {principal}"));
    }
    let alices = token(&instance.send(&forwarded("alice")).await.reply());
    let stolen = forwarded("bob").again(&alices, login("x"));
    instance.send(&stolen).await.error(200, -32602);
    let own = forwarded("alice").again(&alices, login("x"));
    assert_eq!(text(&instance.send(&own).await.reply()), "x is alice");
}

#[tokio::test]
async fn request_without_the_proxy_secret_is_rejected() {
    let instance = instance().await;
    let plain = || forwarded("alice").without_header("X-Proxy-Secret");
    let mut rejections = Vec::new();
    for request in [
        plain(),
        plain().header("X-Proxy-Secret", ""),
        plain().header("X-Proxy-Secret", "wrong"),
        plain().header("X-Proxy-Secret", &SECRET[1..]),
        plain().header("X-Proxy-Secret", &SECRET.to_uppercase()),
        plain().header("X-Proxy-Secret", &format!("{SECRET}{SECRET}")),
        plain().bearer(SECRET),
        plain().without_header("X-Forwarded-User"),
    ] {
        let response = instance.send(&request).await;
        response.error(403, -32600);
        assert_eq!(response.header("www-authenticate"), None);
        rejections.push(response.json());
    }
    assert!(rejections.iter().all(|other| *other == rejections[0]));
    assert!(!rejections[0].to_string().contains("horse"));
}

#[tokio::test]
async fn repeated_headers_are_rejected() {
    let proxy = TrustedProxy::new(SECRET).and_then(|proxy| proxy.scopes_header("X-Scopes"));
    let instance = start(builder(proxy.expect("a valid proxy"))).await;
    let scoped = || forwarded("alice").header("X-Scopes", "a");
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
async fn missing_user_header_is_challenged() {
    let proxy = TrustedProxy::new(SECRET).expect("a valid secret");
    let metadata =
        ResourceMetadata::new("https://mcp.example.com/mcp", ["https://login.example.com"]);
    let instance = start(builder(proxy).resource_metadata(metadata)).await;
    for request in [
        forwarded("alice").without_header("X-Forwarded-User"),
        forwarded(""),
        forwarded("   "),
    ] {
        let response = instance.send(&request).await;
        response.error(401, -32600);
        let challenge = "Bearer resource_metadata=\
             \"https://mcp.example.com/.well-known/oauth-protected-resource/mcp\"";
        assert_eq!(response.header("www-authenticate"), Some(challenge));
    }
    let mut bytes = forwarded("alice").to_bytes("localhost");
    let at = bytes.windows(5).position(|window| window == b"alice");
    bytes[at.expect("a name")] = 0xff;
    instance.send_bytes(&bytes).await.error(400, -32600);
}

#[tokio::test]
async fn user_with_invisible_characters_is_rejected() {
    let instance = instance().await;
    for user in [
        "alice\u{2003}",
        "\u{a0}alice",
        "\u{2003}",
        "al\tice",
        "alice\u{85}",
    ] {
        let message = instance.send(&forwarded(user)).await.error(400, -32600);
        assert!(message.contains("x-forwarded-user"), "{message}");
    }
}

#[tokio::test]
async fn header_names_are_configurable() {
    let proxy = TrustedProxy::new(SECRET)
        .and_then(|proxy| proxy.secret_header("x-gate"))
        .and_then(|proxy| proxy.user_header("Remote-User"))
        .and_then(|proxy| proxy.scopes_header("Remote-Scopes"));
    let instance = start(builder(proxy.expect("a valid proxy"))).await;
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
    // The default headers are no longer accepted.
    instance.send(&forwarded("alice")).await.error(403, -32600);
}

#[test]
fn invalid_proxy_settings_are_rejected_without_the_secret() {
    for bad in [
        "",
        "short",
        "fifteen letters",
        " correct horse battery staple",
        "sixteen\u{7f}letters..",
        "sechzehn Zeichen für dich",
    ] {
        let error = TrustedProxy::new(bad)
            .expect_err("an invalid secret")
            .to_string();
        assert!(error.contains("secret"), "{error}");
        assert!(bad.is_empty() || !error.contains(bad), "{error}");
    }
    let proxy = TrustedProxy::new(SECRET).expect("a valid secret");
    let error = proxy
        .clone()
        .user_header("no such header")
        .expect_err("an invalid name");
    assert!(error.to_string().contains("no such header"), "{error}");
    let output = format!("{proxy:?} {proxy:#?}");
    assert!(output.contains("x-forwarded-user"), "{output}");
    assert!(!output.contains("horse"), "{output}");
}
