//! Arguments and preset answers of calls.

use super::{assert_prints, assert_says, json, with_env};
use crate::support::{Files, Serve, program, run, run_command, within};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;

const WEATHER: &str = "Current weather in Paris:\nTemperature: 72°F\nConditions: Partly cloudy\n";

#[tokio::test]
async fn result_is_printed_as_text_or_json() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    let plain = run(["call", &url, "echo", "text=hello"]).await;
    assert_eq!(
        (plain.code, &*plain.out, &*plain.err),
        (0, "Echo: hello\n", "")
    );
    let whole = run(["call", &url, "echo", "text=hello", "--json"]).await;
    assert_eq!(whole.code, 0, "{whole:?}");
    assert_eq!(
        json(&whole)["content"],
        json!([{"type": "text", "text": "Echo: hello"}])
    );
    assert_eq!(json(&whole)["resultType"], "complete");
}

#[tokio::test]
async fn plain_http_needs_no_certificate_authorities() {
    let instance = Serve::new().start().await;
    let call = |url: String| async move {
        let mut command = program();
        command.args(["call", &url, "echo", "text=hello"]);
        for name in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
            command.env(name, "/nowhere");
        }
        run_command(command).await
    };
    assert_prints(&call(instance.url()).await, "Echo: hello\n");
    let https = call("https://127.0.0.1:1/mcp".to_owned()).await;
    assert!(
        https.err.contains("no certificate authorities"),
        "{https:?}"
    );
}

#[tokio::test]
async fn arguments_are_pairs_an_object_or_standard_input() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    // The schema expects a string, so a number is text.
    let pairs = run(["call", &url, "echo", "text=5"]).await;
    assert_eq!(pairs.out, "Echo: 5\n", "{pairs:?}");
    let item = [
        "call",
        &url,
        "update_work_item",
        "workItemId=7",
        "fields={\"a\":1}",
    ];
    let item = run(item).await;
    assert_eq!(item.out, "Bug #7 updated.\n", "{item:?}");
    let object = run(["call", &url, "echo", r#"{"text": "a b"}"#]).await;
    assert_eq!(object.out, "Echo: a b\n", "{object:?}");

    let mut command = program();
    command
        .args(["call", &url, "echo", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut input = child.stdin.take().expect("the stream is piped");
    input
        .write_all(br#"{"text": "in"}"#)
        .await
        .expect("it reads");
    drop(input);
    let output = within("the end", child.wait_with_output()).await;
    let output = output.expect("the process can be waited for");
    assert_eq!(output.stdout, b"Echo: in\n");

    for (bad, part) in [
        ("nonsense", "NAME=VALUE"),
        ("{\"text\": }", "invalid JSON"),
        ("[1]", "NAME=VALUE"),
    ] {
        let output = run(["call", &url, "echo", bad]).await;
        assert_says(&output, 2, &[part]);
        assert_eq!(output.out, "");
    }
}

#[tokio::test]
async fn unlisted_argument_causes_a_warning() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    for typo in ["txet=hello", r#"{"txet": "hello"}"#, "txet=1"] {
        let output = run(["call", &url, "echo", typo, "--answer", "echo_input=decline"]).await;
        let warning = r#"warning: unknown argument "txet"; did you mean "text"?"#;
        assert_says(&output, 1, &[warning, "the tool echo reported an error"]);
    }
    let other = run(["call", &url, "echo", "text=hello", "volume=11"]).await;
    let warning = "warning: unknown argument \"volume\"; the tool's arguments are \"text\"\n";
    assert_eq!(
        (other.code, &*other.out, &*other.err),
        (0, "Echo: hello\n", warning)
    );
}

#[tokio::test]
async fn form_is_answered_by_flag_file_or_word() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let url = instance.url();
    let call = ["call", &url, "get_weather", "location=Paris"];
    let file = files.write("answers.json", r#"{"github_login": {"name": "Ada"}}"#);
    let file = file.display().to_string();
    for answer in [
        ["--answer", r#"github_login={"name": "Ada"}"#],
        [
            "--answer",
            r#"github_login={"action": "accept", "content": {"name": "Ada"}}"#,
        ],
        ["--answers", &file],
    ] {
        let output = run([&call[..], &answer].concat()).await;
        assert_prints(&output, WEATHER);
        assert_eq!(output.err, "");
    }
    for (word, text) in [("decline", "declined"), ("cancel", "cancelled")] {
        let answer = format!("github_login={word}");
        let output = run([&call[..], &["--answer", &answer]].concat()).await;
        assert_says(&output, 1, &["the tool get_weather reported an error"]);
        assert!(output.out.contains(text), "{output:?}");
    }
}

#[tokio::test]
async fn unanswered_ask_is_reported_with_an_example_answer() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    let item = [
        "call",
        &url,
        "update_work_item",
        "workItemId=7",
        r#"fields={"System.State": "Resolved"}"#,
    ];
    let output = run(item).await;
    let about = format!("tool update_work_item of server \"Refrain demo\" ({url}) asks:");
    assert_says(
        &output,
        3,
        &[
            &about,
            "resolution  form",
            "Resolving Bug #7 requires a resolution. How was this bug resolved?",
            r#"one of "Fixed", "Won't Fix", "Duplicate", "By Design""#,
            "Resolution type for this bug",
            r#"--answer 'resolution={"resolution":"Fixed"}'"#,
            "--save FILE",
            "refrain resume FILE",
        ],
    );
    assert_eq!(output.out, "");

    let output = run([&item[..], &["--json"]].concat()).await;
    assert_says(&output, 3, &["missing answer to resolution"]);
    let asked = &json(&output)["asked"][0];
    assert_eq!(asked["key"], "resolution");
    assert_eq!(asked["kind"], "form");
    assert_eq!(asked["why"], "no answer was given");
    assert_eq!(
        asked["requestedSchema"]["properties"]["resolution"]["enum"][1],
        "Won't Fix"
    );
}

#[tokio::test]
async fn invalid_answer_is_not_sent() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    let call = ["call", &url, "get_weather", "location=Paris", "--answer"];
    let invalid = run([&call[..], &[r#"github_login={"name": 1}"#]].concat()).await;
    assert_says(
        &invalid,
        3,
        &["invalid answer to github_login", "(name must be a string)"],
    );
    let other = run([&call[..], &["github_login=1"]].concat()).await;
    assert_says(&other, 3, &["expected an object"]);
    // A misspelt key.
    let elsewhere = run([&call[..], &[r#"githublogin={"name": "Ada"}"#]].concat()).await;
    assert_says(
        &elsewhere,
        3,
        &[
            r#"unused answer "githublogin": the server did not ask for it"#,
            "github_login",
        ],
    );
    for (bad, part) in [
        ("github_login={name: Ada}", "neither JSON nor one of"),
        ("github_login", "expected KEY=JSON"),
    ] {
        let output = run([&call[..], &[bad]].concat()).await;
        assert_says(&output, 2, &[part]);
    }
    let files = Files::new();
    let list = files.write("list.json", "[1]").display().to_string();
    let output = run(["call", &url, "echo", "--answers", &list]).await;
    assert_says(&output, 2, &["expected a JSON object"]);
    let output = run(["call", &url, "echo", "--answers", "/nowhere.json"]).await;
    assert_says(&output, 2, &["cannot read --answers /nowhere.json"]);
}

#[tokio::test]
async fn sampler_command_answers_sampling_requests() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let url = instance.url();
    let asked = files.path("asked.json").display().to_string();
    let sampler = format!("cat > '{asked}'; echo It is flat.");
    let call = ["call", &url, "analyze_data", "data=1,1,1", "--sampler"];
    let output = run([&call[..], &[&sampler]].concat()).await;
    assert_prints(&output, "It is flat.\n");
    let question = std::fs::read_to_string(&asked).expect("the sampler was called");
    let question: Value = serde_json::from_str(&question).expect("valid JSON");
    assert_eq!(question["maxTokens"], 500);
    assert_eq!(
        question["messages"][0]["content"]["text"],
        "Analyze this data:\n1,1,1"
    );

    let whole = r#"echo '{"role": "assistant", "model": "m", "content": {"type": "text", "text": "Flat."}}'"#;
    let output = run([&call[..], &[whole]].concat()).await;
    assert_prints(&output, "Flat.\n");
    let output = run([&call[..], &["exit 7"]].concat()).await;
    assert_says(&output, 3, &["the sampler failed with exit status: 7"]);
    let without = run(&call[..4]).await;
    assert_says(&without, 3, &["no --sampler is set", "Analyze this data:"]);
    let by_hand = run([&call[..4], &["--answer", r#"analysis="Flat.""#]].concat()).await;
    assert_prints(&by_hand, "Flat.\n");
}

#[tokio::test]
async fn roots_are_sent_only_if_given() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let url = instance.url();
    let dir = files.path("a directory");
    std::fs::create_dir(&dir).expect("a directory");
    let whole = dir.canonicalize().expect("a path").display().to_string();
    let dir = dir.display().to_string();
    let output = run(["call", &url, "project_roots", "--root", &dir]).await;
    let uri = format!("file://{}", whole.replace(' ', "%20"));
    assert_eq!(output.out, format!("1 roots:\n{uri}\n"), "{output:?}");
    let without = run(["call", &url, "project_roots"]).await;
    assert_says(&without, 3, &["roots  roots", "pass --root PATH"]);
    let nowhere = run(["call", &url, "project_roots", "--root", "/nowhere"]).await;
    assert_says(&nowhere, 2, &["invalid --root /nowhere"]);
}

#[tokio::test]
async fn url_ask_is_accepted_and_repeated_under_another_key() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    let call = ["call", &url, "connect_account", "service=maps"];
    let output = run(call).await;
    assert_says(
        &output,
        3,
        &[
            "connect  url",
            "https://example.com/connect/maps?visit=",
            "--answer connect=accept",
        ],
    );
    // The service reports the visit at the second check. The repeated ask has another key, and needs an answer.
    for once in [
        &["--answer", "connect=accept"][..],
        &["--answer", "connect=accept"].repeat(2),
    ] {
        let output = run([&call[..], once].concat()).await;
        assert_says(
            &output,
            3,
            &[
                "connect#2  url",
                r#"the answer for "connect" is only for the first ask"#,
                "call again with your other answers, if any, and\n  --answer 'connect#2=accept'\n",
            ],
        );
        let left = r#"unused answer "connect": the server asked for it only once"#;
        assert_eq!(output.err.contains(left), once.len() > 2, "{output:?}");
        let output = run([&call[..], once, &["--json"]].concat()).await;
        assert_eq!(json(&output)["asked"][0]["key"], "connect#2");
    }
    let both = ["--answer", "connect=accept", "--answer", "connect#2=accept"];
    let output = run([&call[..], &both].concat()).await;
    assert_prints(&output, "Connected to maps.\n");
    let output = run([&call[..], &["--answer", "connect=decline"]].concat()).await;
    assert_says(&output, 1, &["reported an error"]);
}

#[tokio::test]
async fn rejected_call_reports_the_reason() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    let output = run(["call", &url, "nope"]).await;
    assert_says(
        &output,
        1,
        &[
            "the server returned an error: Unknown tool: nope (-32602)",
            "hint: `refrain tools http://",
        ],
    );
    assert_eq!(output.out, "");
    let output = run(["call", &url, "nope", "--json"]).await;
    assert_eq!(output.code, 1);
    assert_eq!(json(&output)["error"]["code"], -32602);
    // Similar names are suggested, by the server.
    let output = run(["call", &url, "ecko"]).await;
    let suggestion = "Unknown tool: ecko; did you mean \"echo\"? (-32602)";
    assert_says(&output, 1, &[suggestion]);
    assert_eq!(output.err.matches("did you mean").count(), 1, "{output:?}");
    // Arguments that violate the schema are reported in the result.
    let output = run(["call", &url, "sum", "to=0"]).await;
    assert_says(&output, 1, &["the tool sum reported an error"]);
    assert!(output.out.contains("to"), "{output:?}");
}

#[tokio::test]
async fn access_tokens_come_from_a_file_or_the_environment() {
    const SECRET: &str = "secret-of-alice-1";
    let files = Files::new();
    let tokens = files.write("tokens", &format!("alice {SECRET}\n"));
    let instance = Serve::new().tokens(&tokens).start().await;
    let url = instance.url();
    let right = files.write("right", &format!("{SECRET}\n"));
    let wrong = files.write("wrong", "unknown-secret-1\n");
    let broken = files.write("broken", "two words\n");
    let call = ["call", &url, "echo", "text=x", "--trace=9"];

    let without = run(call).await;
    assert_says(
        &without,
        5,
        &[
            "error: the server requires an access token\n",
            "hint: log in with `refrain login URL` if the server uses OAuth, or put an access token into a file and pass --bearer-file FILE, or set $REFRAIN_TOKEN\n",
        ],
    );
    let file = |path: &std::path::Path| path.display().to_string();
    let output = run([&call[..], &["--bearer-file", &file(&wrong)]].concat()).await;
    let rejected = [
        "error: the server rejected the access token: unknown bearer token\n",
        "hint: get a new token, and put it into the file of --bearer-file or into $REFRAIN_TOKEN\n",
    ];
    assert_says(&output, 5, &rejected);
    assert!(!output.err.contains("unknown-secret-1"), "{output:?}");
    let output = run([&call[..], &["--bearer-file", &file(&broken)]].concat()).await;
    assert_says(&output, 2, &["visible ASCII"]);
    let output = run([&call[..], &["--bearer-file", "/nowhere"]].concat()).await;
    assert_says(&output, 2, &["/nowhere"]);

    let by_file = run([&call[..], &["--bearer-file", &file(&right)]].concat()).await;
    let by_env = with_env("REFRAIN_TOKEN", SECRET, &call).await;
    for output in [by_file, by_env] {
        assert_prints(&output, "Echo: x\n");
        assert!(output.err.contains("tools/call echo"), "{output:?}");
        assert!(
            !output.err.contains(SECRET),
            "a secret is printed: {output:?}"
        );
    }
}

#[tokio::test]
async fn wrong_usage_names_the_missing_argument() {
    for (args, part) in [
        (&["call"][..], "missing server"),
        (&["call", "http://127.0.0.1:1/mcp"], "missing tool"),
        (&["prompt", "http://127.0.0.1:1/mcp"], "missing prompt"),
        (&["read", "http://127.0.0.1:1/mcp"], "missing URI"),
        (
            &["task", "get", "http://127.0.0.1:1/mcp"],
            "missing task id",
        ),
        (&["call", "ftp://example.com", "echo"], "http://"),
        (&["call", "http://me@127.0.0.1:1/", "echo"], "user name"),
        (&["tools", "--stdio"], "COMMAND"),
        (&["tools", "--", "cat"], "--stdio"),
        (
            &["tools", "--stdio", "http://127.0.0.1:1", "--", "cat"],
            "unexpected argument",
        ),
        (
            &[
                "call",
                "--stdio",
                "http://127.0.0.1:1/mcp",
                "echo",
                "--",
                "cat",
            ],
            "leave out",
        ),
        (&["call", "x", "y", "--rounds", "0"], "--rounds"),
        (&["call", "x", "y", "--deadline", "soon"], "--deadline"),
        (&["call", "x", "y", "--log", "loud"], "warning"),
        (&["resume"], "FILE"),
    ] {
        assert_says(&run(args).await, 2, &[part]);
    }
    let help = run(["call", "--help"]).await;
    assert!(help.ok && help.out.contains("Exit codes:"), "{help:?}");
    assert!(help.out.contains("130  interrupted"), "{help:?}");
}

#[tokio::test]
async fn name_in_place_of_the_url_is_reported_with_the_whole_command() {
    let url = "http://127.0.0.1:8080/mcp";
    for (args, first, command) in [
        (&["call", "hello"][..], "hello", "call URL hello"),
        (
            &["call", "hello", "name=Ada L"],
            "hello",
            "call URL hello 'name=Ada L'",
        ),
        (&["prompt", "greet"], "greet", "prompt URL greet"),
        (
            &["call", "fetch", "https_only=true"],
            "fetch",
            "call URL fetch https_only=true",
        ),
        (&["read", "notes://1"], "notes://1", "read URL notes://1"),
        (
            &["read", "httpdocs://1"],
            "httpdocs://1",
            "read URL httpdocs://1",
        ),
    ] {
        let error = format!(
            "error: the first argument must be the server's URL, not {first:?}\n\
             hint: pass the URL before it, as in `refrain {}`\n",
            command.replace("URL", url)
        );
        let output = run(args).await;
        assert_eq!((output.code, output.err), (2, error), "{args:?}");
    }
    // An address without its scheme is not a name.
    for (address, url) in [
        ("localhost:8080/mcp", "http://localhost:8080/mcp"),
        ("127.0.0.1/mcp", "http://127.0.0.1/mcp"),
        ("mcp.example.com", "http://mcp.example.com/mcp"),
    ] {
        let output = run(["call", address, "hello"]).await;
        let hint = format!("did you mean {url}?");
        assert_says(&output, 2, &[&hint]);
    }
}

/// A URL with `--stdio` is rejected, so the usage must not show one.
#[tokio::test]
async fn usage_shows_the_url_and_stdio_apart() {
    for (command, words) in [
        (&["tools"][..], ""),
        (&["prompts"], ""),
        (&["resources"], ""),
        (&["discover"], ""),
        (&["task", "show"], " ID"),
        (&["task", "watch"], " ID"),
        (&["task", "cancel"], " ID"),
    ] {
        let name = command.join(" ");
        let usage = format!(
            "Usage: refrain {name} [OPTIONS] URL{words}\n       refrain {name} [OPTIONS] --stdio{words} -- COMMAND...\n"
        );
        let help = run([command, &["--help"]].concat()).await;
        assert!(help.ok && help.out.contains(&usage), "{help:?}");
        let incomplete = run([command, &["--stdio"]].concat()).await;
        assert_says(&incomplete, 2, &[&usage]);
    }
}
