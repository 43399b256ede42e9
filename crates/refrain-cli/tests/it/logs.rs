//! Log events, log formats, and the absence of secrets.

use crate::support::terminal::Terminal;
use crate::support::{BackendLedger, Call, Client, Files, Instance, Reply, Serve, within};
use refrain_testkit::net::Connection;
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Causes many kinds of log events, and returns the secrets that must not be logged.
async fn cause_events(instance: &mut Instance, keys: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(keys).expect("the key file can be read");
    let secret = text.split_whitespace().next_back().expect("a key");
    let mut secrets = vec![secret.to_owned(), "alice-alice-alice".into()];
    let alice = Client::new(instance.address).with_bearer("alice-alice-alice");
    let mut call = Call::order("lamp");
    // Two rounds are handed on, the third one asks.
    for _ in 0..3 {
        alice.round(&mut call).await;
        secrets.extend(call.token.clone());
    }
    call.answer("confirm_order", &json!({"confirm": true}));
    let mut stolen = call.clone();
    stolen.arguments = json!({"item": "yacht"});
    let refused = alice.round(&mut stolen).await;
    assert!(matches!(refused, Reply::Refused { .. }), "{refused:?}");
    let done = alice.round(&mut call).await;
    assert!(matches!(done, Reply::Done(_)), "{done:?}");
    let stranger = Client::new(instance.address).with_bearer("carol-carol-carol");
    stranger.round(&mut call).await;
    secrets.push("carol-carol-carol".into());
    // The end of a connection with malformed HTTP is logged, too.
    let mut garbage = Connection::open(instance.address).await;
    let bytes = b"POST mcp\r\nauthorization: Bearer alice-alice-alice\r\n\r\n";
    garbage.write(bytes).await;
    instance.log.wait_for("connection failed", 1).await;
    let mut sum = Call::sum(3, 0);
    assert_eq!(alice.round(&mut sum).await, Reply::HandedOn);
    secrets.extend(sum.token.clone());
    instance.reload("keys reloaded").await;
    std::fs::write(keys, format!("00000000 minting {secret}\n")).expect("a key file");
    instance.reload("failed to reload keys").await;
    instance.stop().await;
    secrets
}

async fn lines_and_secrets(format: &str) -> (Vec<String>, Vec<String>) {
    let files = Files::new();
    let config = "[limits]\nshed_above = 0\ndrain_grace_ms = 0\n";
    let config = files.write("config.toml", config);
    let keys = files.keys("fleet.keys");
    let tokens = files.write("callers.txt", "alice alice-alice-alice\n");
    let serve = Serve::new().config(&config).keys(&keys).tokens(&tokens);
    let serve = serve.env("RUST_LOG", "trace").args(["--log", format]);
    let mut instance = serve.start().await;
    let secrets = cause_events(&mut instance, &keys).await;
    (instance.log.lines(), secrets)
}

/// Checks that no line contains a part of a secret.
fn assert_no_secrets(lines: &[String], secrets: &[String]) {
    assert_eq!(secrets.len(), 7);
    for line in lines {
        for secret in secrets {
            // The start of a token is the id of its key, which is not secret.
            let part = &secret[secret.len().saturating_sub(24)..];
            assert!(!line.contains(part), "{part:?} is in the log: {line}");
        }
    }
}

#[tokio::test]
async fn text_log_has_no_secrets() {
    let (lines, secrets) = lines_and_secrets("text").await;
    let text = lines.join("\n");
    for expected in ["token rejected", "handed on", "draining", "DEBUG"] {
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
    assert!(!text.contains('\u{1b}'), "colours in a file: {text}");
    assert_no_secrets(&lines, &secrets);
}

#[tokio::test]
async fn json_log_is_json_without_secrets() {
    let (lines, secrets) = lines_and_secrets("json").await;
    assert_no_secrets(&lines, &secrets);
    let mut messages = Vec::new();
    for line in &lines {
        let parsed: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(parsed["level"].is_string() && parsed["timestamp"].is_string());
        messages.extend(parsed["fields"]["message"].as_str().map(str::to_owned));
    }
    for expected in ["token rejected", "flow handed on", "draining"] {
        assert!(messages.iter().any(|m| m == expected), "no {expected:?}");
    }
}

#[tokio::test]
async fn failed_start_is_logged_as_json() {
    let taken = Serve::new().start().await;
    let address = taken.address.to_string();
    let serve = Serve::without_address().args(["--log", "json", "--listen", &address]);
    let log = serve.fails().await;
    let last = log.lines().last().expect("a line");
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    let last: Value = serde_json::from_str(last).expect("valid JSON");
    let error = last["fields"]["error"].as_str().expect("an error");
    assert!(
        error.starts_with(&format!("cannot listen on {address}")),
        "{error}"
    );
}

/// The event has the facts of the round, but no arguments and answers.
#[tokio::test]
async fn each_round_logs_one_event() {
    let files = Files::new();
    let tokens = files.write("callers.txt", "alice alice-alice-alice\n");
    let serve = Serve::new().tokens(&tokens).args(["--log", "json"]);
    let instance = serve.env("RUST_LOG", "trace").start().await;
    let alice = Client::new(instance.address).with_bearer("alice-alice-alice");
    let finished = alice.finish(Call::weather("Oslo-in-Norway")).await;
    assert!(matches!(finished.reply, Reply::Done(_)), "{finished:?}");
    let none = alice.round(&mut Call::new("no-such-tool", json!({}))).await;
    assert!(matches!(none, Reply::Refused { .. }), "{none:?}");

    let odd = json!({"location": ["Oslo-in-Norway"]});
    let invalid = alice.round(&mut Call::new("get_weather", odd)).await;
    assert!(format!("{invalid:?}").contains("Oslo-in-Norway"));

    instance.log.wait_for("round ended", 4).await;
    let events: Vec<Value> = instance
        .log
        .lines()
        .iter()
        .filter(|line| line.contains("round ended"))
        .map(|line| serde_json::from_str(line).expect("valid JSON"))
        .collect();
    let expected = [
        ("get_weather", json!(1), "input_required"),
        ("get_weather", json!(2), "complete"),
        ("", Value::Null, "invalid_params"),
        ("get_weather", Value::Null, "tool_error"),
    ];
    assert_eq!(events.len(), expected.len());
    for (event, (target, round, outcome)) in events.iter().zip(expected) {
        assert_eq!(event["level"], "DEBUG");
        let fields = &event["fields"];
        assert_eq!(fields["method"], "tools/call");
        assert_eq!(fields["target"], target);
        assert_eq!(fields["round"], round);
        assert_eq!(fields["outcome"], outcome);
        assert_eq!(fields["principal"], "alice");
        assert!(
            fields["seconds"].as_f64().is_some_and(|s| s >= 0.0),
            "{event}"
        );
    }
    // Neither arguments nor answers, nor an unknown tool name.
    for secret in ["Oslo-in-Norway", "octocat", "no-such-tool"] {
        assert_eq!(
            instance.log.count(secret),
            0,
            "{secret}: {:?}",
            instance.log
        );
    }
}

#[tokio::test]
async fn callers_are_logged_only_at_debug_level() {
    let files = Files::new();
    let tokens = files.write("callers.txt", "alice alice-alice-alice\n");
    let mut instance = Serve::new().tokens(&tokens).start().await;
    let alice = Client::new(instance.address).with_bearer("alice-alice-alice");
    let mut call = Call::weather("Oslo");
    assert!(matches!(alice.round(&mut call).await, Reply::Asked(_)));
    call.token = Some("A".repeat(100));
    let refused = alice.round(&mut call).await;
    assert!(matches!(refused, Reply::Refused { .. }), "{refused:?}");
    instance.log.wait_for("token rejected", 1).await;
    instance.stop().await;
    assert_eq!(instance.log.count("round ended"), 0);
    assert_eq!(instance.log.count("alice"), 0, "{:?}", instance.log);
}

#[tokio::test]
async fn invalid_log_filter_is_rejected() {
    for (filter, part) in [
        ("debgu", "did you mean \"debug\"?"),
        ("refrain_server=loud", "refrain_server=loud"),
        ("warn,refrain==", "refrain=="),
    ] {
        let error = Serve::new().env("RUST_LOG", filter).fails().await;
        assert!(
            error.contains("invalid $RUST_LOG") && error.contains(part),
            "{error}"
        );
    }
    for filter in ["", "warn", "refrain_server=debug,hyper=off"] {
        Serve::new()
            .env("RUST_LOG", filter)
            .start()
            .await
            .stop()
            .await;
    }
}

#[tokio::test]
async fn log_is_coloured_on_a_terminal_unless_disabled() {
    for (name, value, coloured) in [
        ("TERM", "xterm", true),
        ("NO_COLOR", "1", false),
        ("TERM", "dumb", false),
    ] {
        let mut terminal = Terminal::open();
        let serve = Serve::new().env("TERM", "xterm").env(name, value);
        let mut child = serve.on(&mut terminal);
        let shown = within("a log line", terminal.read_until("no keys are configured")).await;
        child.kill().await.expect("it can be ended");
        assert_eq!(
            shown.contains("\u{1b}["),
            coloured,
            "{name}={value}: {shown:?}"
        );
    }
}

#[tokio::test]
async fn output_of_a_backend_is_logged_at_a_limited_rate() {
    let files = Files::new();
    let command = BackendLedger::new(&files).command(&["--babble"]);
    let config = format!("[backends.tested]\ncommand = {command}\n");
    let config = files.write("gateway.toml", &config);
    let gateway = Serve::gateway().config(&config).start().await;
    let client = Client::new(gateway.address);
    for _ in 0..3 {
        let mut call = Call::new("echo", json!({"text": "hi"}));
        let reply = client.round(&mut call).await;
        assert!(matches!(&reply, Reply::Done(_)), "{reply:?}");
    }
    // There are more lines only if the calls take more than ten seconds.
    for (event, limit) in [("backend stderr", 1000), ("line ignored: not an MCP", 100)] {
        gateway.log.wait_for(event, limit).await;
        let logged = gateway.log.count(event);
        assert!(logged < 5 * limit, "{event}: {logged}");
    }
}

/// Otherwise its backends would run for ever.
#[tokio::test]
async fn second_signal_also_ends_the_backends_of_a_gateway() {
    let files = Files::new();
    let command = BackendLedger::new(&files).command(&["--stubborn"]);
    let config = files.write(
        "gateway.toml",
        &format!("[backends.tested]\ncommand = {command}\n"),
    );
    let mut gateway = Serve::gateway().config(&config).start().await;
    let client = Client::new(gateway.address);
    let reply = client.round(&mut Call::new("process", json!({}))).await;
    let Reply::Done(process) = &reply else {
        panic!("{reply:?}");
    };
    let process: Value = serde_json::from_str(process).expect("JSON");
    let pid = process["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).expect("a process id");
    let mut call = Call::new("ask", json!({"subject": "cup"}));
    let asked = client.round(&mut call).await;
    assert!(matches!(&asked, Reply::Asked(_)), "{asked:?}");
    // A signal in the first second after the first one is ignored.
    within("the second signal", async {
        while gateway.log.count("second shutdown signal") == 0 {
            gateway.signal(Signal::INT);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(gateway.ended().await.code(), Some(1));
    within("the end of the backend", async {
        while test_kill_process(pid).is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn serving_the_demo_in_the_crate_of_another_server_is_logged() {
    let files = Files::new();
    let manifest = "[package]\nname = \"mine\"\n[dependencies]\nrefrain-app = \"0.1\"\n";
    for (manifest, is_logged) in [(manifest, true), ("[workspace]\n", false)] {
        files.write("Cargo.toml", manifest);
        let serve = Serve::new().in_directory(&files.path(""));
        let mut server = serve.start().await;
        server.stop().await;
        let log = server.log.text();
        assert_eq!(log.contains("cargo run -- serve"), is_logged, "{log}");
    }
}
