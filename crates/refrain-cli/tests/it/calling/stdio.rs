//! Servers that are started as commands.

use super::{assert_prints, assert_says, json};
use crate::support::{Files, run};

const REFRAIN: &str = env!("CARGO_BIN_EXE_refrain");

#[tokio::test]
async fn stdio_command_replaces_the_url() {
    let serve = ["--", REFRAIN, "serve", "--stdio"];
    let with = |args: &[&'static str]| [args, &serve].concat();
    let output = run(with(&["call", "--stdio", "echo", "text=hello"])).await;
    assert_prints(&output, "Echo: hello\n");
    let output = run(with(&["tools", "--stdio", "--json"])).await;
    let names = json(&output);
    let names = names.as_array().expect("a list").iter();
    assert!(
        names.into_iter().any(|tool| tool["name"] == "echo"),
        "{output:?}"
    );
    let output = run(with(&["discover", "--stdio"])).await;
    assert!(output.out.contains("Refrain demo"), "{output:?}");
    assert!(output.out.contains("serve --stdio"), "{output:?}");
}

#[tokio::test]
async fn saved_stdio_call_needs_its_command_again() {
    let files = Files::new();
    let keys = files.keys("fleet.keys").display().to_string();
    let file = files.path("call.json");
    let name = file.display().to_string();
    let serve = ["--", REFRAIN, "serve", "--stdio", "--keys", &keys];
    let call = ["call", "--stdio", "echo", "--save", &name];
    let output = run([&call[..], &serve].concat()).await;
    let again = format!("--stdio -- {REFRAIN} serve --stdio --keys {keys}");
    assert_says(&output, 3, &["echo_input", "refrain resume", &again]);
    let answer = ["--answer", r#"echo_input={"input": "x"}"#];

    // A saved command is never started.
    let output = run([&["resume", &name][..], &answer].concat()).await;
    assert_says(&output, 2, &["--stdio -- COMMAND"]);
    let resume = ["resume", "--stdio", &name];
    let output = run([&resume[..], &answer, &serve].concat()).await;
    assert_prints(&output, "Echo: x\n");
    assert!(!file.exists());
}

#[tokio::test]
async fn command_that_is_not_a_server_is_reported() {
    let output = run(["tools", "--stdio", "--", "/nowhere"]).await;
    assert_says(&output, 4, &["could not start /nowhere"]);
    let boom = [
        "tools",
        "--stdio",
        "--",
        "sh",
        "-c",
        "echo boom >&2; exit 3",
    ];
    assert_says(
        &run(boom).await,
        4,
        &["sh exited before it responded", "exit status: 3", "boom"],
    );
}

/// A server of 2025-11-25 that asks during a call.
const LEGACY: &str = r#"
say() { printf '%s\n' "$1"; }
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case "$line" in
    *'"method":"initialize"'*)
        info='"serverInfo":{"name":"legacy","version":"1"},"capabilities":{"tools":{}}'
        say '{"jsonrpc":"2.0","id":'"$id"',"result":{"protocolVersion":"2025-11-25",'"$info"'}}' ;;
    *'"method":"tools/call"'*)
        schema='{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
        params='{"message":"Who is there?","requestedSchema":'"$schema"'}'
        say '{"jsonrpc":"2.0","id":"e","method":"elicitation/create","params":'"$params"'}'
        read -r answer
        text=$(printf '%s' "$answer" | sed 's/.*"action":"\([a-z]*\)".*/\1/')
        say '{"jsonrpc":"2.0","id":'"$id"',"result":{"content":[{"type":"text","text":"'"$text"'"}]}}' ;;
    *'"method":"notifications'*) ;;
    *) say '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":-32601,"message":"Method not found"}}' ;;
    esac
done
"#;

#[tokio::test]
async fn legacy_server_asks_during_a_call() {
    let serve = ["--", "sh", "-c", LEGACY];
    let call = ["call", "--stdio", "greet"];
    let answer = ["--answer", r#"ask-1={"name": "Ada"}"#];
    let output = run([&call[..], &answer, &serve].concat()).await;
    assert_prints(&output, "accept\n");
    let output = run([&call[..], &serve].concat()).await;
    assert_eq!(output.out, "cancel\n", "{output:?}");
    let parts = [
        r#"tool greet of server "legacy""#,
        "asked and continued without an answer",
        "ask-1  form",
        "Who is there?",
        r#"--answer 'ask-1={"name":"…"}'"#,
    ];
    assert_says(&output, 3, &parts);
}
