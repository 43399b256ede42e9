//! `refrain gateway check`: the report about each backend, and its exit code.

use crate::support::{BackendLedger, Files, Output, refrain};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const BROKEN: &str = r#"backend "broken": python3 exited before it responded (exit status: 1): the backend is broken"#;

/// A configuration with one backend that has rules, and optionally one that does not start.
fn config(files: &Files, with_broken: bool) -> PathBuf {
    let ledger = BackendLedger::new(files);
    let mut config = format!(
        "[backends.tested]\n\
         command = {}\n\
         prefix = \"my_\"\n\
         allow = [\"ask*\", \"slow\", \"echo\"]\n\
         tools.echo.name = \"say\"\n\
         tools.ask_twice.home = \"replay\"\n\
         tools.slow.task_after_seconds = 0\n",
        ledger.command(&[])
    );
    if with_broken {
        let command = ledger.command(&["--broken"]);
        config += &format!("[backends.broken]\ncommand = {command}\n");
    }
    files.write("gateway.toml", &config)
}

fn check(config: &Path, flags: &[&str]) -> Output {
    let config = config.to_str().expect("a path in UTF-8");
    refrain([&["gateway", "check", "--config", config], flags].concat())
}

fn json_of(output: &Output) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|_| panic!("expected JSON: {output:?}"))
}

/// The lines of a report. The time that a start took is replaced by `TIME`.
fn lines(output: &Output) -> Vec<String> {
    let without_time = |line: &str| match line.split_once("listed after ") {
        Some((start, rest)) => {
            let (time, end) = rest.split_once(" s;").expect("a time in seconds");
            assert!(time.parse::<f64>().is_ok(), "{line}");
            format!("{start}listed after TIME s;{end}")
        }
        None => line.to_owned(),
    };
    output.out.lines().map(without_time).collect()
}

#[test]
fn check_prints_how_each_tool_is_offered() {
    let files = Files::new();
    let output = check(&config(&files, false), &[]);
    assert!(output.ok, "{output:?}");
    let expected = [
        "tested",
        "  tested 1, 2025-06-18, listed after TIME s; 10 tools, 0 prompts, 2 resources",
        "  echo as say                live, a task after 20 s",
        "  process                    not offered",
        "  ask as my_ask              live, a task after 20 s",
        "  ask_twice as my_ask_twice  replay, a task after 20 s",
        "  effect                     not offered",
        "  slow as my_slow            live",
        "  crash                      not offered",
        "  environment                not offered",
        "  roots                      not offered",
        "  meta                       not offered",
    ];
    assert_eq!(lines(&output), expected, "{output:?}");
}

#[test]
fn check_reports_the_same_as_json() {
    let files = Files::new();
    let output = check(&config(&files, false), &["--json"]);
    assert!(output.ok, "{output:?}");
    let reports = json_of(&output);
    let [report] = &reports.as_array().expect("a list")[..] else {
        panic!("expected one report: {reports}");
    };
    for (member, expected) in [
        ("backend", json!("tested")),
        ("server", json!("tested 1")),
        ("revision", json!("2025-06-18")),
        ("prompts", json!(0)),
        ("resources", json!(2)),
        ("error", Value::Null),
    ] {
        assert_eq!(report[member], expected, "{member}");
    }
    let tools = report["tools"].as_array().expect("a list");
    assert_eq!(tools.len(), 10);
    let tool = |name: &str| tools.iter().find(|tool| tool["tool"] == name);
    let replayed = json!({
        "tool": "ask_twice", "offered_as": "my_ask_twice", "home": "replay", "task_after": 20, "asks": false,
    });
    assert_eq!(tool("ask_twice"), Some(&replayed));
    let hidden = tool("crash").expect("tools that are not offered are listed");
    assert_eq!(hidden["offered_as"], Value::Null);
    let slow = tool("slow").expect("the tool");
    assert_eq!(slow["task_after"], Value::Null);
}

#[test]
fn backend_that_does_not_start_fails_the_check() {
    let files = Files::new();
    let config = config(&files, true);
    let output = check(&config, &[]);
    assert_eq!(output.code, 1, "{output:?}");
    let lines = lines(&output);
    assert_eq!(lines[0], "broken");
    assert_eq!(lines[1], format!("  error: {BROKEN}"));
    assert!(
        lines[2].contains("run it yourself to see the cause"),
        "{output:?}"
    );
    assert!(
        lines.contains(&"tested".to_owned()),
        "the others are checked"
    );

    let output = check(&config, &["--json"]);
    assert_eq!(output.code, 1, "{output:?}");
    let reports = json_of(&output);
    assert_eq!(reports[0]["backend"], "broken");
    assert_eq!(reports[0]["error"], BROKEN);
    assert_eq!(reports[1]["error"], Value::Null);
}

#[test]
fn names_that_two_backends_offer_fail_the_check() {
    let files = Files::new();
    let command = BackendLedger::new(&files).command(&[]);
    let two = |first: &str, second: &str| {
        let config = format!(
            "[backends.a]\ncommand = {command}\n{first}\n[backends.b]\ncommand = {command}\n{second}\n"
        );
        let output = check(&files.write("gateway.toml", &config), &["--json"]);
        let reports = json_of(&output);
        assert_eq!(reports[0]["error"], Value::Null, "{output:?}");
        let error = reports[1]["error"].as_str().map(str::to_owned);
        assert_eq!(output.code, i32::from(error.is_some()), "{output:?}");
        error.unwrap_or_default()
    };
    let tools = "allow = [\"echo\"]";
    let error = two(tools, tools);
    let collision = "backends a and b both offer the tool \"echo\"";
    assert!(error.starts_with(collision), "{error}");
    let error = two("prefix = \"a_\"", "prefix = \"b_\"");
    let collision = "backends a and b both offer the resource ";
    assert!(error.starts_with(collision), "{error}");
    let handle = "allow = [\"echo\"]\nsessions = \"handle\"";
    let error = two(
        handle,
        "allow = [\"ask\"]\ntools.ask.name = \"open_session\"",
    );
    let collision = "backends a and b both offer the tool \"open_session\"";
    assert!(error.starts_with(collision), "{error}");
    assert_eq!(two(tools, "allow = [\"ask\"]"), "");
}

#[test]
fn hint_matches_the_transport_of_the_backend() {
    let files = Files::new();
    let config = "[backends.web]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let output = check(&files.write("gateway.toml", config), &[]);
    assert_eq!(output.code, 1, "{output:?}");
    let hint = "  hint: check that the URL is right, and that its server runs. If the server requires an access token, set \
                `headers` or `oauth` in a configuration file\n";
    assert!(output.out.ends_with(hint), "{output:?}");
}

#[test]
fn table_of_a_host_is_corrected() {
    let files = Files::new();
    for name in ["mcpServers", "servers"] {
        let config = format!("[{name}.web]\nurl = \"http://127.0.0.1:1/mcp\"\n");
        let output = check(&files.write("gateway.toml", &config), &[]);
        assert_eq!(output.code, 1, "{output:?}");
        let error = format!("unknown setting \"{name}\"; did you mean \"backends\"?");
        assert!(output.err.contains(&error), "{output:?}");
    }
}

#[test]
fn config_check_finds_the_mistakes_of_backends() {
    let files = Files::new();
    let config = "[gateway]\nconnections_each = 0\n\n[backends.none]\n\n\
                  [backends.both]\nurl = \"http://127.0.0.1:1/mcp\"\ncommand = [\"a\"]\n\n\
                  [backends.misplaced]\ncommand = [\"a\"]\nexclusive = true\n\n\
                  [backends.range]\ncommand = [\"a\"]\nconnections = 0\n";
    let file = files.write("gateway.toml", config);
    let path = file.to_str().expect("a path in UTF-8");
    let output = refrain(["gateway", "config", "check", path]);
    assert_eq!(output.code, 1, "{output:?}");
    assert_eq!(output.out, "");
    for error in [
        ":2:20: invalid gateway.connections_each: expected a number from 1",
        ":4:11: backends.none: neither `command` nor `url` is set",
        ":6:11: backends.both: `command` and `url` are both set; remove one",
        ":12:13: backends.misplaced.exclusive is only for a backend with `url`",
        ":16:15: invalid backends.range.connections: expected a number from 1",
    ] {
        let error = format!("error: {path}{error}");
        assert!(output.err.contains(&error), "{error} {output:?}");
    }
    let json = json_of(&refrain(["gateway", "config", "check", "--json", path]));
    assert_eq!(json["usable"], false);
    assert_eq!(json["mistakes"][1]["line"], 4);
    assert_eq!(json["mistakes"].as_array().map(Vec::len), Some(5));
}

#[test]
fn backend_of_the_command_line_that_does_not_start_is_reported_once() {
    for (backend, event, hint) in [
        (
            &["--", "no-such-program"][..],
            "starting backend",
            "hint: check the command and $PATH, or run it yourself to see the cause: it must speak MCP over standard input \
             and output",
        ),
        (
            &["--url", "http://127.0.0.1:1/mcp"],
            "connecting to backend",
            "hint: check that the URL is right, and that its server runs. If the server requires an access token, set \
             `headers` or `oauth` in a configuration file",
        ),
    ] {
        let output = refrain(["gateway", "--listen", "127.0.0.1:0"].iter().chain(backend));
        assert_eq!(output.code, 1, "{output:?}");
        let lines: Vec<&str> = output.err.lines().collect();
        let [start, error, last] = &lines[..] else {
            panic!("expected three lines: {output:?}");
        };
        assert!(start.contains(event), "{start}");
        assert!(error.starts_with("error: backend \"server\": "), "{error}");
        assert_eq!(*last, hint);
    }
}

#[test]
fn program_that_is_missing_fails_the_check() {
    let output = refrain(["gateway", "check", "--", "no-such-program"]);
    assert_eq!(output.code, 1, "{output:?}");
    let why = r#"backend "server": could not start no-such-program: No such file or directory"#;
    assert!(output.out.contains(why), "{output:?}");
}

#[test]
fn check_without_a_backend_says_what_to_configure() {
    let output = refrain(["gateway", "check"]);
    assert_eq!(output.code, 1, "{output:?}");
    let error = "error: no server to put behind the gateway\n\
                    hint: pass -- COMMAND, --url URL, or --config FILE with a table [backends.NAME]\n";
    assert_eq!(output.err, error);
    assert_eq!(output.out, "");
}

#[test]
fn check_without_its_file_prints_a_hint() {
    let files = Files::new();
    let output = check(&files.path("missing.toml"), &[]);
    assert_eq!(output.code, 1, "{output:?}");
    let lines: Vec<&str> = output.err.lines().collect();
    let [error, hint] = &lines[..] else {
        panic!("expected an error and a hint: {output:?}");
    };
    assert!(
        error.starts_with("error: cannot read configuration file "),
        "{error}"
    );
    assert_eq!(
        *hint,
        "hint: `refrain gateway config defaults` prints a file to start from"
    );
}
