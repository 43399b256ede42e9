//! `--dialect`: saved calls and printed hints keep the dialect.

use super::{assert_prints, assert_says, json, saved_call};
use crate::support::{FakeServer, Files, Respond, Serve, run};
use refrain_client::Dialect;
use refrain_wire::drafts::Draft;
use refrain_wire::legacy::Revision;
use serde_json::json;

#[tokio::test]
async fn saved_call_continues_in_its_dialect() {
    let files = Files::new();
    let instance = Serve::new().args(["--drafts"]).start().await;
    for draft in Draft::ALL {
        let url = format!("http://{}{}", instance.address, draft.path());
        let file = files.path(draft.name());
        let name = file.display().to_string();
        let call = ["call", "--dialect", draft.name(), &url, "get_weather"];
        let output = run([&call[..], &["location=Paris", "--save", &name]].concat()).await;
        assert_says(&output, 3, &["github_login", "refrain resume"]);
        assert_eq!(saved_call(&file).dialect(), Some(Dialect::Draft(draft)));

        let answer = r#"github_login={"name":"octocat"}"#;
        let output = run(["resume", &name, "--answer", answer]).await;
        if draft == Draft::Sketch {
            // The sketch has two asks, and the call is saved again.
            assert_says(&output, 3, &["refrain resume"]);
            assert_eq!(saved_call(&file).dialect(), Some(Dialect::Draft(draft)));
            continue;
        }
        assert_eq!(output.code, 0, "{output:?}");
        assert!(output.out.contains("weather in Paris"), "{output:?}");
        assert!(!file.exists());
    }
}

#[tokio::test]
async fn draft_at_a_wrong_path_is_reported_with_the_right_one() {
    let files = Files::new();
    let instance = Serve::new().args(["--drafts"]).start().await;
    let file = files.path("call");
    let name = file.display().to_string();
    for draft in Draft::ALL {
        let url = instance.url();
        let call = ["call", "--dialect", draft.name(), &url, "get_weather"];
        let output = run([&call[..], &["location=Paris", "--save", &name]].concat()).await;
        let not_spoken = format!("{url} does not speak {}", draft.name());
        assert_says(&output, 4, &[&not_spoken, "--drafts", draft.path()]);
        for misleading in ["reported an error", "refrain resume"] {
            assert!(!output.err.contains(misleading), "{output:?}");
        }
        assert_eq!((&*output.out, file.exists()), ("", false));
    }
    let serve = ["--", env!("CARGO_BIN_EXE_refrain"), "serve", "--stdio"];
    let call = ["call", "--stdio", "--dialect", "draft-2", "get_weather"];
    let output = run([&call[..], &["location=Paris"], &serve].concat()).await;
    assert_says(&output, 4, &["--stdio --dialect draft-2"]);
}

#[tokio::test]
async fn discover_prints_the_selected_dialect() {
    let instance = Serve::new().args(["--drafts"]).start().await;
    let drafts = Draft::ALL.map(|draft| (Dialect::Draft(draft), draft.path(), json!([])));
    let older = Revision::ALL.iter().map(|revision| {
        let dialect = Dialect::Revision(*revision);
        (dialect, "/mcp", json!([dialect.name()]))
    });
    for (dialect, path, versions) in older.chain(drafts) {
        let url = format!("http://{}{path}", instance.address);
        let discover = ["discover", "--dialect", dialect.name(), &url];
        let output = run(discover).await;
        assert_eq!(output.code, 0, "{output:?}");
        let revision = format!("revision      {}\n", dialect.name());
        assert!(output.out.contains(&revision), "{output:?}");
        assert!(!output.out.contains("2026-07-28"), "{output:?}");
        let output = run([&discover[..], &["--json"]].concat()).await;
        assert_eq!(json(&output)["version"], dialect.name());
        assert_eq!(json(&output)["supportedVersions"], versions);
        let is_draft = !dialect.is_revision();
        let note = "note: a server of 2025-11-25 answers `discover` alike";
        assert_eq!(output.err.contains(note), is_draft, "{output:?}");
    }
}

#[tokio::test]
async fn saved_call_without_a_dialect_is_read() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let file = files.path("call");
    let name = file.display().to_string();
    let call = ["call", &instance.url(), "get_weather", "location=Paris"];
    let output = run([&call[..], &["--save", &name]].concat()).await;
    assert_eq!(output.code, 3, "{output:?}");
    let text = std::fs::read_to_string(&file).expect("the call is saved");
    assert!(!text.contains("dialect"), "{text}");
    assert_eq!(saved_call(&file).dialect(), None);
    let strange = text.replacen('{', r#"{"dialect": "draft-9","#, 1);
    let strange = files.write("strange", &strange).display().to_string();
    let output = run(["resume", &strange]).await;
    assert_says(&output, 2, &["draft-9"]);
}

#[tokio::test]
async fn hint_to_watch_a_task_contains_its_dialect() {
    let instance = Serve::new()
        .args(["--drafts"])
        .env("REFRAIN_STORE", "memory:")
        .start()
        .await;
    for draft in [Draft::First, Draft::Second] {
        let url = format!("http://{}{}", instance.address, draft.path());
        let call = ["call", "--dialect", draft.name(), &url, "echo_task"];
        let output = run([&call[..], &["--json"]].concat()).await;
        let flag = format!("--dialect {}", draft.name());
        assert_says(&output, 3, &["refrain task watch", &flag]);
        let id = json(&output)["taskId"]
            .as_str()
            .expect("the id is a string")
            .to_owned();
        let line = output.err.lines().find(|line| line.contains("task watch"));
        let words: Vec<&str> = line.expect("a command").split_whitespace().collect();
        assert_eq!(
            words[..6],
            ["refrain", "task", "watch", &url, &id, "--dialect"]
        );
        let answer = ["--answer", r#"echo_input={"input":"hey"}"#];
        let output = run([&words[1..7], &answer].concat()).await;
        assert_prints(&output, "Echo: hey\n");
    }
}

#[tokio::test]
async fn newest_revision_can_be_required() {
    let instance = Serve::new().start().await;
    let newest = ["--dialect", "2026-07-28"];
    let output = run([&["call", &instance.url(), "echo", "text=hey"][..], &newest].concat()).await;
    assert_prints(&output, "Echo: hey\n");

    let legacy = FakeServer::legacy(|_, _| Respond::text("never")).await;
    let output = run([&["call", &legacy.url(), "t"][..], &newest].concat()).await;
    let parts = [
        "does not speak 2026-07-28",
        "Server not initialized",
        "hint: without --dialect",
    ];
    assert_says(&output, 4, &parts);
    assert_eq!(legacy.count("initialize"), 0, "no fallback");

    let files = Files::new();
    let instance = Serve::new().start().await;
    let file = files.path("call").display().to_string();
    let call = ["call", &instance.url(), "get_weather", "location=Paris"];
    let output = run([&call[..], &["--save", &file]].concat()).await;
    assert_eq!(output.code, 3, "{output:?}");
    assert!(!output.err.contains("cannot be saved"), "{output:?}");
    let answer = r#"github_login={"name":"Ada"}"#;
    let resume = ["resume", &file, "--answer", answer];
    let output = run([&resume[..], &["--dialect", "2025-11-25"]].concat()).await;
    let parts = [
        "the connection uses 2025-11-25, which cannot resume calls\n",
        "hint: leave out --dialect\n",
    ];
    assert_says(&output, 2, &parts);
    assert_eq!(run(resume).await.code, 0);

    let output = run(["tools", &legacy.url(), "--dialect", "2026-07-29"]).await;
    assert_says(
        &output,
        2,
        &["2026-07-28, 2025-11-25, 2025-06-18, 2025-03-26, 2024-11-05, draft-0"],
    );
}
