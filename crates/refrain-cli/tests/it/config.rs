//! The configuration file and flags.

use crate::auth::assert_bound_to_caller;
use crate::support::terminal::Terminal;
use crate::support::{
    Call, Client, Files, Instance, Reply, Serve, config_check, ended, program, refrain, root,
    within,
};
use refrain_testkit::net::http::{self, status_of};
use serde_json::{Value, json};

/// `config check` and `serve` print the same errors.
#[tokio::test]
async fn config_errors_are_reported_with_their_positions() {
    let files = Files::new();
    let text = "listen = \"nowhere\"\nkeys = \"/no/such/keys\"\nlog = \"xml\"\n\n[limits]\nrounds = 0\nround = 3\n";
    let file = files.write("config.toml", text);
    let path = file.display();
    let expected = format!(
        "error: {path}:1:10: listen must be an IP address and a port, like \"127.0.0.1:8080\" or \"[::1]:8080\"
  listen = \"nowhere\"
           ^^^^^^^^^
error: {path}:2:8: keys: cannot read key file /no/such/keys: No such file or directory (os error 2)
  keys = \"/no/such/keys\"
         ^^^^^^^^^^^^^^^
error: {path}:3:7: log must be \"text\" or \"json\", not \"xml\"
  log = \"xml\"
        ^^^^^
error: {path}:6:10: limits.rounds must be at least 1, not 0
  rounds = 0
           ^
error: {path}:7:1: unknown setting \"round\" in [limits]; did you mean \"rounds\"?
  round = 3
  ^^^^^
"
    );
    let check = config_check(&file, &[]);
    assert_eq!((check.code, check.out.as_str()), (1, ""));
    assert_eq!(check.err, expected);
    let served = Serve::new().config(&file).fails().await;
    assert_eq!(served, expected);

    let json = config_check(&file, &["--json"]);
    assert_eq!((json.code, json.err.as_str()), (1, ""));
    let report: Value = serde_json::from_str(&json.out).expect("valid JSON");
    assert_eq!(report["usable"], false);
    let positions = report["mistakes"].as_array().expect("mistakes").iter();
    let positions: Vec<_> = positions.map(|m| (&m["line"], &m["column"])).collect();
    let expected = [(1, 10), (2, 8), (3, 7), (6, 10), (7, 1)].map(|(l, c)| (json!(l), json!(c)));
    assert_eq!(
        positions,
        expected.iter().map(|(l, c)| (l, c)).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn malformed_or_missing_config_file_is_reported() {
    let files = Files::new();
    let file = files.write("config.toml", "audience = \"a\n[limits]\nrounds = \n");
    for error in [
        config_check(&file, &[]).err,
        Serve::new().config(&file).fails().await,
    ] {
        assert!(error.contains("config.toml:1:"), "{error}");
        assert!(error.contains("config.toml:3:"), "{error}");
    }
    let absent = files.path("absent.toml");
    for error in [
        config_check(&absent, &[]).err,
        Serve::new().config(&absent).fails().await,
    ] {
        assert!(error.contains("absent.toml: No such file"), "{error}");
    }
}

/// A key file, a token file or a private key may be passed by mistake.
#[tokio::test]
async fn file_that_is_not_a_configuration_is_not_quoted() {
    let files = Files::new();
    let keys = files.path("fleet.keys");
    let made = refrain(["keys".as_ref(), "new".as_ref(), keys.as_os_str()]);
    assert!(made.ok, "{made:?}");
    let ring = std::fs::read_to_string(&keys).expect("the key file");
    let secret = ring.split_whitespace().last().expect("a secret");
    let without_comment = format!("{}\n", ring.lines().last().expect("a key"));
    for (text, expected) in [
        (ring.clone(), " is a key file, not a configuration file"),
        (without_comment, " is a key file, not a configuration file"),
        (
            ring.replace("minting", "mnting"),
            ":2:10: not a configuration file in TOML: key with no value",
        ),
        (
            format!("ada {secret} tools\n"),
            ":1:5: not a configuration file in TOML: key with no value",
        ),
        (
            // A secret that starts with a digit would be taken for a number.
            format!("API_TOKEN=x{secret}\n"),
            ":1:11: not a configuration file in TOML: string values must be quoted",
        ),
        (
            format!("API_TOKEN = \"{secret}\"\n"),
            ":1:1: unknown setting \"API_TOKEN\"",
        ),
    ] {
        let file = files.write("secrets", &text);
        for output in [config_check(&file, &[]), config_check(&file, &["--json"])] {
            assert_eq!(output.code, 1, "{output:?}");
            assert!(!format!("{output:?}").contains(secret), "{output:?}");
        }
        let served = Serve::new().config(&file).fails().await;
        let expected = format!("error: {}{expected}", file.display());
        assert!(served.starts_with(&expected), "{served}");
        assert_eq!(served.lines().count(), 1, "{served}");
    }
}

#[test]
fn check_of_a_gateway_file_names_the_right_command() {
    let files = Files::new();
    let hint = "hint: check a file of the gateway with `refrain gateway config check FILE`";
    for (text, has_hint) in [
        ("[backends.a]\ncommand = [\"a\"]\n", true),
        ("[gateway]\nconnections = 8\n", true),
        ("lisen = \"127.0.0.1:1\"\n", false),
    ] {
        let output = config_check(&files.write("gateway.toml", text), &[]);
        assert_eq!(output.code, 1, "{output:?}");
        let last = output.err.lines().last();
        assert_eq!(last == Some(hint), has_hint, "{output:?}");
    }
}

#[test]
fn check_notes_settings_that_need_keys() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let seal = "[tasks]\nseal = true\n";
    for (text, setting) in [
        (seal.to_owned(), "`tasks.seal` needs keys"),
        (
            "advertise = \"http://10.0.0.7/mcp\"\n".to_owned(),
            "--advertise (or `advertise` in the configuration) needs keys",
        ),
        (format!("keys = {keys:?}\n{seal}"), ""),
    ] {
        let output = config_check(&files.write("config.toml", &text), &[]);
        assert!(output.ok, "{output:?}");
        match setting {
            "" => assert_eq!(output.err, ""),
            setting => {
                let note = format!("note: {setting}");
                assert!(output.err.starts_with(&note), "{output:?}");
                assert_eq!(output.err.lines().count(), 1, "{output:?}");
            }
        }
    }
}

#[tokio::test]
async fn unusable_token_file_is_explained() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let error = Serve::new().tokens(&keys).fails().await;
    let expected = format!("{} is a key file, not a token file", keys.display());
    assert!(error.contains(&expected), "{error}");
    for text in ["", "# nobody\n\n"] {
        let file = files.write("callers.txt", text);
        let error = Serve::new().tokens(&file).fails().await;
        let expected = format!("invalid token file {}: no caller;", file.display());
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn tip_for_an_unknown_flag_is_similar() {
    for (arguments, tip) in [
        (
            &["call", "http://127.0.0.1:1/mcp", "tool", "--bogus"][..],
            None,
        ),
        (&["gateway", "--drafts"], None),
        (&["serve", "--lisen", "127.0.0.1:1"], Some("--listen")),
    ] {
        let output = refrain(arguments.iter().copied());
        assert_eq!(output.code, 2, "{output:?}");
        match tip {
            None => assert!(!output.err.contains("similar"), "{output:?}"),
            Some(tip) => {
                let tip = format!("a similar argument exists: '{tip}'");
                assert!(output.err.contains(&tip), "{output:?}");
            }
        }
    }
}

#[test]
fn config_check_prints_every_setting_and_its_origin() {
    let files = Files::new();
    let text = "audience = \"ours\"\nallowed_hosts = [\n  \"a.example\", \"b.example\",\n]\n[limits]\nrounds = 5\n";
    let file = files.write("config.toml", text);
    let check = config_check(&file, &[]);
    assert!(check.ok, "{check:?}");
    for line in [
        "listen                         \"127.0.0.1:8080\"            default",
        "keys                           not set                     default",
        "allowed_hosts                  [\"a.example\", \"b.example\"]  line 2",
        "audience                       \"ours\"                      line 1",
        "limits.concurrent_calls        1024                        default",
        "limits.rounds                  5                           line 6",
    ] {
        assert!(
            check.out.lines().any(|l| l == line),
            "{line}\n{}",
            check.out
        );
    }
    let json = config_check(&file, &["--json"]);
    let report: Value = serde_json::from_str(&json.out).expect("valid JSON");
    assert_eq!(report["usable"], true);
    let settings = report["settings"].as_array().expect("settings");
    assert_eq!(settings.len(), check.out.lines().count());
    let rounds = json!({"name": "limits.rounds", "value": 5, "from": "file", "line": 6});
    assert!(settings.contains(&rounds), "{report}");
    let keys = json!({"name": "keys", "value": null, "from": "default", "line": null});
    assert!(settings.contains(&keys), "{report}");
}

#[tokio::test]
async fn config_check_is_coloured_on_a_terminal() {
    let files = Files::new();
    let good = files.write("good.toml", "[limits]\nrounds = 5\n");
    let bad = files.write("bad.toml", "[limits]\nrounds = 0\n");
    for (file, part) in [(&good, "limits.notes"), (&bad, "must be at least 1")] {
        let mut terminal = Terminal::open();
        let device = terminal.take_device();
        let both = device.try_clone().expect("a second handle");
        let mut check = program();
        check.args(["config".as_ref(), "check".as_ref(), file.as_os_str()]);
        check.env("TERM", "xterm");
        let mut child = check
            .stdout(both)
            .stderr(device)
            .spawn()
            .expect("the binary");
        let shown = within("the output", terminal.read_until(part)).await;
        assert!(shown.contains("\u{1b}["), "{shown:?}");
        ended(&mut child).await;
    }
}

#[test]
fn documented_defaults_match_the_command() {
    let defaults = refrain(["config", "defaults"]);
    assert!(defaults.ok, "{defaults:?}");
    let page = std::fs::read_to_string(root().join("docs/reference/configuration.md"))
        .expect("the page is readable");
    let block = format!("```toml\n{}```\n", defaults.out);
    assert!(
        page.contains(&block),
        "docs/reference/configuration.md should have\n{block}"
    );
    let files = Files::new();
    let file = files.write("config.toml", &defaults.out);
    let check = config_check(&file, &[]);
    assert!(check.ok, "{check:?}");
}

#[tokio::test]
async fn missing_or_invalid_named_file_is_reported() {
    let files = Files::new();
    let absent = files.path("absent");
    for flag in ["--keys", "--tokens"] {
        let serve = Serve::new().args([flag.as_ref(), absent.as_os_str()]);
        let error = serve.fails().await;
        assert!(error.contains("absent: No such file"), "{flag}: {error}");
        // The error is in a flag, and has no position in the configuration file.
        assert!(error.starts_with("error: cannot read "), "{flag}: {error}");
    }
    let tokens = "# callers\nalice 0123456789abcdef\nbob short\n";
    let tokens = files.write("callers.txt", tokens);
    let error = Serve::new().tokens(&tokens).fails().await;
    assert!(
        error.contains("callers.txt") && error.contains("line 3"),
        "{error}"
    );
    assert!(!error.contains("short"), "{error}");
    let ledger = files.path("no/such/ledger");
    let error = Serve::new().ledger(&ledger).fails().await;
    assert!(error.contains("no/such/ledger"), "{error}");
}

#[tokio::test]
async fn address_in_use_is_reported() {
    let instance = Serve::new().start().await;
    let address = instance.address.to_string();
    let serve = Serve::without_address().args(["--listen", &address]);
    let error = serve.fails().await;
    assert!(
        error.contains(&format!("cannot listen on {address}")),
        "{error}"
    );
}

/// The settings of the file do not suit this test, and a flag overrides each of them.
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
    let instance = Serve::new().config(&config).keys(&keys).tokens(&tokens);
    let instance = instance.args(["--audience", "ours", "--log", "text"]);
    let instance = instance.args(["--allow-host", "127.0.0.1"]).start().await;
    let alice =
        |instance: &Instance| Client::new(instance.address).with_bearer("alice-alice-alice");
    let mut call = Call::weather("Oslo");
    assert!(matches!(
        alice(&instance).round(&mut call).await,
        Reply::Asked(_)
    ));

    // A token is bound to the audience: only an instance with the same one accepts it.
    call.answer("github_login", &json!({"name": "octocat"}));
    for (audience, is_accepted) in [("ours", true), ("theirs", false)] {
        let other = Serve::new().keys(&keys).tokens(&tokens);
        let other = other.args(["--audience", audience]).start().await;
        let reply = alice(&other).round(&mut call.clone()).await;
        assert_eq!(
            matches!(reply, Reply::Done(_)),
            is_accepted,
            "{audience}: {reply:?}"
        );
    }
    instance.signal(rustix::process::Signal::HUP);
    let line = instance.log.wait_for("keys reloaded", 1).await;
    assert!(!line.starts_with('{'), "not as text: {line}");
}

#[tokio::test]
async fn config_file_works_without_flags() {
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
async fn token_file_authenticates_callers() {
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
    assert_bound_to_caller(&alice, &bob).await;
}

#[tokio::test]
async fn only_allowed_hosts_are_accepted() {
    let status = async |instance: &Instance, host: &str| {
        let client = Client::new(instance.address);
        let request = client.request(&Call::new("echo", json!({"text": "hello"})));
        let request = request.header("Host", host);
        http::send(instance.address, &request).await.status
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
async fn conflicting_flags_are_rejected() {
    let clash = refrain(["serve", "--stdio", "--listen", "127.0.0.1:0"]);
    assert!(
        !clash.ok && clash.err.contains("cannot be used with"),
        "{clash:?}"
    );
    let version = refrain(["serve", "--accounts", "3"]);
    assert!(!version.ok && version.err.contains("1..=2"), "{version:?}");
}

#[test]
fn invalid_values_name_their_flag() {
    for (args, expected) in [
        (
            &["gateway", "--url", "ftp://example.com"][..],
            "invalid value 'ftp://example.com' for '--url <URL>': expected an http:// or https:// URL",
        ),
        (
            &["serve", "--audience", " "],
            "invalid value ' ' for '--audience <NAME>': must not be empty",
        ),
    ] {
        let output = refrain(args);
        assert_eq!(output.code, 2, "{output:?}");
        assert!(output.err.contains(expected), "{output:?}");
    }
    let help = refrain(["gateway", "--help"]).out;
    assert!(
        help.contains("refrain gateway [OPTIONS] --url URL\n"),
        "{help}"
    );
}
