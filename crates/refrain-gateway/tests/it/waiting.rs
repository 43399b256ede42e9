//! Calls that wait for people do not hold up other calls.

use crate::http_backend;
use crate::support::{Ledger, Running, answer, asked, backend, completed, text};
use futures_util::future::join_all;
use refrain::client::Client;
use refrain_gateway::{BackendTable, GatewayConfig, GatewayTable};
use serde_json::json;
use std::time::{Duration, Instant};

const WAITING: usize = 20;
const UNRELATED: usize = 50;

/// Makes unrelated calls, one after the other, and returns the 99th percentile of their times. The
/// first call is not counted, because it may have to start a process.
async fn unrelated_calls(client: &Client) -> Duration {
    let mut times = Vec::new();
    for number in 0..=UNRELATED {
        let begun = Instant::now();
        let sent = format!("call {number}");
        assert_eq!(text(client, "echo", json!({"text": sent})).await, sent);
        times.push(begun.elapsed());
    }
    times.remove(0);
    times.sort_unstable();
    times[(UNRELATED * 99).div_ceil(100) - 1]
}

async fn check(kind: &str, backend: BackendTable) {
    let config = GatewayConfig {
        gateway: GatewayTable {
            connections: 64,
            connections_each: 64,
            ..GatewayTable::default()
        },
        ..GatewayConfig::single(
            "tested",
            BackendTable {
                connections: 64,
                ..backend
            },
        )
    };
    let running = Running::start(&config).await;
    let client = running.client().await;
    let idle = unrelated_calls(&client).await;
    let subjects: Vec<String> = (0..WAITING).map(|number| format!("cup {number}")).collect();
    let waiting = subjects
        .iter()
        .map(|subject| asked(&client, "ask", json!({"subject": subject})));
    let waiting = join_all(waiting).await;
    let busy = unrelated_calls(&client).await;
    let ratio = busy.as_secs_f64() / idle.as_secs_f64();
    println!("{kind}: p99 {idle:?} idle, {busy:?} while {WAITING} calls wait, ratio {ratio:.2}");
    for (pending, subject) in waiting.into_iter().zip(&subjects) {
        let done = completed(answer(&client, pending, "Ada").await);
        assert_eq!(done, format!("{subject} for Ada"));
    }
    running.stop().await;
}

#[tokio::test]
async fn waiting_calls_over_stdio_leave_others_alone() {
    let ledger = Ledger::new();
    check("stdio", backend(&ledger)).await;
    assert_eq!(ledger.count("ask"), WAITING);
}

#[tokio::test]
async fn waiting_calls_over_http_leave_others_alone() {
    let server = http_backend::start().await;
    check("http", http_backend::at(&server)).await;
}
