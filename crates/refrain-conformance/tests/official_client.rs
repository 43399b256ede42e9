//! The official suite's client scenarios, run against the program as it was built.
//!
//! These are all that the revision requires outside `auth/`; the client has no authorization. The suite and
//! what it needs are installed first; where that is not possible the tests fail.

use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const REVISION: &str = "2026-07-28";
/// The suite's own limit for the client, in milliseconds.
const CLIENT_MS: &str = "30000";
/// Time for one run of the suite, in seconds.
const SUITE_SECONDS: u32 = 60;
/// Time for the suite to be installed, in seconds.
const INSTALL_SECONDS: u32 = 1200;
/// The check that every exchange has, whatever is said in it.
const WIRE_CHECK: &str = "wire-schema-valid";

/// The required scenarios, and how many checks must have succeeded in each, without the one every exchange has. A
/// client that does nothing passes some of them without a failure.
const SCENARIOS: [(&str, usize); 8] = [
    ("tools_call", 1),
    ("request-metadata", 8),
    ("http-standard-headers", 9),
    ("http-custom-headers", 18),
    ("http-invalid-tool-headers", 12),
    ("json-schema-ref-no-deref", 1),
    ("sep-2322-client-request-state", 5),
    ("json-schema-2020-12-preservation", 5),
];

/// What the revision does not require.
const UNSCORED: &str = "json-schema-2020-12-preservation";

/// A check that the suite recorded.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Check {
    id: String,
    status: String,
    description: String,
    error_message: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run_bounded(seconds: u32, program: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["--kill-after=5", &seconds.to_string()])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) could not be started")
}

fn shown(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn suite(arguments: &[&str]) -> Output {
    let installed = run_bounded(INSTALL_SECONDS, &root().join("scripts/tools"), &[]);
    assert!(installed.status.success(), "{}", shown(&installed));
    run_bounded(
        SUITE_SECONDS,
        &root().join(".tools/bin/conformance"),
        arguments,
    )
}

/// The folder in which the suite left the results of its only scenario.
fn results_of_run(output_dir: &Path) -> PathBuf {
    let mut runs = fs::read_dir(output_dir).expect("the suite left no results");
    let run = runs.next().expect("the suite left no results");
    assert!(runs.next().is_none(), "the suite left two results");
    run.expect("the results cannot be listed").path()
}

/// Runs a scenario. Alone, `--scenario` speaks an older revision to scenarios that are older than this one, so the
/// version is given. The status is that of the judgement, in which a warning is a failure and so is, but for
/// `http-invalid-tool-headers`, a client that failed; with `--expected-failures` it would not be.
fn run_scenario(scenario: &str) {
    let output_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("official-{scenario}"));
    if output_dir.exists() {
        fs::remove_dir_all(&output_dir).expect("old results cannot be removed");
    }
    // The suite hands the command to a shell.
    let client = format!("'{}' client", env!("CARGO_BIN_EXE_refrain-conformance"));
    let run = suite(&[
        "client",
        "--command",
        &client,
        "--scenario",
        scenario,
        "--spec-version",
        REVISION,
        "--force",
        "--timeout",
        CLIENT_MS,
        "--output-dir",
        output_dir.to_str().expect("the path is UTF-8"),
    ]);
    assert!(run.status.success(), "{scenario}: {}", shown(&run));

    let results = results_of_run(&output_dir);
    let stdout = fs::read_to_string(results.join("stdout.txt")).expect("the suite kept no output");
    assert_eq!(stdout, "done\n", "{scenario}: {}", shown(&run));
    let checks = fs::read(results.join("checks.json")).expect("the suite kept no checks");
    let checks: Vec<Check> = serde_json::from_slice(&checks).expect("the checks make no sense");
    judge(scenario, &checks);
}

/// Nothing may have failed or been warned about, and enough must have been looked at.
fn judge(scenario: &str, checks: &[Check]) {
    for check in checks {
        let reason = check.error_message.as_ref().unwrap_or(&check.description);
        assert!(
            ["SUCCESS", "SKIPPED", "INFO"].contains(&check.status.as_str()),
            "{scenario}: {} {}: {reason}",
            check.status,
            check.id,
        );
    }
    let succeeded = checks
        .iter()
        .filter(|check| check.status == "SUCCESS" && check.id != WIRE_CHECK)
        .count();
    let total = checks.len();
    println!("{scenario}: {succeeded} of {total} checks succeeded, without {WIRE_CHECK}");
    let (_, least) = SCENARIOS
        .into_iter()
        .find(|(name, _)| *name == scenario)
        .expect("the scenario is not listed");
    assert!(
        succeeded >= least,
        "{scenario}: only {succeeded} of {total} checks succeeded, {least} are expected"
    );
}

#[test]
fn every_required_scenario_without_authorization_is_run() {
    let list = suite(&["list", "--requirements", REVISION]);
    assert!(list.status.success(), "{}", shown(&list));
    let list = String::from_utf8(list.stdout).unwrap();
    let mut required: Vec<&str> = list
        .lines()
        .skip_while(|line| !line.starts_with("Client scenarios"))
        .skip(1)
        .map_while(|line| line.trim_start().strip_prefix("- "))
        .filter(|name| !name.starts_with("auth/"))
        .collect();
    let mut run: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
    run.retain(|name| *name != UNSCORED);
    required.sort_unstable();
    run.sort_unstable();
    assert_eq!(run, required);
}

#[test]
fn tools_call() {
    run_scenario("tools_call");
}

#[test]
fn request_metadata() {
    run_scenario("request-metadata");
}

#[test]
fn http_standard_headers() {
    run_scenario("http-standard-headers");
}

#[test]
fn http_custom_headers() {
    run_scenario("http-custom-headers");
}

#[test]
fn http_invalid_tool_headers() {
    run_scenario("http-invalid-tool-headers");
}

#[test]
fn json_schema_ref_no_deref() {
    run_scenario("json-schema-ref-no-deref");
}

#[test]
fn sep_2322_client_request_state() {
    run_scenario("sep-2322-client-request-state");
}

#[test]
fn json_schema_2020_12_preservation() {
    run_scenario("json-schema-2020-12-preservation");
}
