//! `--json`: whatever goes wrong, one line of JSON on standard output says so, and the exit code is what it always is.

use super::{assert_says, json};
use crate::support::{FakeServer, Files, Respond, Serve, run};
use serde_json::{Value, json};

/// The error of a command that ends like this.
async fn failed(code: i32, args: &[&str]) -> Value {
    let said = run([args, &["--json"]].concat()).await;
    assert_eq!(said.code, code, "{said:?}");
    assert_eq!(said.out.lines().count(), 1, "{said:?}");
    let told = json(&said)["error"].clone();
    let message = told["message"].as_str().expect("a message");
    let start = message.lines().next().expect("a line");
    assert!(said.err.contains(start), "{said:?}");
    told
}

#[tokio::test]
async fn flags_and_arguments_that_make_no_sense() {
    let nowhere = "http://127.0.0.1:1/mcp";
    for (args, part) in [
        (&["call"][..], "where is the server?"),
        (&["call", nowhere], "which tool?"),
        (&["call", nowhere, "echo", "text"], "NAME=VALUE"),
        (&["call", nowhere, "echo", "--answer", "key"], "`=`"),
        (&["call", nowhere, "echo", "--nonsense"], "--nonsense"),
        (&["call", nowhere, "echo", "--rounds", "0"], "--rounds"),
        (&["call", "ftp://example.com", "echo"], "http://"),
        (&["tools"], "where is the server?"),
        (&["task", "get", nowhere], "which task?"),
        (&["resume", "/nowhere.json"], "/nowhere.json"),
    ] {
        let error = failed(2, args).await;
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(part), "{args:?}: {message}");
        assert_eq!(error.get("code"), None);
    }
    let help = run(["call", "--help", "--json"]).await;
    assert!(help.ok && help.out.contains("Exit codes:"), "{help:?}");
}

#[tokio::test]
async fn nobody_there_and_nobody_who_is_let_in() {
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
    let said = run(["tools", "--stdio", "--json", "--", "/nowhere"]).await;
    assert_says(&said, 4, &["could not start"]);
    assert!(json(&said)["error"]["message"].is_string(), "{said:?}");
    let files = Files::new();
    let tokens = files.write("tokens", "alice secret-of-alice-1\n");
    let guarded = Serve::new().tokens(&tokens).start().await;
    failed(5, &["call", &guarded.url(), "echo"]).await;
}

#[tokio::test]
async fn what_the_server_refuses_has_its_code() {
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
    // What the tool says is its result, and there is nothing beside it.
    let said = run(["call", &url, "sum", "to=0", "--json"]).await;
    assert_says(&said, 1, &["sum says that it failed"]);
    assert_eq!(json(&said)["isError"], true);
}

#[tokio::test]
async fn what_is_kept_is_named() {
    let files = Files::new();
    let file = files.path("call.json").display().to_string();
    let server = FakeServer::start(|_| Respond::Raw(200, "application/json", "{oops".into())).await;
    let said = run(["call", &server.url(), "tool", "--save", &file, "--json"]).await;
    assert_says(&said, 4, &["refrain resume"]);
    let told = json(&said);
    assert_eq!(told["saved"], json!(file));
    let message = told["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("invalid response from the server"),
        "{message}"
    );
    // The server is gone, and the call is where it was.
    let said = run(["resume", &file, "--url", "http://127.0.0.1:1/mcp", "--json"]).await;
    assert_says(&said, 4, &["the call stays in"]);
    assert_eq!(json(&said)["saved"], json!(file));
}
