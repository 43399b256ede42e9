//! A short crash test with fewer tasks.

use serde_json::Value;
use std::process::Command;

/// Runs the crash test on a store and returns its report.
fn crash(store: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_refrain-crash"))
        .args(["run", "--json", "--store", store])
        .args(["--tasks", "60", "--at-once", "30"])
        .output()
        .expect("the program runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{printed}");
    serde_json::from_str(&printed).expect("JSON")
}

/// Checks that disruptions happened and had an effect. The exit code covers the checks.
#[track_caller]
fn assert_trouble(report: &Value) {
    assert_eq!(report["tasks"], 60, "{report:#}");
    assert_eq!(report["faults"], Value::Array(Vec::new()), "{report:#}");
    let at_least_one = [
        "/kills",
        "/takeovers",
        "/answers_wrong",
        "/answers_doubled",
        "/answers_unknown",
        "/calls_doubled",
        "/second_attempts/retried",
    ];
    for count in at_least_one {
        let there = report.pointer(count).and_then(Value::as_u64);
        assert!(there >= Some(1), "{count} in {report:#}");
    }
}

#[test]
fn sqlite_tasks_survive_crashes() {
    assert_trouble(&crash("sqlite"));
}

#[test]
fn postgres_tasks_survive_crashes() {
    let report = crash("postgres");
    assert_trouble(&report);
    assert!(report["cuts"].as_u64() >= Some(1), "{report:#}");
    let own = std::env::var_os("REFRAIN_TEST_POSTGRES").is_none();
    assert_eq!(report["restarts"], u64::from(own), "{report:#}");
}

#[test]
fn non_empty_store_is_rejected() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tasks.db");
    let run = || {
        Command::new(env!("CARGO_BIN_EXE_refrain-crash"))
            .args(["run", "--tasks", "1", "--seed", "1"])
            .arg("--store")
            .arg(format!("sqlite:{}", file.display()))
            .output()
            .expect("the program runs")
    };
    let first = run();
    assert!(first.status.success(), "{first:?}");
    let second = run();
    assert!(!second.status.success(), "{second:?}");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("use an empty one"), "{said}");
}
