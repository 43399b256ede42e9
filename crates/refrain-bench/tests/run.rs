//! Runs the program with very short slices: the floor against itself, and tasks.

use std::process::{Command, Output};

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
    let output = run(&[
        "--refrain",
        PROGRAM,
        "--slices",
        "2",
        "--connections",
        "4",
        "--memory",
        "100",
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

    for workload in ["echo", "round 1", "round 2", "full exchange"] {
        // Two columns of times with a floor, Refrain and a ratio each.
        let numbers = numbers_after(&stdout, workload);
        assert_eq!(numbers.len(), 6, "{stdout}");
        assert!(numbers.iter().all(|number| *number > 0.0), "{stdout}");
    }
    assert!(stdout.contains("Slices: 2 of 0.05 s"), "{stdout}");
    assert_eq!(stdout.matches(" KiB\n").count(), 11, "{stdout}");
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
    assert!(stderr.contains("--refrain"), "{stderr}");
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
    let output = tasks(&[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    for expected in ["SQLite 3", "Postgres 1", "complete tasks", "tasks waiting"] {
        assert!(stdout.contains(expected), "missing {expected}:\n{stdout}");
    }

    for work in ["complete tasks", "tasks/get"] {
        // Per second and per task: floor, Refrain, ratio with its range.
        let numbers = numbers_after(&stdout, work);
        assert_eq!(numbers.len(), 10, "{stdout}");
        assert!(numbers.iter().all(|number| *number > 0.0), "{stdout}");
    }
    let counts: Vec<&str> = stdout
        .lines()
        .filter(|line| line.starts_with("commits per task: "))
        .collect();
    assert_eq!(counts.len(), 2, "{stdout}");
    for line in counts {
        // One commit each for create, ask, answer and complete, plus a share of a claim. Refrain's writes share commits.
        for (side, least) in [("floor", 4.0), ("Refrain", 0.0)] {
            let commits = numbers_after(line, &format!("{side} "))[0];
            assert!(least < commits && commits < 6.0, "{line}");
        }
        assert!(
            line.contains("create 1.00") && line.contains("commit 2.00"),
            "{line}"
        );
    }
    for waiting in ["            1  ", "            5  ", "           50  "] {
        assert_eq!(
            stdout.matches(&format!("\n{waiting}")).count(),
            2,
            "{stdout}"
        );
    }
}

/// The numbers in the first line with this text, after the text.
fn numbers_after(text: &str, label: &str) -> Vec<f64> {
    let line = text.lines().find_map(|line| line.split_once(label));
    let (_, rest) = line.unwrap_or_else(|| panic!("no line with {label}:\n{text}"));
    let words = rest
        .split([' ', '(', ')', ';'])
        .map(|word| word.trim_end_matches(','));
    let numbers = words.map(|word| word.replace(',', ""));
    numbers.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn capacity_compares_the_loads_with_the_model() {
    let output = Command::new(PROGRAM)
        .args(["capacity", "--refrain", PROGRAM])
        .args(["--server-core", "0", "--load-core", "0"])
        .args(["--seconds", "0.3", "--connections", "8"])
        .args(["--loads", "0.1,0.5"])
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    for expected in ["Saturation:", "offered", "M/D/1", "Machine:"] {
        assert!(stdout.contains(expected), "missing {expected}:\n{stdout}");
    }
    for load in ["10 %", "50 %"] {
        let line = stdout.lines().find(|line| line.starts_with(load));
        let numbers = numbers_after(line.expect("a row"), load);
        // Offered, achieved, CPU and its prediction, and seven times.
        assert_eq!(numbers.len(), 11, "{stdout}");
        assert!(numbers[0] > 0.0 && numbers[1] > 0.0, "{stdout}");
    }
}
