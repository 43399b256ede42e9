//! The Rust SDK (rmcp 3.8.0).

mod calls;
mod changes;
mod extras;
mod rounds;
mod user;

use crate::names::assert_complete;
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

/// The timeout of a check.
const CHECK_TIME: Duration = Duration::from_secs(120);

/// The checks that rmcp does not support, with the reason.
const UNSUPPORTED: [(&str, &str); 3] = [
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

/// The location of the server.
enum Target {
    /// An HTTP server at this URL.
    Http(String),
    /// A process that each connection starts.
    Stdio,
}

impl Target {
    /// Opens a connection for a user.
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
        client.expect("discovery succeeds")
    }
}

type Check = fn(&Target) -> Pin<Box<dyn Future<Output = ()> + '_>>;

/// Maps names of checks to functions.
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
    let names: Vec<&str> = checks.iter().map(|(name, _)| *name).collect();
    assert_complete(&names, &UNSUPPORTED);
    for (name, check) in checks {
        println!("{name}");
        timeout(CHECK_TIME, check(target))
            .await
            .expect("the check ends in time");
    }
}

#[tokio::test]
async fn rmcp_passes_over_http() {
    let server = HttpServer::start().await;
    check_all(&Target::Http(server.url.clone())).await;
}

#[tokio::test]
async fn rmcp_passes_over_stdio() {
    check_all(&Target::Stdio).await;
}

/// The params of a tool call.
fn tool(name: impl Into<String>, arguments: &Value) -> CallToolRequestParams {
    let arguments = arguments
        .as_object()
        .expect("arguments are an object")
        .clone();
    CallToolRequestParams::new(name.into()).with_arguments(arguments)
}

/// Calls a tool and completes all rounds.
async fn call(client: &Client, name: impl Into<String>, arguments: Value) -> CallToolResult {
    let result = client.call_tool(tool(name, &arguments)).await;
    result.expect("the call has a result")
}

/// The text of a successful result with one block.
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

/// A part of a message as JSON.
fn wire(part: impl serde::Serialize) -> Value {
    serde_json::to_value(part).expect("the part serializes")
}

/// The data of an error with this code.
#[track_caller]
fn refused<T: Debug>(result: Result<T, ServiceError>, code: ErrorCode) -> Value {
    match result {
        Err(ServiceError::McpError(error)) => {
            assert_eq!(error.code, code, "{error:?}");
            error.data.unwrap_or_default()
        }
        other => panic!("expected the error {code:?}: {other:?}"),
    }
}

/// No arguments.
fn none() -> Value {
    json!({})
}
