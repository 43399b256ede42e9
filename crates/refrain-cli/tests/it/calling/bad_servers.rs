//! Servers that are not as they should be: each ends in a sentence and an exit code, and no call is lost.

use super::assert_says;
use crate::support::{Files, Say, Told, run};
use refrain_client::PendingCall;
use serde_json::{Value, json};
use std::path::Path;

/// A result that asks.
fn asks(asks: &Value, state: &str) -> Say {
    Say::Result(
        json!({"resultType": "input_required", "inputRequests": asks, "requestState": state}),
    )
}

fn form(properties: &Value) -> Value {
    let schema = json!({"type": "object", "properties": properties});
    let params = json!({"mode": "form", "message": "Well?", "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

/// Calls a tool of a server, and keeps the call.
async fn call(server: &Told, file: &Path, flags: &[&str]) -> crate::support::Said {
    let (url, file) = (server.url(), file.display().to_string());
    run([&["call", &url, "tool", "--save", &file], flags].concat()).await
}

fn kept(file: &Path) -> PendingCall {
    let text = std::fs::read_to_string(file).expect("the call is kept");
    serde_json::from_str(&text).expect("a pending call")
}

#[tokio::test]
async fn nobody_there() {
    let files = Files::new();
    let file = files.path("call.json").display().to_string();
    // The port is free again.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let url = format!("http://{address}/mcp");
    let said = run(["call", &url, "echo", "--save", &file]).await;
    assert_says(
        &said,
        4,
        &[&url, "cannot be reached", "is the server running?"],
    );
    assert!(!Path::new(&file).exists(), "nothing was called");
}

#[tokio::test]
async fn something_that_is_no_mcp_server() {
    let page = || Say::Raw(200, "text/html", "<html>Welcome!</html>".into());
    let server = Told::start_raw(move |_| page()).await;
    let said = run(["tools", &server.url()]).await;
    assert_says(
        &said,
        4,
        &["does not answer as an MCP server", "Welcome!", "path"],
    );

    let server = Told::start_raw(|_| Say::Raw(404, "text/html", "Not here".into())).await;
    let said = run(["tools", &server.url()]).await;
    assert_says(
        &said,
        4,
        &["does not answer as an MCP server", "404", "path"],
    );

    let hostile = "<title>\u{1b}[2J\u{1b}]0;owned\u{7}</title>";
    let server = Told::start_raw(move |_| Say::Raw(500, "text/html", hostile.into())).await;
    let said = run(["tools", &server.url()]).await;
    assert_says(&said, 4, &["500"]);
    assert!(!said.err.contains('\u{1b}'), "{said:?}");
}

#[tokio::test]
async fn answers_that_are_not_json() {
    let files = Files::new();
    let server = Told::start(|_| Say::Raw(200, "application/json", "{oops".into())).await;
    let file = files.path("call.json");
    let said = call(&server, &file, &[]).await;
    assert_says(&said, 4, &["cannot be read", "refrain resume"]);
    assert_eq!(kept(&file).round(), 0);
}

#[tokio::test]
async fn a_stream_that_breaks_in_the_middle() {
    let files = Files::new();
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": 1, "progress": 1}});
    let start = format!("data: {progress}\n\ndata: {{\"jsonrpc\": \"2.0\", ");
    let server = Told::start(move |_| Say::Cut(start.clone())).await;
    let file = files.path("call.json");
    let said = call(&server, &file, &[]).await;
    assert_says(&said, 4, &["the connection broke", "refrain resume"]);
    // The server does not know call ids, so that a tool must not be called twice.
    assert_eq!(server.count("tools/call"), 1);
    assert_eq!(kept(&file).round(), 0);
}

#[tokio::test]
async fn rounds_without_end() {
    let files = Files::new();
    let again = || asks(&json!({"again": form(&json!({}))}), "state");
    let server = Told::start(move |_| again()).await;
    let file = files.path("call.json");
    let answers: Vec<&str> = ["--answer", "again={}"].repeat(9);
    let flags = [&answers[..], &["--rounds", "4"]].concat();
    let said = call(&server, &file, &flags).await;
    assert_says(
        &said,
        4,
        &[
            "not done after 4 rounds",
            "asking without end",
            "refrain resume",
        ],
    );
    assert_eq!(server.count("tools/call"), 4);
    assert_eq!(kept(&file).round(), 4);
    assert_eq!(kept(&file).unanswered().len(), 1);
}

#[tokio::test]
async fn an_ask_of_an_unknown_method() {
    let files = Files::new();
    let unknown =
        json!({"strange": {"method": "telepathy/create", "params": {}}, "known": form(&json!({}))});
    let server = Told::start(move |_| asks(&unknown, "state")).await;
    let file = files.path("call.json");
    let said = call(&server, &file, &["--answer", "known={}"]).await;
    assert_says(
        &said,
        3,
        &["strange  unknown", "\"telepathy/create\" are unknown"],
    );
    // The other answer is not lost.
    let open = kept(&file).unanswered();
    assert_eq!(
        open.iter().map(|ask| ask.key()).collect::<Vec<_>>(),
        ["strange"]
    );
}

#[tokio::test]
async fn a_form_that_is_none() {
    let files = Files::new();
    let deep = json!({"address": {"type": "object", "properties": {}}});
    let server = Told::start(move |_| asks(&json!({"where": form(&deep)}), "state")).await;
    let file = files.path("call.json");
    let said = call(&server, &file, &["--answer", "where={\"address\": {}}"]).await;
    assert_says(
        &said,
        3,
        &[
            "the form cannot be shown",
            "\"address\"",
            "not part of a form",
        ],
    );
    assert_eq!(kept(&file).round(), 1);
}

#[tokio::test]
async fn a_state_of_ten_megabytes() {
    let files = Files::new();
    let state = "x".repeat(10 * 1024 * 1024);
    let server = Told::start(move |_| asks(&json!({}), &state)).await;
    let file = files.path("call.json");
    let said = call(&server, &file, &[]).await;
    assert_says(
        &said,
        4,
        &["larger than 4194304 bytes", "a state", "refrain resume"],
    );
    assert_eq!(kept(&file).round(), 0);
}

#[tokio::test]
async fn a_result_of_a_type_that_nobody_knows() {
    let server = Told::start(|_| Say::Result(json!({"resultType": "maybe"}))).await;
    let said = run(["call", &server.url(), "tool"]).await;
    assert_says(&said, 4, &["unknown type \"maybe\""]);
}

#[tokio::test]
async fn a_result_that_the_tool_has_not_promised() {
    let schema = json!({"type": "object", "required": ["degrees"]});
    let tool = json!({"name": "tool", "inputSchema": {"type": "object"}, "outputSchema": schema});
    let server = Told::start(move |request| match request["method"].as_str() {
        Some("tools/list") => Say::Result(json!({"resultType": "complete", "tools": [tool]})),
        _ => Say::Result(json!({"resultType": "complete", "content": [], "structuredContent": {}})),
    })
    .await;
    // It is printed all the same: the call is done.
    let said = run(["call", &server.url(), "tool", "city=Oslo"]).await;
    assert_eq!((said.code, &*said.out), (0, "{}\n"), "{said:?}");
    assert_says(&said, 0, &["the result is not as it should be", "degrees"]);
}

/// One of 2025-11-25: it is spoken to as it wants to be.
#[tokio::test]
async fn an_older_server_is_no_bad_server() {
    let server = Told::start_raw(|request| match request["method"].as_str() {
        Some("initialize") => Say::Result(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "grandma", "version": "1"},
        })),
        Some("notifications/initialized") => Say::Raw(202, "text/plain", String::new()),
        Some("tools/call") => {
            Say::Result(json!({"content": [{"type": "text", "text": "In my day…"}]}))
        }
        _ => Say::Error(-32601, "Method not found"),
    })
    .await;
    let said = run(["call", &server.url(), "tool"]).await;
    assert_eq!((said.code, &*said.out), (0, "In my day…\n"), "{said:?}");
    let said = run(["discover", &server.url()]).await;
    assert!(said.out.contains("grandma 1"), "{said:?}");
    assert!(said.out.contains("2025-11-25"), "{said:?}");
}
