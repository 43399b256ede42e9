//! Malformed messages: status, error code and text of the responses.

use crate::support::{
    CAPABILITIES_KEY, Instance, Request, VERSION_KEY, asked, assert_contains, echo, echo_call,
    greet, start, text, token,
};
use refrain_core::{Cx, Result};
use refrain_server::{Prompt, Server, ServerLimits, Tool};
use refrain_wire::SamplingParams;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Choice {
    Number(#[allow(dead_code, reason = "only deserialized")] u8),
    Flag(#[allow(dead_code, reason = "only deserialized")] bool),
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Pick {
    choice: Choice,
}

async fn pick(_: Cx, pick: Pick) -> Result<String> {
    Ok(format!("{:?}", pick.choice))
}

/// The body limit of these tests.
const BODY: usize = 100_000;

async fn model(cx: Cx) -> Result<String> {
    let answer = cx
        .sample("opinion", SamplingParams::new(5).user("Well?"))
        .await?;
    Ok(answer.text())
}

async fn count_roots(cx: Cx) -> Result<String> {
    Ok(format!("{}", cx.roots("where").await?.len()))
}

async fn instance() -> Instance {
    let builder = Server::builder("bad", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("model", model))
        .tool(Tool::new("count_roots", count_roots))
        .limits(ServerLimits {
            body: BODY,
            ..ServerLimits::default()
        });
    start(builder).await
}

async fn assert_alive(instance: &Instance) {
    let response = instance
        .send(&Request::tool("echo", json!({"text": "still here"})))
        .await;
    assert_eq!(text(&response.reply()), "Echo: still here");
}

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

/// Replaces the string "HERE" in the message by this JSON text.
fn insert_json(request: &Request, json: &str) -> Request {
    let message = String::from_utf8(request.message()).expect("text");
    Request::bytes(message.replace("\"HERE\"", json))
}

#[tokio::test]
async fn malformed_json_is_a_parse_error() {
    let instance = instance().await;
    let whole = String::from_utf8(echo_call().message()).unwrap();
    for body in [
        "",
        "nope",
        "{",
        r#"{"jsonrpc":}"#,
        "{'jsonrpc':'2.0'}",
        &whole[..whole.len() - 1],
        &format!("{whole} x"),
        &"[".repeat(10_000),
    ] {
        let response = instance.send(&Request::bytes(body)).await;
        assert_contains(&response.error(400, -32700), &["JSON"]);
        assert_eq!(
            response.json().get("id"),
            None,
            "unreadable message has no id"
        );
    }
    assert_alive(&instance).await;
}

#[tokio::test]
async fn invalid_utf8_is_a_parse_error() {
    let instance = instance().await;
    for invalid in [&b"\xff\xfe"[..], b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f"] {
        let mut body =
            br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":""#.to_vec();
        let at = body.len();
        body.extend_from_slice(invalid);
        body.extend_from_slice(br#""}}"#);
        let response = instance.send(&Request::bytes(body)).await;
        assert_contains(&response.error(400, -32700), &["UTF-8", &at.to_string()]);
    }
}

#[tokio::test]
async fn malformed_request_is_an_invalid_request() {
    let instance = instance().await;
    for (body, id, expected) in [
        ("1", None, "object"),
        ("null", None, "object"),
        (r#""text""#, None, "object"),
        ("{}", None, "jsonrpc"),
        (
            r#"{"id":7,"method":"tools/list"}"#,
            Some(json!(7)),
            "jsonrpc",
        ),
        (
            r#"{"jsonrpc":"1.0","id":"a","method":"tools/list"}"#,
            Some(json!("a")),
            "jsonrpc",
        ),
        (
            r#"{"jsonrpc":2.0,"id":7,"method":"tools/list"}"#,
            Some(json!(7)),
            "jsonrpc",
        ),
        (
            r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#,
            None,
            "id",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}"#,
            None,
            "id",
        ),
        (
            r#"{"jsonrpc":"2.0","id":{},"method":"tools/list"}"#,
            None,
            "id",
        ),
        (r#"{"jsonrpc":"2.0","id":7}"#, Some(json!(7)), "method"),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":1}"#,
            Some(json!(7)),
            "method",
        ),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":[]}"#,
            Some(json!(7)),
            "params",
        ),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":null}"#,
            Some(json!(7)),
            "params",
        ),
    ] {
        let response = instance.send(&Request::bytes(body)).await;
        assert_contains(&response.error(400, -32600), &[expected]);
        assert_eq!(response.json().get("id"), id.as_ref(), "{body}");
    }
}

#[tokio::test]
async fn batch_is_an_invalid_request() {
    let instance = instance().await;
    let one = String::from_utf8(echo_call().message()).unwrap();
    for body in [
        "[]".into(),
        format!("[{one}]"),
        format!(" [{one},{one}]"),
        nested(10_000),
    ] {
        let response = instance.send(&Request::bytes(body)).await;
        assert_contains(&response.error(400, -32600), &["batch"]);
    }
    assert_alive(&instance).await;
}

#[tokio::test]
async fn response_is_an_invalid_request() {
    let instance = instance().await;
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}"#,
    ] {
        let response = instance.send(&Request::bytes(body)).await;
        assert_contains(&response.error(400, -32600), &["response"]);
    }
}

#[tokio::test]
async fn duplicate_keys_are_rejected_at_every_level() {
    let instance = instance().await;
    let meta = json!({VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}});
    let call = |params: String| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{params}}}}}"#)
    };
    let (name, meta) = (r#""name":"echo""#, format!(r#""_meta":{meta}"#));
    let arguments = r#""arguments":{"text":"x"}"#;
    let in_meta = format!(
        r#""_meta":{{"{VERSION_KEY}":"2026-07-28","{VERSION_KEY}":"2026-07-28","{CAPABILITIES_KEY}":{{}}}}"#
    );
    for (body, status, code, expected) in [
        (
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}"#.into(),
            400,
            -32600,
            "id",
        ),
        (
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"tools/list"}"#.into(),
            400,
            -32600,
            "jsonrpc",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"x","method":"tools/list"}"#.into(),
            400,
            -32600,
            "method",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{},"params":{}}"#.into(),
            400,
            -32600,
            "params",
        ),
        (
            call(format!("{name},{name},{meta},{arguments}")),
            400,
            -32602,
            "name",
        ),
        (
            call(format!("{name},{meta},{meta},{arguments}")),
            400,
            -32602,
            "_meta",
        ),
        (
            call(format!("{name},{in_meta},{arguments}")),
            400,
            -32602,
            "protocolVersion",
        ),
        (
            call(format!("{name},{meta},{arguments},{arguments}")),
            400,
            -32602,
            "arguments",
        ),
        (
            call(format!(
                r#"{name},{meta},"arguments":{{"text":"x","text":"y"}}"#
            )),
            200,
            -32602,
            "\"text\"",
        ),
        (
            call(format!(
                r#"{name},{meta},"arguments":{{"text":"x","a":{{"in":1,"in":2}}}}"#
            )),
            200,
            -32602,
            "\"in\"",
        ),
        (
            call(format!(
                r#"{name},{meta},{arguments},"requestState":"a","requestState":"b""#
            )),
            400,
            -32602,
            "requestState",
        ),
        (
            call(format!(
                r#"{name},{meta},{arguments},"inputResponses":{{}},"inputResponses":{{}}"#
            )),
            400,
            -32602,
            "inputResponses",
        ),
        (
            call(format!(
                r#"{name},{meta},{arguments},"inputResponses":{{"k":{{}},"k":{{}}}}"#
            )),
            400,
            -32602,
            "\"k\"",
        ),
    ] {
        let response = instance.send(&Request::bytes(body)).await;
        let message = response.error(status, code);
        assert_contains(&message, &[expected]);
        let is_duplicate = message.contains("twice") || message.contains("duplicate key");
        assert!(is_duplicate, "{message}");
    }
    assert_alive(&instance).await;
}

#[tokio::test]
async fn duplicate_keys_in_an_answer_are_reported() {
    let instance = instance().await;
    let first = instance
        .send(&Request::tool("greet", json!({})))
        .await
        .reply();
    let message = |answer: &str| {
        let request =
            Request::tool("greet", json!({})).again(&token(&first), json!({"login": "HERE"}));
        insert_json(&request, answer).header("Mcp-Name", "greet")
    };
    let twice = message(r#"{"action":"decline","action":"accept","content":{"name":"x"}}"#);
    assert_contains(
        &instance.send(&twice).await.error(200, -32602),
        &["login", "action"],
    );
    // An invalid form is asked again, with the reason.
    let twice = message(r#"{"action":"accept","content":{"name":"x","name":"y"}}"#);
    let reply = instance.send(&twice).await.reply();
    let ask = reply["result"]["inputRequests"]["login"]["params"]["message"]
        .as_str()
        .unwrap();
    assert_contains(ask, &["Who are you?", "duplicate key \"name\""]);
    assert!(!ask.contains("column"), "{ask}");

    let plain = Request::tool("model", json!({}));
    let first = instance.send(&plain).await.reply();
    let request = plain.again(&token(&first), json!({"opinion": "HERE"}));
    let answer =
        r#"{"role":"assistant","model":"m","content":{"type":"text","text":"x","text":"y"}}"#;
    let twice = insert_json(&request, answer).header("Mcp-Name", "model");
    let message = instance.send(&twice).await.error(200, -32602);
    assert_contains(&message, &["opinion", "\"text\"", "duplicate key"]);
}

#[tokio::test]
async fn deep_nesting_is_an_error() {
    let instance = instance().await;
    let deep = nested(10_000);
    let request = Request::tool("echo", json!({"text": "HERE"}));
    assert_contains(
        &instance
            .send(&insert_json(&request, &deep))
            .await
            .error(200, -32602),
        &["arguments"],
    );
    // Within the nesting limit it is only a value of the wrong type.
    let request = insert_json(&request, &nested(100));
    assert_contains(text(&instance.send(&request).await.reply()), &["text"]);

    for (tool, key, answer) in [
        (
            "greet",
            "login",
            json!({"action": "accept", "content": {"name": "HERE"}}),
        ),
        (
            "greet",
            "login",
            json!({"action": "accept", "content": {"name": "x"}, "more": "HERE"}),
        ),
        (
            "model",
            "opinion",
            json!({"role": "assistant", "model": "m", "content": ["HERE"]}),
        ),
        ("count_roots", "where", json!({"roots": [], "more": "HERE"})),
    ] {
        let plain = Request::tool(tool, json!({}));
        let first = instance.send(&plain).await.reply();
        assert_eq!(asked(&first), [key]);
        let later = plain.clone().again(&token(&first), json!({key: answer}));
        let early = plain.param("inputResponses", json!({key: answer}));
        for request in [later, early] {
            let request = insert_json(&request, &deep).header("Mcp-Name", tool);
            let message = instance.send(&request).await.error(200, -32602);
            assert_contains(&message, &["inputResponses", key]);
        }
    }
    // An unknown member is not parsed.
    let request = insert_json(&echo_call().param("more", json!("HERE")), &deep);
    assert_eq!(text(&instance.send(&request).await.reply()), "Echo: x");
    assert_alive(&instance).await;
}

/// Each request has a long text that its error message repeats.
#[tokio::test]
async fn error_has_only_an_excerpt_of_the_input() {
    let builder = Server::builder("bad", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("pick", pick))
        .prompt(Prompt::new("quote", echo));
    let instance = start(builder).await;
    let long = "\u{7f}".repeat(200_000);
    let duplicate = r#"{"text":{"KEY":1,"KEY":2}}"#.replace("KEY", &long);
    let duplicate = insert_json(&Request::tool("echo", json!("HERE")), &duplicate);
    for request in [
        Request::rpc(&long, json!({})).header("Mcp-Method", "x"),
        Request::tool(&long, json!({})).header("Mcp-Name", "x"),
        Request::tool(&long, json!({})).without_header("Mcp-Name"),
        Request::prompt("quote", json!({long.as_str(): 1})),
        Request::tool("echo", json!({"text": {"a": long}})),
        echo_call()
            .meta(VERSION_KEY, json!(long))
            .header("MCP-Protocol-Version", "2026-07-28"),
        Request::tool("echo", json!({"text": vec![long.as_str(); 3]})),
        Request::tool("pick", json!({"choice": long})),
        Request::tool("pick", json!({"choice": vec![0; 2000]})),
        Request::tool("echo", json!({})).param("inputResponses", json!({long.as_str(): 1})),
        Request::rpc(
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": long}, "argument": {"name": "a", "value": ""}}),
        ),
        duplicate.header("Mcp-Name", "echo"),
    ] {
        let response = instance.send(&request).await;
        let reply = response.json();
        let text = match reply.get("error") {
            Some(error) => error["message"].as_str().unwrap(),
            None => text(&reply),
        };
        assert!(text.len() < 1000, "{} bytes: {:.80}", text.len(), text);
    }
}

#[tokio::test]
async fn body_over_the_limit_is_rejected() {
    let instance = instance().await;
    let of_size = |size: usize| {
        let empty = Request::tool("echo", json!({"text": ""})).message().len();
        Request::tool("echo", json!({"text": "x".repeat(size - empty)}))
    };
    for (size, fits) in [
        (BODY, true),
        (BODY + 1, false),
        (3 * BODY, false),
        (50 * BODY, false),
    ] {
        for request in [of_size(size), of_size(size).chunked()] {
            let response = instance.send(&request).await;
            if fits {
                assert!(text(&response.reply()).starts_with("Echo: xxx"));
            } else {
                assert_contains(&response.error(413, -32600), &[&BODY.to_string()]);
            }
        }
    }
    assert_alive(&instance).await;
}

#[tokio::test]
async fn expect_header_avoids_sending_an_oversized_body() {
    let instance = instance().await;
    let mut connection = instance.connect().await;
    let head = |length: usize| {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    connection.write(head(BODY).as_bytes()).await;
    assert_eq!(connection.head().await.status, 100);
    let mut connection = instance.connect().await;
    connection.write(head(BODY + 1).as_bytes()).await;
    connection.response().await.error(413, -32600);
}
