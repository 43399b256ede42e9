//! The arguments and error messages of `refrain-conformance client`.

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
        .expect("the client starts")
}

/// A URL without a server.
fn unused_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
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
fn unknown_scenario_is_rejected() {
    let output = client(
        &unused_url(),
        &[("MCP_CONFORMANCE_SCENARIO", "auth/of-tomorrow")],
    );
    assert_fails(&output, 2, "auth/of-tomorrow");
}

#[test]
fn missing_scenario_is_rejected() {
    assert_fails(&client(&unused_url(), &[]), 2, "--scenario");
}

#[test]
fn unknown_revision_error_lists_the_known_ones() {
    let output = client(
        &unused_url(),
        &[
            ("MCP_CONFORMANCE_SCENARIO", "tools_call"),
            ("MCP_CONFORMANCE_PROTOCOL_VERSION", "2025-11-26"),
        ],
    );
    assert_fails(&output, 2, "invalid value '2025-11-26'");
    assert_fails(&output, 2, "[possible values: 2026-07-28, 2025-11-25]");
}

#[test]
fn unreachable_server_is_an_error() {
    let output = client(&unused_url(), &[("MCP_CONFORMANCE_SCENARIO", "tools_call")]);
    assert_fails(&output, 1, "could not connect to");
}

#[test]
fn malformed_context_is_an_error() {
    let output = client(
        &unused_url(),
        &[
            ("MCP_CONFORMANCE_SCENARIO", "http-custom-headers"),
            ("MCP_CONFORMANCE_CONTEXT", "{"),
        ],
    );
    assert_fails(&output, 1, "MCP_CONFORMANCE_CONTEXT");
}
