//! The short forms of the crash test, with fewer tasks, and of the soak test.

use serde_json::Value;
use std::process::Command;

/// Runs the test on this kind of store and returns the printed report.
fn crash(store: &[&str]) -> Value {
    let size = ["--tasks", "60", "--at-once", "30"];
    report(&[&["run", "--store"], store, &size].concat())
}

/// Runs a command that must pass its checks, and returns the printed report.
fn report(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_refrain-crash"))
        .args(arguments)
        .output()
        .expect("the program runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}{stdout}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// Checks that the run was disrupted. The exit code says whether all checks passed.
#[track_caller]
fn assert_disrupted(report: &Value) {
    assert_eq!(report["tasks"], 60, "{report:#}");
    assert_eq!(report["faults"], Value::Array(Vec::new()), "{report:#}");
    let at_least_one = [
        "/kills",
        "/takeovers",
        "/answers_wrong",
        "/answers_duplicated",
        "/answers_unknown",
        "/calls_duplicated",
        "/second_attempts/retried",
    ];
    for name in at_least_one {
        let count = report.pointer(name).and_then(Value::as_u64);
        assert!(count >= Some(1), "{name} in {report:#}");
    }
}

#[test]
fn tasks_on_sqlite_survive() {
    assert_disrupted(&crash(&["sqlite"]));
}

#[test]
fn tasks_on_postgres_survive() {
    let report = crash(&["postgres"]);
    assert_disrupted(&report);
    assert!(report["cuts"].as_u64() >= Some(1), "{report:#}");
    let own = std::env::var_os("REFRAIN_TEST_POSTGRES").is_none();
    assert_eq!(report["restarts"], u64::from(own), "{report:#}");
}

/// The exit code says whether all checks passed: results, effects, memory, files, tasks and rows left over.
#[test]
fn mixed_load_on_killed_instances_leaks_nothing() {
    let report = report(&["soak", "--seconds", "60", "--json"]);
    assert_eq!(report["faults"], Value::Array(Vec::new()), "{report:#}");
    assert!(report["kills"].as_u64() >= Some(4), "{report:#}");
    let attacks = report["counts"]["hostile"]["attacks"].as_object();
    assert_eq!(attacks.map(|attacks| attacks.len()), Some(12), "{report:#}");
}

#[test]
fn tasks_on_postgres_survive_a_failover() {
    let report = crash(&["postgres", "--failover"]);
    assert_disrupted(&report);
    let failovers = report["failovers"].as_array().expect("failovers");
    assert_eq!(failovers.len(), 1, "{report:#}");
    assert!(failovers[0]["calls"].as_u64() >= Some(1), "{report:#}");
}
