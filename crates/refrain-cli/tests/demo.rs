//! `refrain demo`, as a newcomer runs it.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const STORIES: [&str; 11] = [
    "weather",
    "work-item",
    "together",
    "upgrade",
    "shedding",
    "killed",
    "refused",
    "task",
    "sketch",
    "first-draft",
    "second-draft",
];

fn command(args: &[&str], temp: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command
        .arg("demo")
        .args(args)
        .env("TMPDIR", temp)
        .stdin(Stdio::null());
    command
}

/// Runs the demo to its end, and checks that it leaves nothing behind.
fn demo(args: &[&str]) -> Output {
    let temp = TempDir::new().unwrap();
    let output = command(args, temp.path()).output().unwrap();
    assert!(is_empty(temp.path()), "files were left behind");
    output
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

fn send(signal: &str, process: &str) {
    let sent = Command::new("kill").args([signal, process]).status();
    assert!(sent.unwrap().success());
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_story_holds() {
    let output = demo(&[]);
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}{}", text(&output.stderr));
    assert!(!told.contains('\x1b'), "colours where there is no terminal");
    let (stories, table) = told.split_once("\nWhat held\n\n").unwrap();
    for title in [
        "1. The weather",
        "4. The rolling upgrade",
        "7. Refused",
        "8. The echo as a task",
        "11. The second draft",
    ] {
        assert!(stories.contains(&format!("\n{title}")), "{stories}");
    }
    assert!(!told.contains("NOT HELD"), "{told}");
    let (rows, summary) = table.split_once("\n\n").unwrap();
    let width = rows.lines().next().unwrap().chars().count();
    for row in rows.lines() {
        assert!(row.ends_with("  held"), "{row:?}");
        assert_eq!(row.chars().count(), width, "{row:?}");
    }
    assert!(summary.contains("Everything held"), "{summary}");
    for line in told.lines() {
        assert!(line.chars().count() <= 100, "too wide: {line:?}");
    }
}

#[test]
fn machines_get_one_object_a_line() {
    let output = demo(&["--json"]);
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}{}", text(&output.stderr));
    let events: Vec<Value> = told
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str, story: &str| -> Vec<&Value> {
        events
            .iter()
            .filter(|event| event["event"] == kind && event["story"] == story)
            .collect()
    };
    for story in STORIES {
        let told = [of("round", story), of("task", story)].concat();
        assert!(!told.is_empty(), "{story} has no requests");
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

    let looks = of("task", "task");
    let told: Vec<_> = looks.iter().map(|look| &look["request"]).collect();
    let requests = ["tools/call", "tasks/get", "tasks/update", "tasks/get"];
    assert_eq!(told, requests);
    assert!(
        looks
            .iter()
            .all(|look| look["taskId"] == looks[0]["taskId"])
    );
    let stood: Vec<_> = looks.iter().map(|look| &look["status"]).collect();
    let stands = ["working", "input_required", "", "completed"];
    let stands = stands.map(|status| (!status.is_empty()).then_some(status));
    let stands = stands.map(|status| serde_json::json!(status));
    assert_eq!(stood, stands.iter().collect::<Vec<_>>());
    assert_eq!(looks[3]["text"], "Echo: Hello World!");
    // One attempt of the dead one and one of the other, under one key, and one effect.
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
fn one_story_alone() {
    let output = demo(&["--story", "upgrade"]);
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}{}", text(&output.stderr));
    assert!(told.contains("Linked GitHub octocat and Microsoft octo@example.org."));
    assert!(!told.contains("The weather"), "{told}");
}

#[test]
fn an_unknown_story_is_an_error_that_names_the_stories() {
    let output = demo(&["--story", "sonnet"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    for story in STORIES {
        assert!(said.contains(story), "{said}");
    }
}

#[test]
fn without_a_place_for_its_files_it_says_so() {
    let temp = TempDir::new().unwrap();
    let missing = temp.path().join("missing");
    let output = command(&[], &missing).output().unwrap();
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("missing/refrain-demo-"), "{said}");
    assert!(said.contains("TMPDIR"), "{said}");
}

#[test]
fn what_does_not_hold_is_told_and_fails() {
    let temp = TempDir::new().unwrap();
    let mut demo = command(&["--json", "--story", "refused"], temp.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut events: Vec<Value> = Vec::new();
    for line in lines {
        events.push(serde_json::from_str(&line.unwrap()).unwrap());
        // The story now waits for a token to expire: time to take away an instance that it needs afterwards.
        if events.last().unwrap()["tool"] == "get_weather_explicit" {
            let b = &events[0]["instances"][1];
            assert_eq!(b["name"], "b");
            send("-KILL", &b["process"].to_string());
        }
    }
    assert_eq!(demo.wait().unwrap().code(), Some(1));
    let broke = events.iter().find(|event| event["event"] == "broke");
    let problem = broke.unwrap()["problem"].as_str().unwrap();
    assert!(problem.contains("instance b"), "{problem}");
    let table = events.last().unwrap();
    assert_eq!(table["held"], false);
    assert_eq!(table["rows"][0]["held"], false);
    assert!(is_empty(temp.path()), "files were left behind");
}

#[test]
fn when_it_is_stopped_nothing_stays_behind() {
    let temp = TempDir::new().unwrap();
    let mut demo = command(&["--json"], temp.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let fleet: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let addresses: Vec<SocketAddr> = fleet["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|instance| instance["address"].as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(addresses.len(), 3);

    send("-TERM", &demo.id().to_string());
    // Read to the end, so that the demo is not stopped by a full pipe instead.
    lines.for_each(drop);
    let status = demo.wait().unwrap();
    let mut said = String::new();
    demo.stderr.unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(is_empty(temp.path()), "files were left behind");
    let deadline = Instant::now() + Duration::from_secs(60);
    for address in addresses {
        while TcpStream::connect(address).is_ok() {
            assert!(Instant::now() < deadline, "{address} is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
