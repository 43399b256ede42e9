//! The official conformance suite against an rmcp server behind the adapter.

mod server;

use refrain::server::{AllowedHosts, ServerBuilder, serve as serve_http};
use refrain_rmcp::{Adapter, serve};
use refrain_testkit::net::installed::{root, run};
use server::Conformance;
use std::future::pending;
use tokio::net::TcpListener;
use tokio::process::Command;

/// The timeout of the suite in seconds, including the installation.
const SUITE_SECONDS: &str = "1200";

/// The scenarios that the revision requires. The entries of other scenarios are not offered.
const SCENARIOS: [&str; 37] = [
    "server-stateless",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
    "caching",
    "completion-complete",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "resources-list",
    "resources-read-text",
    "resources-read-binary",
    "resources-templates-read",
    "sep-2164-resource-not-found",
    "prompts-list",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-embedded-resource",
    "prompts-get-with-image",
    "input-required-result-basic-elicitation",
    "input-required-result-basic-sampling",
    "input-required-result-basic-list-roots",
    "input-required-result-request-state",
    "input-required-result-multiple-input-requests",
    "input-required-result-multi-round",
    "input-required-result-missing-input-response",
    "input-required-result-non-tool-request",
    "input-required-result-result-type",
    "input-required-result-unsupported-methods",
    "input-required-result-tampered-state",
    "input-required-result-capability-check",
    "input-required-result-ignore-extra-params",
    "input-required-result-validate-input",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn required_scenarios_pass_in_the_live_home() {
    run_suite(serve(Conformance)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn required_scenarios_pass_in_the_replay_home() {
    let tools = server::TOOLS.map(|(name, _)| name);
    run_suite(Adapter::new(Conformance).replay(tools).into_builder()).await;
}

async fn run_suite(builder: ServerBuilder) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let server = builder.build().expect("a server");
    tokio::spawn(serve_http(
        listener,
        server,
        AllowedHosts::local(),
        pending(),
    ));
    let mut suite = Command::new(root().join("scripts/conformance"));
    suite.arg(url).args(SCENARIOS);
    run(SUITE_SECONDS, &suite).await;
}
