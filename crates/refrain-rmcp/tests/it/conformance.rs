//! The official conformance suite against an rmcp server behind the adapter.

mod server;

use refrain::server::{AllowedHosts, serve as serve_http};
use refrain_rmcp::{Adapter, serve};
use refrain_testkit::net::tools::run_tool;
use server::Conformance;
use std::ffi::OsStr;
use tokio::net::TcpListener;

/// The timeout of one scenario, in seconds.
const SCENARIO_SECONDS: &str = "120";

/// The scenarios of calls: tools, prompts, resources, completion, rounds.
const SCENARIOS: [&str; 33] = [
    "server-stateless",
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
    "completion-complete",
    "input-required-result-basic-elicitation",
    "input-required-result-basic-sampling",
    "input-required-result-basic-list-roots",
    "input-required-result-request-state",
    "input-required-result-multiple-input-requests",
    "input-required-result-multi-round",
    "input-required-result-missing-input-response",
    "input-required-result-non-tool-request",
    "input-required-result-result-type",
    "input-required-result-tampered-state",
    "input-required-result-capability-check",
    "input-required-result-ignore-extra-params",
    "input-required-result-validate-input",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_pass_in_the_live_home() {
    run(serve(Conformance::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_pass_in_the_replay_home() {
    let tools = server::TOOLS.map(|(name, _)| name);
    run(Adapter::new(Conformance::default()).replay(tools).into_builder()).await;
}

async fn run(builder: refrain::server::ServerBuilder) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let server = builder.build().expect("a server");
    let hosts = AllowedHosts::local();
    tokio::spawn(serve_http(listener, server, hosts, std::future::pending()));
    let folder = tempfile::tempdir().expect("a folder");
    let none = folder.path().join("none.yml");
    std::fs::write(&none, "server: []\n").expect("a file");
    for scenario in SCENARIOS {
        let arguments: [&OsStr; 9] = [
            "server".as_ref(),
            "--url".as_ref(),
            url.as_ref(),
            "--scenario".as_ref(),
            scenario.as_ref(),
            "--expected-failures".as_ref(),
            none.as_ref(),
            "-o".as_ref(),
            folder.path().as_ref(),
        ];
        run_tool(SCENARIO_SECONDS, &[".tools/bin/conformance"], &arguments).await;
    }
}
