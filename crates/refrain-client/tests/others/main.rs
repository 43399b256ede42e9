//! The client against servers written with other SDKs, over HTTP and over standard input and output.
//!
//! The servers are described in `tests/servers/README.md`. `scripts/tools` installs their dependencies; without them, the
//! tests fail.

mod everything;
mod lists;
mod restaurant;
mod server;
mod user;

use refrain_testkit::net::sdk_programs::{
    EVERYTHING, FASTMCP, LEGACY_NPM, LEGACY_PYTHON, NPM, PYTHON, Program, RMCP,
};
use server::Target;

/// The expected properties of a restaurant server.
struct Expected {
    /// The negotiated revision.
    revision: &'static str,
    /// The name that the server reports.
    name: &'static str,
    /// Whether it asks during a call, so that calls cannot be stored.
    asks_inline: bool,
}

impl Expected {
    const fn modern(name: &'static str) -> Self {
        Self {
            revision: "2026-07-28",
            name,
            asks_inline: false,
        }
    }

    const fn legacy(name: &'static str) -> Self {
        Self {
            revision: "2025-11-25",
            name,
            asks_inline: true,
        }
    }
}

const NPM_EXPECTED: Expected = Expected::modern("npm-restaurant");
const PYTHON_EXPECTED: Expected = Expected::modern("python-restaurant");
const RMCP_EXPECTED: Expected = Expected::modern("rmcp-restaurant");
const FASTMCP_EXPECTED: Expected = Expected::modern("fastmcp-restaurant");
const LEGACY_EXPECTED: Expected = Expected::legacy("legacy-restaurant");
const LEGACY_NPM_EXPECTED: Expected = Expected::legacy("legacy-npm-restaurant");

async fn over_http(program: Program, expected: &Expected) {
    let server = Target::listen(program, "--http").await;
    restaurant::check_all(&server, expected).await;
}

async fn over_stdio(program: Program, expected: &Expected) {
    restaurant::check_all(&Target::Stdio(program), expected).await;
}

#[tokio::test]
async fn npm_over_http() {
    over_http(NPM, &NPM_EXPECTED).await;
}

#[tokio::test]
async fn npm_over_stdio() {
    over_stdio(NPM, &NPM_EXPECTED).await;
}

#[tokio::test]
async fn python_over_http() {
    over_http(PYTHON, &PYTHON_EXPECTED).await;
}

#[tokio::test]
async fn python_over_stdio() {
    over_stdio(PYTHON, &PYTHON_EXPECTED).await;
}

#[tokio::test]
async fn rmcp_over_http() {
    over_http(RMCP, &RMCP_EXPECTED).await;
}

#[tokio::test]
async fn rmcp_over_stdio() {
    over_stdio(RMCP, &RMCP_EXPECTED).await;
}

#[tokio::test]
async fn fastmcp_over_http() {
    over_http(FASTMCP, &FASTMCP_EXPECTED).await;
}

#[tokio::test]
async fn fastmcp_over_stdio() {
    over_stdio(FASTMCP, &FASTMCP_EXPECTED).await;
}

#[tokio::test]
async fn legacy_npm_over_http() {
    over_http(LEGACY_NPM, &LEGACY_NPM_EXPECTED).await;
}

#[tokio::test]
async fn legacy_npm_over_stdio() {
    over_stdio(LEGACY_NPM, &LEGACY_NPM_EXPECTED).await;
}

#[tokio::test]
async fn legacy_over_http() {
    over_http(LEGACY_PYTHON, &LEGACY_EXPECTED).await;
}

#[tokio::test]
async fn legacy_over_http_sse() {
    let server = Target::listen(LEGACY_PYTHON, "--sse").await;
    restaurant::check_all(&server, &LEGACY_EXPECTED).await;
}

#[tokio::test]
async fn legacy_over_stdio() {
    over_stdio(LEGACY_PYTHON, &LEGACY_EXPECTED).await;
}

#[tokio::test]
async fn lists_of_everything_are_kept_as_sent() {
    lists::check_kept(EVERYTHING).await;
}

#[tokio::test]
async fn lists_of_python_are_kept_as_sent() {
    lists::check_kept(PYTHON).await;
}

#[tokio::test]
async fn lists_of_legacy_are_kept_as_sent() {
    lists::check_kept(LEGACY_PYTHON).await;
}
