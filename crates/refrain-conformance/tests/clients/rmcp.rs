//! The Rust SDK (rmcp 3.8.0), driven from here.

mod calls;
mod changes;
mod extras;
mod rounds;
mod user;

use crate::names::CHECKS;
use crate::server::{HttpServer, PROGRAM, STDIO};
use ::rmcp::model::{CallToolRequestParams, CallToolResult, ErrorCode, ProtocolVersion};
use ::rmcp::service::{RoleClient, RunningService, ServiceError};
use ::rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use ::rmcp::{ClientLifecycleMode, ClientServiceExt};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;
use user::User;

/// Time for one check.
const CHECK_TIME: Duration = Duration::from_secs(120);

/// What of the list rmcp cannot do, and why.
const CANNOT: [(&str, &str); 3] = [
    (
        "progress: none without a token",
        "it sends a token with every request",
    ),
    (
        "ask: a URL",
        "it wants an elicitationId, which this revision does not have",
    ),
    (
        "x-mcp-header: of a tool that was not listed",
        "it does not list the tools and call again",
    ),
];

type Client = RunningService<RoleClient, User>;

/// Where the server is.
enum Target {
    /// At this URL.
    Http(String),
    /// In a process that each connection starts.
    Stdio,
}

impl Target {
    /// A connection of its own, for a user to be asked through.
    async fn connect(&self, user: User) -> Client {
        let lifecycle = ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        };
        let client = match self {
            Self::Http(url) => {
                let transport = StreamableHttpClientTransport::from_uri(url.as_str());
                user.serve_with_lifecycle(transport, lifecycle).await
            }
            Self::Stdio => {
                let mut command = Command::new(PROGRAM);
                command.args(STDIO);
                let transport = TokioChildProcess::new(command).expect("the server starts");
                user.serve_with_lifecycle(transport, lifecycle).await
            }
        };
        client.expect("the server can be discovered")
    }
}

type Check = fn(&Target) -> Pin<Box<dyn Future<Output = ()> + '_>>;

/// Lists checks by name, each with the function that does it.
macro_rules! checks {
    ($($name:literal: $check:path,)*) => {
        vec![$(($name, (|target| Box::pin($check(target))) as $crate::rmcp::Check),)*]
    };
}
use checks;

async fn check_all(target: &Target) {
    let checks = [
        calls::checks(),
        rounds::checks(),
        extras::checks(),
        changes::checks(),
    ];
    let checks = checks.concat();
    let done: Vec<&str> = checks.iter().map(|(name, _)| *name).collect();
    let cannot = |name: &&str| CANNOT.iter().any(|(cannot, _)| cannot == name);
    let wanted: Vec<&str> = CHECKS.into_iter().filter(|name| !cannot(name)).collect();
    assert_eq!(done, wanted);
    for (name, check) in checks {
        println!("{name}");
        timeout(CHECK_TIME, check(target))
            .await
            .expect("the check ends by itself");
    }
}

#[tokio::test]
async fn rmcp_over_http() {
    let server = HttpServer::start().await;
    check_all(&Target::Http(server.url.clone())).await;
}

#[tokio::test]
async fn rmcp_over_stdio() {
    check_all(&Target::Stdio).await;
}

/// A call of a tool.
fn tool(name: impl Into<String>, arguments: &Value) -> CallToolRequestParams {
    let arguments = arguments
        .as_object()
        .expect("arguments are an object")
        .clone();
    CallToolRequestParams::new(name.into()).with_arguments(arguments)
}

/// Calls a tool, through all its rounds.
async fn call(client: &Client, name: impl Into<String>, arguments: Value) -> CallToolResult {
    let result = client.call_tool(tool(name, &arguments)).await;
    result.expect("the call has a result")
}

/// The one text of a result that is none of an error.
#[track_caller]
fn final_text(result: CallToolResult) -> String {
    assert_ne!(result.is_error, Some(true), "{result:?}");
    text(result)
}

#[track_caller]
fn text(result: CallToolResult) -> String {
    let [block] = <[_; 1]>::try_from(result.content).expect("there is one block");
    let text = block.as_text().expect("the block is a text");
    text.text.clone()
}

/// What is on the wire of a part of a message.
fn wire(part: impl serde::Serialize) -> Value {
    serde_json::to_value(part).expect("what was read can be written")
}

/// The data of the error a call ends with, which must have this code.
#[track_caller]
fn refused<T: Debug>(result: Result<T, ServiceError>, code: ErrorCode) -> Value {
    match result {
        Err(ServiceError::McpError(error)) => {
            assert_eq!(error.code, code, "{error:?}");
            error.data.unwrap_or_default()
        }
        other => panic!("{other:?} is not the error {code:?}"),
    }
}

/// No arguments.
fn none() -> Value {
    json!({})
}
