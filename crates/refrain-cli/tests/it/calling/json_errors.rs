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

/// Runs a command that fails, and checks that the message and the hints of its JSON are plain text.
async fn assert_shape(code: i32, args: &[&str], message: &str, hints: &[&str]) {
    let output = run([args, &["--json"]].concat()).await;
    assert_eq!(output.code, code, "{output:?}");
    let printed = json(&output);
    let found = printed["error"]["message"].as_str().expect("a message");
    assert!(found.starts_with(message), "{printed}");
    assert!(!found.contains("hint:"), "{printed}");
    let found = printed["hints"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(found.len(), hints.len(), "{printed}");
    for (found, start) in found.iter().zip(hints) {
        let found = found.as_str().expect("the hint is a string");
        assert!(found.starts_with(start), "{printed}");
    }
}

#[tokio::test]
async fn error_of_a_client_command_has_its_hints_apart() {
    let unreachable = ["tools", "http://127.0.0.1:1/mcp"];
    let hint = "check that the server is running";
    assert_shape(4, &unreachable, "could not connect to", &[hint]).await;
    let no_scheme = ["tools", "localhost:8080"];
    let hint = "did you mean http://localhost:8080/mcp?";
    assert_shape(2, &no_scheme, "invalid", &[hint]).await;
}

#[tokio::test]
async fn errors_of_other_commands_have_the_same_shape() {
    let gateway = ["gateway", "check"];
    let message = "no server to put behind the gateway";
    assert_shape(1, &gateway, message, &["pass -- COMMAND"]).await;
    let config = ["config", "check", "/no/such/file.toml"];
    let message = "cannot read configuration file /no/such/file.toml";
    let hint = "`refrain config defaults` prints a file to start from";
    assert_shape(1, &config, message, &[hint]).await;
    let store = ["store", "tasks", "list", "--store", "memory:"];
    let message = "a memory store belongs to one process: no other process can use it";
    assert_shape(
        1,
        &store,
        message,
        &["pass the store that the instances use"],
    )
    .await;
}

#[tokio::test]
async fn error_of_wrong_flags_has_the_same_shape() {
    let wrong = ["tools", "http://127.0.0.1:1/mcp", "--bearer-fil", "x"];
    let message = "unexpected argument '--bearer-fil' found";
    assert_shape(
        2,
        &wrong,
        message,
        &["a similar argument exists: '--bearer-file'"],
    )
    .await;
    let missing = ["resume"];
    let message = "the following required arguments were not provided: <FILE>";
    assert_shape(2, &missing, message, &[]).await;
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
