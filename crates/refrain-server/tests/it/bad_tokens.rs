//! Invalid tokens: the same error for every reason.

use crate::support::{
    Clock, Instance, Request, Word, asked, greet, keys, login, start, text, token,
};
use refrain_core::{Cx, KeyRing, Result};
use refrain_server::{Prompt, Server, ServerBuilder, Tool};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

async fn tell(cx: Cx, word: Word) -> Result<String> {
    let hello = greet(cx).await?;
    Ok(format!("{hello} {}", word.text))
}

async fn tell_as_prompt(cx: Cx, word: Word) -> Result<String> {
    tell(cx, word).await
}

fn builder(keys: &KeyRing, clock: &Arc<Clock>) -> ServerBuilder {
    Server::builder("tokens", "1")
        .tool(Tool::new("tell", tell))
        .tool(Tool::new("say", tell))
        .prompt(Prompt::new("tell", tell_as_prompt))
        .keys(keys.clone())
        .source(clock.clone())
        .token_ttl(Duration::from_secs(100))
        .flow_ttl(Duration::from_secs(250))
        .clock_skew(Duration::from_secs(10))
        .max_token(4096)
}

fn plain() -> Request {
    Request::tool("tell", json!({"text": "x"}))
}

/// The error response to a request, without its id.
async fn rejection(instance: &Instance, request: &Request) -> Value {
    let response = instance.send(request).await;
    response.error(200, -32602);
    let mut reply = response.json();
    assert_eq!(
        reply.as_object_mut().and_then(|reply| reply.remove("id")),
        Some(json!(1))
    );
    reply
}

#[tokio::test]
async fn every_invalid_token_gets_the_same_error() {
    let (keys, clock) = (keys(), Clock::new());
    let instance = start(builder(&keys, &clock)).await;
    let token = token(&instance.send(&plain()).await.reply());
    let mut rejections = Vec::new();

    let flipped = |at: usize| {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).unwrap()
    };
    let (middle, last) = (token.len() / 2, token.len() - 1);
    for bad in [
        String::new(),
        "x".into(),
        "not base64!".repeat(20),
        format!("{token}="),
        format!("{token}-TAMPERED"),
        token[..last].into(),
        token[..middle].into(),
        flipped(0),
        flipped(4),
        flipped(10),
        flipped(middle),
        flipped(last - 1),
        "A".repeat(4000),
        "A".repeat(5000),
    ] {
        rejections.push(rejection(&instance, &plain().again(&bad, login("alice"))).await);
    }

    // For another tool, other arguments, another kind of call.
    for other in [
        Request::tool("say", json!({"text": "x"})),
        Request::tool("tell", json!({"text": "y"})),
        Request::prompt("tell", json!({"text": "x"})),
    ] {
        rejections.push(rejection(&instance, &other.again(&token, login("alice"))).await);
    }

    // Another audience with the same keys, then other keys.
    let other = start(builder(&keys, &clock).audience("another")).await;
    rejections.push(rejection(&other, &plain().again(&token, login("alice"))).await);
    let other = start(builder(&crate::support::keys(), &clock)).await;
    rejections.push(rejection(&other, &plain().again(&token, login("alice"))).await);

    // A clock that is far behind, then an expired token.
    let behind = Arc::new(Clock::default());
    let other = start(builder(&keys, &behind)).await;
    rejections.push(rejection(&other, &plain().again(&token, login("alice"))).await);
    clock.forward(110);
    let accepted = instance
        .send(&plain().again(&token, login("alice")))
        .await
        .reply();
    assert_eq!(text(&accepted), "Hello, alice! x");
    clock.forward(1);
    rejections.push(rejection(&instance, &plain().again(&token, login("alice"))).await);

    for other in &rejections {
        assert_eq!(other, &rejections[0]);
    }
    let message = rejections[0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("requestState"), "{message}");
}

#[tokio::test]
async fn flow_expires_even_if_its_token_is_fresh() {
    let (keys, clock) = (keys(), Clock::new());
    let instance = start(builder(&keys, &clock)).await;
    let mut reply = instance.send(&plain()).await.reply();
    for _ in 0..2 {
        clock.forward(100);
        reply = instance
            .send(&plain().again(&token(&reply), json!({})))
            .await
            .reply();
        assert_eq!(asked(&reply), ["login"]);
    }
    clock.forward(61);
    let late = rejection(&instance, &plain().again(&token(&reply), login("alice"))).await;
    let wrong = rejection(&instance, &plain().again("x", login("alice"))).await;
    assert_eq!(late, wrong);
}

#[tokio::test]
async fn equivalent_json_of_arguments_is_accepted() {
    let (keys, clock) = (keys(), Clock::new());
    let instance = start(builder(&keys, &clock)).await;
    let first = instance.send(&plain()).await.reply();
    let request = plain().again(&token(&first), login("alice"));
    let body = String::from_utf8(request.message()).unwrap();
    let body = body.replace(r#"{"text":"x"}"#, "{ \"\\u0074ext\" :\n\"\\u0078\" }");
    assert!(body.contains("\\u0078"));
    let reply = instance
        .send(&Request::bytes(body).header("Mcp-Name", "tell"))
        .await
        .reply();
    assert_eq!(text(&reply), "Hello, alice! x");
}
