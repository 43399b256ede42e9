//! The Inspector's command line (@modelcontextprotocol/inspector 2.12.0), a process for each command.

mod checks;
mod mcpdo;

use crate::names::CHECKS;
use crate::scripts::install;
use crate::server::{HttpServer, PROGRAM, STDIO};
use mcpdo::Mcpdo;

/// What of the list the command line cannot do, and why.
const CANNOT: [(&str, &str); 21] = [
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

async fn check_all(target: &[&str]) {
    install().await;
    let checks = checks::all();
    let done: Vec<&str> = checks.iter().map(|(name, _)| *name).collect();
    let cannot = |name: &&str| CANNOT.iter().any(|(cannot, _)| cannot == name);
    let wanted: Vec<&str> = CHECKS.into_iter().filter(|name| !cannot(name)).collect();
    assert_eq!(done, wanted);
    let mcpdo = Mcpdo::start().await;
    mcpdo.connect(target).await;
    for (name, check) in checks {
        println!("{name}");
        check(&mcpdo).await;
    }
    mcpdo.stop().await;
}

#[tokio::test]
async fn inspector_over_http() {
    let server = HttpServer::start().await;
    check_all(&[&server.url]).await;
}

/// The Inspector starts the server itself.
#[tokio::test]
async fn inspector_over_stdio() {
    let command = ["--", PROGRAM];
    check_all(&[&command[..], &STDIO].concat()).await;
}
