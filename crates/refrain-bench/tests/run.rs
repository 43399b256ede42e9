//! Runs the program with very short slices: the floor against itself, and tasks.

use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_refrain-bench");

/// Runs a speed benchmark with everything on core 0, which every machine has.
fn run(options: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(["run", "--server-core", "0", "--load-core", "0"])
        .args(["--seconds-per-slice", "0.05"])
        .args(options)
        .output()
        .expect("the program starts")
}

#[test]
fn floor_against_itself_yields_a_full_report() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let path = json.path().to_str().unwrap();
    let output = run(&[
        "--refrain",
        PROGRAM,
        "--slices",
        "2",
        "--connections",
        "4",
        "--memory",
        "100",
        "--json",
        path,
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");

    let stdout = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "requests/s",
        "round 1",
        "full exchange",
        "100 % over 10 %",
        "Machine:",
    ] {
        assert!(stdout.contains(expected), "missing {expected}:\n{stdout}");
    }
    assert!(!stdout.contains('\x1b'), "no colours unless on a terminal");

    let report: Value = serde_json::from_reader(json.as_file()).unwrap();
    let workloads = report["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 4);
    for workload in workloads {
        for side in ["floor", "refrain"] {
            let slices = workload[side]["slices"].as_array().unwrap();
            assert_eq!(slices.len(), 2);
            assert!(slices.iter().all(|slice| slice["done"].as_u64() > Some(0)));
        }
    }
    assert_eq!(
        report["memory"]["residentKib"].as_array().unwrap().len(),
        11
    );
}

#[test]
fn failing_server_is_named_with_its_log() {
    // `cat` rejects the option --listen.
    let output = run(&["--refrain", "/bin/cat", "--slices", "1"]);
    assert!(!output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("Refrain exited early"), "{stderr}");
    assert!(stderr.contains("--listen"), "{stderr}");
}

#[test]
fn missing_server_error_has_a_hint() {
    let output = run(&["--refrain", "/nowhere/refrain"]);
    assert!(!output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("no server at /nowhere/refrain"), "{stderr}");
    assert!(stderr.contains("--floor-only"), "{stderr}");
}

/// Runs a short task benchmark.
fn tasks(options: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(["tasks", "--seconds-per-slice", "0.05", "--slices", "2"])
        .args(["--concurrent", "4", "--idle", "50", "--idle-seconds", "1.2"])
        .args(options)
        .output()
        .expect("the program starts")
}

#[test]
fn tasks_are_measured_on_both_stores() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let output = tasks(&["--json", json.path().to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    for expected in ["SQLite 3", "Postgres 1", "complete tasks", "tasks waiting"] {
        assert!(stdout.contains(expected), "missing {expected}:\n{stdout}");
    }

    let report: Value = serde_json::from_reader(json.as_file()).unwrap();
    let stores = report["stores"].as_array().unwrap();
    assert_eq!(stores.len(), 2);
    for store in stores {
        for work in ["life", "get"] {
            for side in ["floor", "refrain"] {
                let slices = store[work][side].as_array().unwrap();
                assert_eq!(slices.len(), 2);
                assert!(slices.iter().all(|slice| slice["done"].as_u64() > Some(0)));
            }
        }
        // One commit each for create, ask, answer and complete, plus a share of a claim.
        for side in ["floorCommits", "refrainCommits"] {
            let commits = store["perTask"][side].as_f64().unwrap();
            assert!(4.0 < commits && commits < 6.0, "{side}: {commits}");
        }
        let calls = &store["perTask"]["calls"];
        let made = |call: &str| calls[call].as_f64();
        assert_eq!((made("create"), made("commit")), (Some(1.0), Some(2.0)));
        let waiting: Vec<&Value> = store["idle"]
            .as_array()
            .unwrap()
            .iter()
            .map(|idle| &idle["waiting"])
            .collect();
        assert_eq!(waiting, [1, 5, 50]);
    }
}

#[test]
fn store_with_tasks_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("a.db").display());
    let arguments = ["--store", &url, "--idle", "0", "--slices", "0"];
    let run = |options: &[&str]| {
        let mut program = Command::new(PROGRAM);
        program.args(["tasks", "--concurrent", "1"]).args(options);
        program.output().expect("the program starts")
    };
    let first = run(&arguments);
    let stderr = String::from_utf8_lossy(&first.stderr);
    assert!(first.status.success(), "{stderr}");
    let second = run(&arguments);
    assert!(!second.status.success());
    let stderr = String::from_utf8(second.stderr).unwrap();
    assert!(
        stderr.contains("the database contains 10 tasks"),
        "{stderr}"
    );
}
