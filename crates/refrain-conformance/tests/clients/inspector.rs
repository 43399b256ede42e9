//! The command line of the MCP Inspector (@modelcontextprotocol/inspector 2.12.0), one process for
//! each command.

mod calls;
mod extras;
mod rounds;

use crate::names::assert_complete;
use crate::server::{HttpServer, PROGRAM, STDIO};
use refrain_testkit::net::installed::install;
use refrain_testkit::net::mcpdo::Mcpdo;
use serde_json::Value;
use std::collections::BTreeSet;
use std::pin::Pin;

/// The checks that the command line does not support, with the reason.
const UNSUPPORTED: [(&str, &str); 21] = [
    (
        "tools/call: unknown tool",
        "it looks the tool up in the list first",
    ),
    (
        "tools/call: many at once",
        "a connection does one thing at a time",
    ),
    (
        "progress and logs while the call runs",
        "it shows no progress",
    ),
    ("progress: none without a token", "it shows no progress"),
    ("logs: none without a level", "it always asks for a level"),
    (
        "cancel a call that has sent something",
        "a call goes on when its command is ended",
    ),
    (
        "cancel a call that has sent nothing",
        "a call goes on when its command is ended",
    ),
    ("ask: the model", "it has no model"),
    ("ask: three things in one round", "it has no model"),
    ("ask: after progress", "it shows no progress"),
    ("rounds by hand", "it runs the rounds by itself"),
    ("a changed state is refused", "it runs the rounds by itself"),
    ("pages: a wrong cursor is refused", "it takes no cursor"),
    (
        "x-mcp-header: of a tool that was not listed",
        "it looks the tool up in the list first",
    ),
    ("subscriptions: tools", "it shows no change of a list"),
    ("subscriptions: prompts", "it shows no change of a list"),
    ("subscriptions: resources", "it shows no change of a list"),
    (
        "subscriptions: only what was asked for",
        "it shows no change of a list",
    ),
    ("subscriptions: two at once", "a connection has one"),
    (
        "subscriptions: ended by the client",
        "it goes on listening for changes of the lists",
    ),
    (
        "subscriptions: ended by the server",
        "it shows no end, and listens again",
    ),
];

type Check = fn(&Mcpdo) -> Pin<Box<dyn Future<Output = ()> + '_>>;

/// Maps names of checks to functions.
macro_rules! checks {
    ($($name:literal: $check:path,)*) => {
        vec![$(($name, (|mcpdo| Box::pin($check(mcpdo))) as $crate::inspector::Check),)*]
    };
}
use checks;

async fn check_all(target: &[&str]) {
    install().await;
    let checks = [calls::checks(), rounds::checks(), extras::checks()].concat();
    let names: Vec<&str> = checks.iter().map(|(name, _)| *name).collect();
    assert_complete(&names, &UNSUPPORTED);
    let mcpdo = Mcpdo::start().await;
    mcpdo.connect(target).await;
    for (name, check) in checks {
        println!("{name}");
        check(&mcpdo).await;
    }
    mcpdo.stop().await;
}

#[tokio::test]
async fn inspector_passes_over_http() {
    let server = HttpServer::start().await;
    check_all(&[&server.url]).await;
}

/// The Inspector starts the server.
#[tokio::test]
async fn inspector_passes_over_stdio() {
    let command = ["--", PROGRAM];
    check_all(&[&command[..], &STDIO].concat()).await;
}

/// Runs a command that must succeed, and returns its output.
async fn run(mcpdo: &Mcpdo, args: &[&str]) -> Value {
    let output = mcpdo.run(args).await;
    assert_eq!(output.status, Some(0), "{args:?}: {output:?}");
    output.out
}

/// Runs a command that must fail, and returns the reason.
async fn run_failing(mcpdo: &Mcpdo, args: &[&str]) -> String {
    let output = mcpdo.run(args).await;
    assert_ne!(output.status, Some(0), "{args:?}: {output:?}");
    output.error
}

async fn call(mcpdo: &Mcpdo, tool: &str) -> Value {
    run(mcpdo, &["tools/call", tool]).await
}

async fn call_with(mcpdo: &Mcpdo, tool: &str, arguments: &Value) -> Value {
    let arguments = arguments.to_string();
    run(mcpdo, &["tools/call", tool, "--tool-args-json", &arguments]).await
}

/// The text of a successful result with one block.
#[track_caller]
fn final_text(result: &Value) -> &str {
    assert_eq!(result["isError"], false, "{result}");
    let [block] = &**result["content"].as_array().expect("an array of content") else {
        panic!("expected one block: {result}");
    };
    block["text"].as_str().expect("a text block")
}

/// The entries of a list. Checks that their names are unique.
async fn list(mcpdo: &Mcpdo, method: &str, part: &str, key: &str) -> Vec<Value> {
    let listed = run(mcpdo, &[method]).await;
    let entries = listed[part]
        .as_array()
        .expect("an array of entries")
        .clone();
    let names: BTreeSet<_> = entries.iter().map(|entry| entry[key].as_str()).collect();
    assert_eq!(names.len(), entries.len(), "{listed}");
    entries
}

async fn tools(mcpdo: &Mcpdo) -> Vec<Value> {
    list(mcpdo, "tools/list", "tools", "name").await
}

/// The entry with this name.
#[track_caller]
fn find<'a>(entries: &'a [Value], key: &str, name: &str) -> &'a Value {
    let found = entries.iter().find(|entry| entry[key] == name);
    found.unwrap_or_else(|| panic!("{name} is not listed"))
}

async fn read(mcpdo: &Mcpdo, uri: &str) -> Value {
    run(mcpdo, &["resources/read", uri]).await
}
