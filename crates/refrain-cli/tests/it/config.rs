//! What a configuration file and flags say, and what logs do not.

use crate::support::http::{send, status_of};
use crate::support::{Call, Client, Files, Instance, Reply, Serve, in_time};
use serde_json::{Value, json};
use std::path::Path;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[tokio::test]
async fn a_mistake_in_the_file_is_named_with_its_line() {
    let files = Files::new();
    for (text, parts) in [
        ("audience = \"a\"\nlisten_on = 5\n", ["line 2", "listen_on"]),
        ("[limits]\n\nrounds = \"many\"\n", ["line 3", "rounds"]),
        ("[limits]\nround = 3\n", ["line 2", "round"]),
        ("listen = \"nowhere\"\n", ["line 1", "listen"]),
        ("log = \"xml\"\n", ["line 1", "xml"]),
        ("audience = \"a\n", ["line 1", "audience"]),
        ("[limits]\nrounds = -1\n", ["line 2", "-1"]),
    ] {
        let file = files.write("config.toml", text);
        let said = Serve::new().config(&file).fails().await;
        for part in [parts[0], parts[1], "config.toml"] {
            assert!(said.contains(part), "{text:?}: no {part:?} in {said}");
        }
    }
    let absent = files.path("absent.toml");
    let said = Serve::new().config(&absent).fails().await;
    assert!(said.contains("absent.toml cannot be read"), "{said}");
}

#[tokio::test]
async fn a_file_that_a_setting_names_must_be_there_and_right() {
    let files = Files::new();
    let absent = files.path("absent");
    for flag in ["--keys", "--tokens"] {
        let serve = Serve::new().args([flag.as_ref(), absent.as_os_str()]);
        let said = serve.fails().await;
        assert!(said.contains("absent cannot be read"), "{flag}: {said}");
    }
    let tokens = "# callers\nalice 0123456789abcdef\nbob short\n";
    let tokens = files.write("callers.txt", tokens);
    let said = Serve::new().tokens(&tokens).fails().await;
    assert!(
        said.contains("callers.txt") && said.contains("line 3"),
        "{said}"
    );
    assert!(!said.contains("short"), "{said}");
    let ledger = files.path("no/such/ledger");
    let said = Serve::new().ledger(&ledger).fails().await;
    assert!(said.contains("no/such/ledger"), "{said}");
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let instance = Serve::new().start().await;
    let address = instance.address.to_string();
    let serve = Serve::without_address().args(["--listen", &address]);
    let said = serve.fails().await;
    assert!(
        said.contains(&format!("cannot listen on {address}")),
        "{said}"
    );
}

/// Everything in the file is of no use, and every flag puts it right.
#[tokio::test]
async fn flags_override_the_file() {
    let files = Files::new();
    let config = r#"
        listen = "192.0.2.1:1"
        keys = "/no/such/keys"
        tokens = "/no/such/tokens"
        audience = "theirs"
        allowed_hosts = ["mcp.example.com"]
        log = "json"
    "#;
    let config = files.write("config.toml", config);
    let keys = files.keys("fleet.keys");
    let tokens = files.write("callers.txt", "alice alice-alice-alice\n");
    let given = Serve::new().config(&config).keys(&keys).tokens(&tokens);
    let given = given.args(["--audience", "ours", "--log", "text"]);
    let given = given.args(["--allow-host", "127.0.0.1"]).start().await;
    let alice =
        |instance: &Instance| Client::new(instance.address).with_bearer("alice-alice-alice");
    let mut call = Call::weather("Oslo");
    assert!(matches!(
        alice(&given).round(&mut call).await,
        Reply::Asked(_)
    ));

    // The audience is part of what a token is bound to: another instance of ours takes it, one of theirs does not.
    call.answer("github_login", &json!({"name": "octocat"}));
    for (audience, takes) in [("ours", true), ("theirs", false)] {
        let other = Serve::new().keys(&keys).tokens(&tokens);
        let other = other.args(["--audience", audience]).start().await;
        let reply = alice(&other).round(&mut call.clone()).await;
        assert_eq!(
            matches!(reply, Reply::Done(_)),
            takes,
            "{audience}: {reply:?}"
        );
    }
    given.signal(rustix::process::Signal::HUP);
    let line = given.log.wait_for("the keys were read again", 1).await;
    assert!(!line.starts_with('{'), "not as text: {line}");
}

/// The same settings from a file alone.
#[tokio::test]
async fn the_file_is_enough() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let tokens = files.write("callers.txt", "alice alice-alice-alice\n");
    let config = format!(
        "listen = \"127.0.0.1:0\"\nkeys = {keys:?}\ntokens = {tokens:?}\naudience = \"ours\"\n\
         allowed_hosts = [\"127.0.0.1\"]\nlog = \"json\"\n\
         token_ttl_seconds = 60\nflow_ttl_seconds = 60\nclock_skew_seconds = 5\n"
    );
    let config = files.write("config.toml", &config);
    let instance = Serve::without_address().config(&config).start().await;
    assert_eq!(instance.log.count("no keys are configured"), 0);
    assert_eq!(status_of(instance.address, "/healthz").await.unwrap(), 200);
    let stranger = Client::new(instance.address);
    let (status, _) = stranger.post("{}".into()).await;
    assert_eq!(status, 401);
    let alice = stranger.with_bearer("alice-alice-alice");
    let finished = alice.finish(Call::weather("Oslo")).await;
    assert!(matches!(finished.reply, Reply::Done(_)), "{finished:?}");
}

#[tokio::test]
async fn callers_are_known_by_their_tokens() {
    let files = Files::new();
    let tokens = "# callers\n\nalice alice-alice-alice\nbob bob-bob-bob-bob-bob\n";
    let tokens = files.write("callers.txt", tokens);
    let instance = Serve::new().tokens(&tokens).start().await;
    let client = Client::new(instance.address);
    let stranger = client.clone().with_bearer("carol-carol-carol");
    for refused in [&client, &stranger] {
        let reply = refused.round(&mut Call::weather("Oslo")).await;
        assert!(
            matches!(reply, Reply::Refused { status: 401, .. }),
            "{reply:?}"
        );
    }
    let (alice, bob) = (
        client.clone().with_bearer("alice-alice-alice"),
        client.with_bearer("bob-bob-bob-bob-bob"),
    );
    let mut call = Call::weather("Oslo");
    assert!(matches!(alice.round(&mut call).await, Reply::Asked(_)));
    call.answer("github_login", &json!({"name": "octocat"}));
    let stolen = bob.round(&mut call.clone()).await;
    assert!(
        matches!(stolen, Reply::Refused { code: -32602, .. }),
        "{stolen:?}"
    );
    assert!(matches!(alice.round(&mut call).await, Reply::Done(_)));
}

#[tokio::test]
async fn hosts_to_answer_for() {
    let status = async |instance: &Instance, host: &str| {
        let client = Client::new(instance.address);
        let mut request = client.request(&Call::new("echo", json!({"text": "hello"})));
        request.headers_mut().insert("host", host.parse().unwrap());
        let response = in_time("a reply", send(instance.address, request)).await;
        response.expect("a response").status().as_u16()
    };
    let local = Serve::new().start().await;
    assert_eq!(status(&local, "localhost:8080").await, 200);
    assert_eq!(status(&local, "mcp.example.com").await, 403);
    let two = Serve::new().args(["--allow-host", "mcp.example.com"]);
    let two = two
        .args(["--allow-host", "other.example.com:8443"])
        .start()
        .await;
    assert_eq!(status(&two, "mcp.example.com").await, 200);
    assert_eq!(status(&two, "mcp.example.com:443").await, 200);
    assert_eq!(status(&two, "other.example.com:8443").await, 200);
    assert_eq!(status(&two, "other.example.com").await, 403);
    assert_eq!(status(&two, "localhost").await, 403);
    let any = Serve::new().args(["--allow-host", "*"]).start().await;
    assert_eq!(status(&any, "anything.example.com").await, 200);
}

#[tokio::test]
async fn a_flag_that_makes_no_sense_is_refused() {
    let clash = crate::support::refrain(["serve", "--stdio", "--listen", "127.0.0.1:0"]);
    assert!(
        !clash.ok && clash.err.contains("cannot be used with"),
        "{clash:?}"
    );
    let version = crate::support::refrain(["serve", "--accounts", "3"]);
    assert!(!version.ok && version.err.contains("1..=2"), "{version:?}");
}

/// Does all that leaves traces in a log, and gives what was secret about it.
async fn do_everything(instance: &mut Instance, keys: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(keys).expect("the key file can be read");
    let secret = text.split_whitespace().next_back().expect("a key");
    let mut secrets = vec![secret.to_owned(), "alice-alice-alice".into()];
    let alice = Client::new(instance.address).with_bearer("alice-alice-alice");
    let mut call = Call::order("lamp");
    // Handed on twice, as it is set up, and then asked.
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
    // Something that is no HTTP, whose end is logged too.
    let mut garbage = TcpStream::connect(instance.address).await.expect("a port");
    let bytes = b"POST mcp\r\nauthorization: Bearer alice-alice-alice\r\n\r\n";
    garbage.write_all(bytes).await.expect("a connection");
    instance.log.wait_for("a connection ended", 1).await;
    let mut sum = Call::sum(3, 0);
    assert_eq!(alice.round(&mut sum).await, Reply::HandedOn);
    secrets.extend(sum.token.clone());
    instance.reload("the keys were read again").await;
    std::fs::write(keys, format!("00000000 minting {secret}\n")).expect("a key file");
    instance.reload("the keys stay as they are").await;
    instance.stop().await;
    secrets
}

async fn everything_logged(format: &str) -> (Vec<String>, Vec<String>) {
    let files = Files::new();
    let config = "[limits]\nshed_above = 0\ndrain_grace_ms = 0\n";
    let config = files.write("config.toml", config);
    let keys = files.keys("fleet.keys");
    let tokens = files.write("callers.txt", "alice alice-alice-alice\n");
    let serve = Serve::new().config(&config).keys(&keys).tokens(&tokens);
    let serve = serve.env("RUST_LOG", "trace").args(["--log", format]);
    let mut instance = serve.start().await;
    let secrets = do_everything(&mut instance, &keys).await;
    (instance.log.lines(), secrets)
}

/// No secret, no bearer token, no requestState: nor a part of one that would help.
fn assert_silent(lines: &[String], secrets: &[String]) {
    assert_eq!(secrets.len(), 7);
    for line in lines {
        for secret in secrets {
            // The end: the beginning of a token names its key, which is no secret.
            let part = &secret[secret.len().saturating_sub(24)..];
            assert!(!line.contains(part), "{part:?} is in the log: {line}");
        }
    }
}

#[tokio::test]
async fn a_log_of_everything_has_no_secrets() {
    let (lines, secrets) = everything_logged("text").await;
    let text = lines.join("\n");
    for expected in ["a token was refused", "handed on", "draining", "DEBUG"] {
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
    assert!(!text.contains('\u{1b}'), "colours in a file: {text}");
    assert_silent(&lines, &secrets);
}

#[tokio::test]
async fn a_log_in_json_is_json() {
    let (lines, secrets) = everything_logged("json").await;
    assert_silent(&lines, &secrets);
    let mut messages = Vec::new();
    for line in &lines {
        let parsed: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(parsed["level"].is_string() && parsed["timestamp"].is_string());
        messages.extend(parsed["fields"]["message"].as_str().map(str::to_owned));
    }
    for expected in ["a token was refused", "a flow is handed on", "draining"] {
        assert!(messages.iter().any(|m| m == expected), "no {expected:?}");
    }
}
