//! How the client is told what to do, and what it says when that makes no sense.

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

fn client(url: &str, environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_refrain-conformance"))
        .args(["client", url])
        .env_remove("MCP_CONFORMANCE_SCENARIO")
        .env_remove("MCP_CONFORMANCE_CONTEXT")
        .env_remove("MCP_CONFORMANCE_PROTOCOL_VERSION")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the client could not be started")
}

/// A URL at which nobody listens.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("no port is free");
    let address = listener.local_addr().expect("the port has an address");
    format!("http://{address}/mcp")
}

fn assert_fails(output: &Output, code: i32, reason: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(reason), "{stderr}");
    assert!(output.stdout.is_empty());
}

#[test]
fn an_unknown_scenario_is_named() {
    let output = client(
        &nowhere(),
        &[("MCP_CONFORMANCE_SCENARIO", "auth/of-tomorrow")],
    );
    assert_fails(&output, 2, "auth/of-tomorrow");
}

#[test]
fn a_scenario_is_needed() {
    assert_fails(&client(&nowhere(), &[]), 2, "--scenario");
}

#[test]
fn a_revision_nobody_knows_is_refused_and_those_known_are_named() {
    let output = client(
        &nowhere(),
        &[
            ("MCP_CONFORMANCE_SCENARIO", "tools_call"),
            ("MCP_CONFORMANCE_PROTOCOL_VERSION", "2025-11-26"),
        ],
    );
    assert_fails(&output, 2, "invalid value '2025-11-26'");
    assert_fails(&output, 2, "[possible values: 2026-07-28, 2025-11-25]");
}

#[test]
fn a_server_that_is_not_there_is_a_failure() {
    let output = client(&nowhere(), &[("MCP_CONFORMANCE_SCENARIO", "tools_call")]);
    assert_fails(&output, 1, "could not connect to");
}

#[test]
fn a_context_that_says_nothing_is_a_failure() {
    let output = client(
        &nowhere(),
        &[
            ("MCP_CONFORMANCE_SCENARIO", "http-custom-headers"),
            ("MCP_CONFORMANCE_CONTEXT", "{"),
        ],
    );
    assert_fails(&output, 1, "MCP_CONFORMANCE_CONTEXT");
}
