//! The short form of the crash test: fewer tasks.

use serde_json::Value;
use std::process::Command;

/// Runs the test on this kind of store and returns the printed report.
fn crash(store: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_refrain-crash"))
        .args(["run", "--store", store])
        .args(["--tasks", "60", "--at-once", "30"])
        .output()
        .expect("the program runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{printed}");
    serde_json::from_str(&printed).expect("JSON")
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
    for count in at_least_one {
        let there = report.pointer(count).and_then(Value::as_u64);
        assert!(there >= Some(1), "{count} in {report:#}");
    }
}

#[test]
fn tasks_on_sqlite_survive() {
    assert_disrupted(&crash("sqlite"));
}

#[test]
fn tasks_on_postgres_survive() {
    let report = crash("postgres");
    assert_disrupted(&report);
    assert!(report["cuts"].as_u64() >= Some(1), "{report:#}");
    let own = std::env::var_os("REFRAIN_TEST_POSTGRES").is_none();
    assert_eq!(report["restarts"], u64::from(own), "{report:#}");
}
