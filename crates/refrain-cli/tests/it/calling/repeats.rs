//! Requests that are sent again, and calls whose outcome is unknown.

use super::{assert_says, json};
use crate::support::{FakeServer, Files, Output, Process, Respond, Serve, root, run};
use refrain_testkit::net::FaultProxy;
use refrain_testkit::net::installed::{install, listening};
use refrain_testkit::net::proxy::{CALL, Fault, Plan};
use serde_json::json;
use std::net::SocketAddr;
use tokio::process::Command;

/// The faults after which the server has executed the request.
const LOST: [Fault; 4] = [
    Fault::LoseResponse,
    Fault::CutHead,
    Fault::CutBody,
    Fault::StatusAfter("504 Gateway Timeout"),
];

async fn proxy(
    server: SocketAddr,
    method: &'static str,
    number: usize,
    fault: Fault,
) -> FaultProxy {
    FaultProxy::start(vec![server], Plan::default().fault(method, number, fault)).await
}

/// A server of another SDK.
async fn python(program: &str, script: &str) -> (Process, String, SocketAddr) {
    install().await;
    let mut command = Command::new(root().join(program));
    command.arg(root().join(script)).arg("--http");
    let (process, url) = listening(command).await;
    let address = url.trim_start_matches("http://").trim_end_matches("/mcp");
    let address = address.parse().expect("an address");
    (process, url, address)
}

fn assert_outcome_unknown(output: &Output) {
    let parts = [
        "the outcome is unknown",
        "the tool may have run",
        "find out whether the call had an effect",
    ];
    assert_says(output, 4, &parts);
    assert!(!output.err.contains("again ("), "{output:?}");
    assert_eq!(json(output)["outcome"], "unknown");
}

#[tokio::test]
async fn repeated_call_is_announced() {
    let instance = Serve::new().start().await;
    for fault in LOST {
        let proxy = proxy(instance.address, CALL, 1, fault).await;
        let output = run(["call", &proxy.url, "echo", "text=hello"]).await;
        let parts = [
            "note: sending tools/call echo again (1 of 4): ",
            "; the server recognises the call by its id\n",
        ];
        assert_says(&output, 0, &parts);
        assert_eq!(output.out, "Echo: hello\n");
        assert_eq!(proxy.count(CALL), (2, 2));
    }
    let proxy = proxy(instance.address, "tools/list", 1, Fault::LoseResponse).await;
    let output = run(["tools", &proxy.url]).await;
    let parts = [
        "note: sending tools/list again (1 of 4): ",
        "can be repeated safely\n",
    ];
    assert_says(&output, 0, &parts);
}

#[tokio::test]
async fn repeated_call_of_a_busy_server_is_announced() {
    let server = FakeServer::start(|_| Respond::RetryAfter(503, "0")).await;
    let output = run(["call", &server.url(), "tool", "--json"]).await;
    let note = "note: sending tools/call tool again (4 of 4): the server responded with HTTP status 503: later; \
                the server did not execute the request\n";
    assert_says(&output, 4, &[note]);
    assert_eq!(json(&output)["retries"], json!(4));
    assert_eq!(json(&output).get("outcome"), None);
    assert!(!output.err.contains("outcome"), "{output:?}");
}

/// The server counts its effects.
#[tokio::test]
async fn call_lost_by_a_proxy_has_one_effect_at_a_python_server() {
    let files = Files::new();
    let (_server, url, address) =
        python(".tools/bin/python", "tests/servers/python_server.py").await;
    for (number, fault) in LOST.into_iter().enumerate() {
        // The first command only returns the key of the ask.
        let proxy = proxy(address, CALL, 2, fault).await;
        let answer = r#"answer={"date": "2026-12-24", "guests": 4}"#;
        let file = files.path(&format!("{number}.json")).display().to_string();
        let output = run(["call", &proxy.url, "book_table", "--json"]).await;
        let key = json(&output)["asked"][0]["key"]
            .as_str()
            .expect("a key")
            .to_owned();
        let answer = answer.replacen("answer", &key, 1);
        // The second round of this command books the table.
        let proxy = self::proxy(address, CALL, 2, fault).await;
        let call = [
            "call",
            &proxy.url,
            "book_table",
            "--answer",
            &answer,
            "--save",
            &file,
            "--json",
        ];
        let output = run(call).await;
        assert_outcome_unknown(&output);
        assert_eq!(proxy.count(CALL), (2, 2), "{fault:?}");
        let output = run(["call", &url, "effects"]).await;
        assert_eq!(
            output.out,
            format!("{}\n", number + 1),
            "{fault:?}: {output:?}"
        );
    }
}

#[tokio::test]
async fn call_lost_by_a_proxy_is_sent_once_to_a_legacy_python_server() {
    let program = ".tools/bin/python-legacy";
    let (_server, _, address) = python(program, "tests/servers/legacy_server.py").await;
    for fault in LOST {
        let proxy = proxy(address, CALL, 1, fault).await;
        let output = run(["call", &proxy.url, "add", "a=1", "b=2", "--json"]).await;
        assert_outcome_unknown(&output);
        assert_eq!(proxy.count(CALL), (1, 1), "{fault:?}");
        // The only hint of a saved call is to find out before it is sent again.
        let proxy = self::proxy(address, CALL, 1, fault).await;
        let files = Files::new();
        let file = files.path("call.json").display().to_string();
        let output = run(["call", &proxy.url, "add", "a=1", "b=2", "--save", &file]).await;
        let hint = format!(
            "hint: find out whether the call had an effect; if it had no effect, `refrain resume {file}` sends it again\n"
        );
        assert_says(
            &output,
            4,
            &[
                &hint,
                "note: the connection uses 2025-11-25, whose calls cannot be saved while they wait for an answer\n",
            ],
        );
        assert_eq!(output.err.matches("hint: ").count(), 1, "{output:?}");
    }
}
