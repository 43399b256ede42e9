//! `--json`: every error is one line of JSON on standard output, with the usual exit code.

use super::{assert_says, json};
use crate::support::{FakeServer, Files, Respond, Serve, run};
use serde_json::{Value, json};

/// Runs a command that fails with this code, and returns its error.
async fn failed(code: i32, args: &[&str]) -> Value {
    let output = run([args, &["--json"]].concat()).await;
    assert_eq!(output.code, code, "{output:?}");
    assert_eq!(output.out.lines().count(), 1, "{output:?}");
    let error = json(&output)["error"].clone();
    let message = error["message"].as_str().expect("the message is a string");
    let start = message.lines().next().expect("a line");
    assert!(output.err.contains(start), "{output:?}");
    error
}

#[tokio::test]
async fn usage_errors_are_printed_as_json() {
    let nowhere = "http://127.0.0.1:1/mcp";
    for (args, part) in [
        (&["call"][..], "missing server"),
        (&["call", nowhere], "missing tool"),
        (&["call", nowhere, "echo", "text"], "NAME=VALUE"),
        (&["call", nowhere, "echo", "--answer", "key"], "KEY=JSON"),
        (&["call", nowhere, "echo", "--nonsense"], "--nonsense"),
        (&["call", nowhere, "echo", "--rounds", "0"], "--rounds"),
        (&["call", "ftp://example.com", "echo"], "http://"),
        (&["tools"], "missing server"),
        (&["task", "get", nowhere], "missing task id"),
        (&["resume", "/nowhere.json"], "/nowhere.json"),
    ] {
        let error = failed(2, args).await;
        let message = error["message"].as_str().expect("the message is a string");
        assert!(message.contains(part), "{args:?}: {message}");
        assert_eq!(error.get("code"), None);
    }
    let help = run(["call", "--help", "--json"]).await;
    assert!(help.ok && help.out.contains("Exit codes:"), "{help:?}");
}

#[tokio::test]
async fn connection_and_auth_errors_are_printed_as_json() {
    let nowhere = "http://127.0.0.1:1/mcp";
    for args in [
        &["call", nowhere, "echo"][..],
        &["discover", nowhere],
        &["tools", nowhere],
        &["prompts", nowhere],
        &["resources", nowhere],
        &["task", "get", nowhere, "id"],
        &["task", "watch", nowhere, "id"],
    ] {
        failed(4, args).await;
    }
    let output = run(["tools", "--stdio", "--json", "--", "/nowhere"]).await;
    assert_says(&output, 4, &["could not start"]);
    assert!(json(&output)["error"]["message"].is_string(), "{output:?}");
    let files = Files::new();
    let tokens = files.write("tokens", "alice secret-of-alice-1\n");
    let guarded = Serve::new().tokens(&tokens).start().await;
    failed(5, &["call", &guarded.url(), "echo"]).await;
}

#[tokio::test]
async fn rejected_request_has_its_error_code_in_json() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    for args in [
        &["call", &url, "nope"][..],
        &["prompt", &url, "nope"],
        &["task", "get", &url, "nope"],
        &["task", "watch", &url, "nope"],
        &["task", "cancel", &url, "nope"],
    ] {
        assert_eq!(failed(1, args).await["code"], -32602, "{args:?}");
    }
    // The result of the tool is the only output.
    let output = run(["call", &url, "sum", "to=0", "--json"]).await;
    assert_says(&output, 1, &["the tool sum reported an error"]);
    assert_eq!(json(&output)["isError"], true);
}

#[tokio::test]
async fn saved_file_is_named_in_json() {
    let files = Files::new();
    let file = files.path("call.json").display().to_string();
    let server = FakeServer::start(|_| Respond::Raw(200, "application/json", "{oops".into())).await;
    let output = run(["call", &server.url(), "tool", "--save", &file, "--json"]).await;
    assert_says(&output, 4, &["refrain resume"]);
    let printed = json(&output);
    assert_eq!(printed["saved"], json!(file));
    let message = printed["error"]["message"]
        .as_str()
        .expect("the message is a string");
    assert!(
        message.contains("invalid response from the server"),
        "{message}"
    );
    // The server is unreachable, and the call stays saved.
    let output = run(["resume", &file, "--url", "http://127.0.0.1:1/mcp", "--json"]).await;
    assert_says(&output, 4, &["the call is still saved in"]);
    assert_eq!(json(&output)["saved"], json!(file));
}
