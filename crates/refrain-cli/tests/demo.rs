//! `refrain demo`.
#![allow(clippy::unwrap_used)]

use refrain_testkit::net::process::{Output, Process};
use refrain_testkit::net::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use tempfile::TempDir;
use tokio::process::Command;

const STORIES: [&str; 8] = [
    "weather",
    "work-item",
    "together",
    "upgrade",
    "shedding",
    "killed",
    "refused",
    "task",
];
const DRAFT_STORIES: [&str; 3] = ["sketch", "first-draft", "second-draft"];

fn command(args: &[&str], temp: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.arg("demo").args(args).env("TMPDIR", temp);
    command
}

/// Runs the demo, and checks that it leaves no files.
fn demo(args: &[&str]) -> Output {
    let temp = TempDir::new().unwrap();
    let output = output(command(args, temp.path()));
    assert!(is_empty(temp.path()), "files were left");
    output
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

/// Runs a command without a time limit.
fn output(command: Command) -> Output {
    let output = command
        .into_std()
        .stdin(std::process::Stdio::null())
        .output();
    output.unwrap().into()
}

#[test]
fn every_claim_of_every_story_holds() {
    let output = demo(&[]);
    let stdout = &output.out;
    assert!(output.ok, "{stdout}{}", output.err);
    assert!(!stdout.contains('\x1b'), "colours without a terminal");
    for title in [
        "1. The weather",
        "4. The rolling upgrade",
        "7. Rejected tokens",
        "8. The echo as a task",
    ] {
        assert!(stdout.contains(&format!("\n{title}")), "{stdout}");
    }
    assert!(!stdout.contains("draft"), "{stdout}");
    assert!(!stdout.contains("FAILED"), "{stdout}");
    let claims: Vec<&str> = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("  ok        "))
        .collect();
    assert_eq!(claims.len(), 26, "{stdout}");
    for claim in claims {
        assert_eq!(stdout.matches(claim).count(), 1, "printed twice: {claim}");
    }
    let summary = stdout.lines().last().unwrap();
    assert!(summary.starts_with("All 26 checks passed. "), "{summary}");
    for line in stdout.lines() {
        assert!(line.chars().count() <= 100, "too wide: {line:?}");
    }
}

#[test]
fn story_of_a_draft_requires_the_flag() {
    let output = demo(&["--story", "sketch"]);
    assert_eq!(output.code, 2, "{output:?}");
    assert_eq!(output.err, "error: story \"sketch\" requires --drafts\n");
}

#[test]
fn json_output_has_one_object_per_line() {
    let output = demo(&["--json", "--drafts"]);
    let stdout = &output.out;
    assert!(output.ok, "{stdout}{}", output.err);
    let events: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str, story: &str| -> Vec<&Value> {
        events
            .iter()
            .filter(|event| event["event"] == kind && event["story"] == story)
            .collect()
    };
    for story in STORIES.into_iter().chain(DRAFT_STORIES) {
        let requests = [of("round", story), of("task", story)].concat();
        assert!(!requests.is_empty(), "{story} has no requests");
        let claims = of("claim", story);
        assert!(!claims.is_empty(), "{story} claims nothing");
        assert!(claims.iter().all(|claim| claim["held"] == true));
    }
    let rounds = of("round", "work-item");
    let served: Vec<&Value> = rounds.iter().map(|round| &round["instance"]).collect();
    assert_eq!(served, ["a", "b", "c"]);
    assert_eq!(rounds[0]["reply"], "incomplete");
    assert!(rounds[0]["asks"]["resolution"].is_object());
    assert_eq!(rounds[1]["sentTokenBytes"], rounds[0]["tokenBytes"]);
    assert_eq!(rounds[2]["reply"], "complete");
    assert_eq!(of("round", "killed")[1]["passedOver"][0], "a");

    let task_events = of("task", "task");
    let member =
        |name: &str| -> Vec<&Value> { task_events.iter().map(|event| &event[name]).collect() };
    let requests = ["tools/call", "tasks/get", "tasks/update", "tasks/get"];
    assert_eq!(member("request"), requests);
    let id = &task_events[0]["taskId"];
    assert_eq!(member("taskId"), [id; 4]);
    let statuses = json!(["working", "input_required", null, "completed"]);
    assert_eq!(json!(member("status")), statuses);
    assert_eq!(task_events[3]["text"], "Echo: Hello World!");
    // Two attempts by two processes under one key, and one effect.
    let notes = of("note", "task");
    let ledger = notes
        .iter()
        .filter_map(|note| note["note"].as_str()?.strip_prefix("ledger: "));
    let ledger: Vec<Vec<&str>> = ledger.map(|line| line.split(' ').collect()).collect();
    let kinds: Vec<&str> = ledger.iter().map(|words| words[0]).collect();
    assert_eq!(kinds, ["attempt", "attempt", "done"]);
    assert!(ledger.iter().all(|words| words[1] == ledger[0][1]));
    assert_ne!(ledger[0].last(), ledger[1].last());

    let table = events.last().unwrap();
    assert_eq!(table["event"], "table");
    assert_eq!(table["held"], true);
    assert_eq!(table["rows"].as_array().unwrap().len(), 32, "{table}");
    let claims = events.iter().filter(|event| event["event"] == "claim");
    assert_eq!(table["rows"].as_array().unwrap().len(), claims.count());
}

#[test]
fn single_story_is_played_alone() {
    let output = demo(&["--story", "upgrade"]);
    let stdout = &output.out;
    assert!(output.ok, "{stdout}{}", output.err);
    assert!(stdout.contains("Linked GitHub octocat and Microsoft octo@example.org."));
    assert!(!stdout.contains("The weather"), "{stdout}");
}

#[test]
fn unknown_story_is_rejected_with_the_list_of_stories() {
    let output = demo(&["--story", "sonnet"]);
    assert!(!output.ok);
    let error = &output.err;
    for story in STORIES.into_iter().chain(DRAFT_STORIES) {
        assert!(error.contains(story), "{error}");
    }
    let output = demo(&["--story", "sketch"]);
    assert!(!output.ok && output.err.contains("--drafts"), "{output:?}");
}

#[test]
fn missing_temporary_directory_is_reported() {
    let temp = TempDir::new().unwrap();
    let missing = temp.path().join("missing");
    let output = output(command(&[], &missing));
    assert!(!output.ok);
    let error = &output.err;
    assert!(error.contains("missing/refrain-demo-"), "{error}");
    assert!(error.contains("TMPDIR"), "{error}");
}

#[tokio::test]
async fn failed_claim_is_reported_and_the_demo_fails() {
    let temp = TempDir::new().unwrap();
    let command = command(&["--json", "--story", "refused"], temp.path());
    // After this event the story waits for a token to expire. Kill an instance that it needs afterwards.
    let waits = "\"tool\":\"get_weather_explicit\"";
    let (mut demo, _) = Process::start(command, waits, None).await;
    let read = |line: &String| serde_json::from_str(line).unwrap();
    let fleet = demo.log.wait_for("\"instances\":", 1).await;
    let fleet: Value = read(&fleet);
    let b = &fleet["instances"][1];
    assert_eq!(b["name"], "b");
    let process = i32::try_from(b["process"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    assert_eq!(demo.ended().await.code(), Some(1));
    let lines = demo.log.lines();
    let events: Vec<Value> = lines
        .iter()
        .filter(|line| line.starts_with('{'))
        .map(read)
        .collect();
    let broke = events.iter().find(|event| event["event"] == "broke");
    let problem = broke.unwrap()["problem"].as_str().unwrap();
    assert!(problem.contains("instance b"), "{problem}");
    let table = events.last().unwrap();
    assert_eq!(table["held"], false);
    assert_eq!(table["rows"][0]["held"], false);
    assert!(is_empty(temp.path()), "files were left");
}

#[tokio::test]
async fn interrupted_demo_leaves_no_processes_or_files() {
    let temp = TempDir::new().unwrap();
    let command = command(&["--json"], temp.path());
    let (mut demo, fleet) = Process::start(command, "\"instances\":", None).await;
    let fleet: Value = serde_json::from_str(&fleet).unwrap();
    let addresses: Vec<SocketAddr> = fleet["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|instance| instance["address"].as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(addresses.len(), 3);

    demo.signal(Signal::TERM);
    let status = demo.ended().await;
    assert_eq!(status.code(), Some(130), "{:?}", demo.log);
    assert!(is_empty(temp.path()), "files were left");
    for address in addresses {
        let is_gone = || TcpStream::connect(address).is_err();
        until(&format!("the end of {address}"), is_gone).await;
    }
}
