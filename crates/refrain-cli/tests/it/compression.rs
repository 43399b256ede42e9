//! Proxies that compress, and a client that offers gzip: each event reaches the client at once.

use crate::relay::free_addresses;
use crate::support::reverse_proxy::{Recipe, start_caddy};
use crate::support::{Files, Instance, Process, Serve, until};
use refrain_testkit::net::legacy::{Session, call, filled_in};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::process::Command;

/// No keep-alives: they could flush an event that a proxy holds back.
const SETTINGS: &str = "[limits]\nkeep_alive_ms = 600000\n";

const ASK: &str = "elicitation/create";

async fn instance(files: &Files) -> Instance {
    let config = files.write("config.toml", SETTINGS);
    Serve::new().config(&config).start().await
}

/// Makes a call that asks, with curl, which offers gzip and decompresses what it gets.
async fn asks(address: SocketAddr) {
    let session = Session::open_with(address, "2025-11-25", &json!({"elicitation": {}}), &[]).await;
    let weather = call(1, "get_weather", json!({"location": "Oslo"}));
    let mut curl = Command::new("curl");
    curl.args(["-sSN", "--compressed", "--max-time", "100"])
        .args(["-H", "content-type: application/json"])
        .args(["-H", "accept: application/json, text/event-stream"])
        .args(["-H", &format!("mcp-session-id: {}", session.id)])
        .args(["-d", &weather.to_string()])
        .arg(format!("http://{address}/mcp"));
    let (mut curl, line) = Process::start(curl, ASK, None).await;
    // A client passes an event on after the empty line behind it.
    let has_ended = || {
        let lines = curl.log.lines();
        let mut rest = lines.iter().skip_while(|line| !line.contains(ASK));
        rest.any(String::is_empty)
    };
    until("the end of the event with the ask", has_ended).await;
    let ask: Value = serde_json::from_str(line.trim_start_matches("data: ")).expect("JSON");
    let answer = session.post(&filled_in(&ask, "octocat")).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    curl.log.wait_for("Current weather in Oslo", 1).await;
    assert!(curl.ended().await.success());
}

#[tokio::test]
async fn haproxy_that_compresses_passes_events_on_at_once() {
    let files = Files::new();
    let instance = instance(&files).await;
    let [address] = free_addresses();
    let config = format!(
        "defaults\n    mode http\n    option http-no-delay\n    timeout connect 5s\n    timeout client 300s\n    \
         timeout server 300s\n    compression algo gzip\n    compression type text/event-stream application/json\n\
         listen mcp\n    bind {address}\n    server one {}\n",
        instance.address
    );
    let _proxy = Recipe::from(config.as_str())
        .start_haproxy(&files, address)
        .await;
    asks(address).await;
}

#[tokio::test]
async fn nginx_that_compresses_passes_events_on_at_once() {
    let files = Files::new();
    let instance = instance(&files).await;
    let [address] = free_addresses();
    let config = format!(
        "events {{ }}\nhttp {{\n    gzip on;\n    gzip_proxied any;\n    gzip_min_length 0;\n    \
         gzip_types text/event-stream application/json;\n    server {{ listen {address}; location / {{ \
         proxy_pass http://{}; proxy_read_timeout 300s; }} }}\n}}\n",
        instance.address
    );
    let _proxy = Recipe::from(config.as_str()).start_nginx(&files).await;
    asks(address).await;
}

/// Debian's Caddy 2.6 does not know `no-transform`, so it must be told to compress JSON only.
#[tokio::test]
async fn caddy_that_compresses_json_passes_events_on_at_once() {
    let files = Files::new();
    let instance = instance(&files).await;
    let [address] = free_addresses();
    let config = format!(
        "{{\n    admin off\n    auto_https off\n}}\nhttp://{address} {{\n    encode {{\n        gzip\n        \
         minimum_length 1\n        match header Content-Type application/json*\n    }}\n    reverse_proxy {}\n}}\n",
        instance.address
    );
    let _proxy = start_caddy(&files, &config).await;
    asks(address).await;
}
