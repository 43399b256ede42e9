//! All client scenarios of the official conformance suite, required or not.
//!
//! The tests install the suite, and fail if the installation fails.

use refrain_testkit::net::installed::{install, output, root};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use tokio::process::Command;

const REVISION: &str = "2026-07-28";
const LEGACY_REVISION: &str = "2025-11-25";
/// The suite's timeout for the client, in milliseconds.
const CLIENT_MS: &str = "120000";
/// The timeout of one run of the suite, in seconds.
const SUITE_SECONDS: &str = "300";
/// The check that every exchange passes.
const WIRE_CHECK: &str = "wire-schema-valid";

/// The scenarios with the minimum number of successful checks, not counting [`WIRE_CHECK`]. Without a minimum, a client
/// that does nothing would pass some of them.
const SCENARIOS: [(&str, usize); 39] = [
    ("tools_call", 1),
    ("request-metadata", 8),
    ("http-standard-headers", 9),
    ("http-custom-headers", 18),
    ("http-invalid-tool-headers", 12),
    ("json-schema-ref-no-deref", 1),
    ("sep-2322-client-request-state", 5),
    ("json-schema-2020-12-preservation", 5),
    ("auth/metadata-default", 17),
    ("auth/metadata-var1", 17),
    ("auth/metadata-var2", 17),
    ("auth/metadata-var3", 17),
    ("auth/basic-cimd", 11),
    ("auth/scope-from-www-authenticate", 13),
    ("auth/scope-from-scopes-supported", 13),
    ("auth/scope-omitted-when-undefined", 13),
    ("auth/scope-step-up", 24),
    ("auth/scope-retry-limit", 11),
    ("auth/token-endpoint-auth-basic", 18),
    ("auth/token-endpoint-auth-post", 18),
    ("auth/token-endpoint-auth-none", 18),
    ("auth/pre-registration", 11),
    ("auth/resource-mismatch", 2),
    ("auth/offline-access-scope", 14),
    ("auth/offline-access-not-supported", 13),
    ("auth/authorization-server-migration", 26),
    ("auth/iss-supported", 13),
    ("auth/iss-not-advertised", 13),
    ("auth/iss-supported-missing", 8),
    ("auth/iss-wrong-issuer", 8),
    ("auth/iss-unexpected", 8),
    ("auth/iss-normalized", 8),
    ("auth/metadata-issuer-mismatch", 3),
    ("auth/client-credentials-jwt", 6),
    ("auth/client-credentials-basic", 6),
    ("auth/enterprise-managed-authorization", 7),
    ("auth/dpop", 13),
    ("auth/dpop-nonce", 15),
    ("auth/wif-jwt-bearer", 6),
];

/// The scenarios of 2025-11-25, see [`SCENARIOS`].
const LEGACY_SCENARIOS: [(&str, usize); 25] = [
    ("initialize", 1),
    ("tools_call", 1),
    ("elicitation-sep1034-client-defaults", 5),
    ("sse-retry", 3),
    ("json-schema-2020-12-preservation", 8),
    ("auth/metadata-default", 19),
    ("auth/metadata-var1", 19),
    ("auth/metadata-var2", 19),
    ("auth/metadata-var3", 19),
    ("auth/basic-cimd", 14),
    ("auth/scope-from-www-authenticate", 15),
    ("auth/scope-from-scopes-supported", 15),
    ("auth/scope-omitted-when-undefined", 15),
    ("auth/scope-step-up", 23),
    ("auth/scope-retry-limit", 10),
    ("auth/token-endpoint-auth-basic", 20),
    ("auth/token-endpoint-auth-post", 20),
    ("auth/token-endpoint-auth-none", 20),
    ("auth/pre-registration", 14),
    ("auth/client-credentials-jwt", 9),
    ("auth/client-credentials-basic", 9),
    ("auth/enterprise-managed-authorization", 10),
    ("auth/dpop", 12),
    ("auth/dpop-nonce", 14),
    ("auth/wif-jwt-bearer", 9),
];

/// The scenarios in which the client must fail, with its error message.
const FAILING: [(&str, &str); 7] = [
    (
        "auth/scope-retry-limit",
        "the server still rejects the request with scope \"mcp:admin\"",
    ),
    (
        "auth/resource-mismatch",
        "metadata is for \"https://evil.example.com/mcp\"",
    ),
    ("auth/iss-supported-missing", "its issuer (iss) is missing"),
    (
        "auth/iss-wrong-issuer",
        "its issuer (iss) is another authorization server",
    ),
    (
        "auth/iss-unexpected",
        "its issuer (iss) is another authorization server",
    ),
    (
        "auth/iss-normalized",
        "its issuer (iss) is another authorization server",
    ),
    (
        "auth/metadata-issuer-mismatch",
        "names another issuer: \"https://attacker.example.com\"",
    ),
];

/// A check that the suite recorded.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Check {
    id: String,
    status: String,
    description: String,
    error_message: Option<String>,
}

fn describe(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

async fn suite(arguments: &[&str]) -> Output {
    install().await;
    let mut command = Command::new(root().join(".tools/bin/conformance"));
    command.args(arguments);
    output(SUITE_SECONDS, &command).await
}

/// The folder with the results of a run. The scenario's name may contain a slash and be a path.
fn results_of_run(output_dir: &Path) -> PathBuf {
    let mut folder = output_dir.to_owned();
    while !folder.join("checks.json").exists() {
        let mut entries = fs::read_dir(&folder).expect("the suite writes results");
        let entry = entries.next().expect("the suite writes results");
        assert!(
            entries.next().is_none(),
            "the suite wrote results of two scenarios"
        );
        folder = entry.expect("the results can be listed").path();
    }
    folder
}

/// Runs a scenario.
///
/// Without `--spec-version`, the suite would use a legacy revision for older scenarios. Its exit status treats warnings
/// and, in most scenarios, a failed client as failures.
async fn run_scenario(revision: &str, scenario: &str) {
    let output_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "official-{revision}-{}",
        scenario.replace('/', "-")
    ));
    if output_dir.exists() {
        fs::remove_dir_all(&output_dir).expect("old results can be removed");
    }
    // The suite passes the command to a shell.
    let client = format!("'{}' client", env!("CARGO_BIN_EXE_refrain-conformance"));
    let run = suite(&[
        "client",
        "--command",
        &client,
        "--scenario",
        scenario,
        "--spec-version",
        revision,
        "--force",
        "--timeout",
        CLIENT_MS,
        "--output-dir",
        output_dir.to_str().expect("the path is UTF-8"),
    ])
    .await;
    assert!(run.status.success(), "{scenario}: {}", describe(&run));

    let results = results_of_run(&output_dir);
    let read = |name| fs::read_to_string(results.join(name)).expect("the suite keeps the output");
    match FAILING.into_iter().find(|(name, _)| *name == scenario) {
        None => assert_eq!(
            read("stdout.txt"),
            "done\n",
            "{scenario}: {}",
            describe(&run)
        ),
        Some((_, reason)) => {
            let stderr = read("stderr.txt");
            assert!(stderr.contains(reason), "{scenario}: {stderr}");
            assert_eq!(read("stdout.txt"), "", "{scenario}");
        }
    }
    let checks = fs::read(results.join("checks.json")).expect("the suite keeps the checks");
    let checks: Vec<Check> = serde_json::from_slice(&checks).expect("the checks are valid JSON");
    assert_checks(revision, scenario, &checks);
}

/// Checks that nothing failed or caused a warning, and that enough checks succeeded.
fn assert_checks(revision: &str, scenario: &str, checks: &[Check]) {
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
    let (_, least) = scenarios_of(revision)
        .iter()
        .copied()
        .find(|(name, _)| *name == scenario)
        .expect("the scenario is listed");
    assert!(
        succeeded >= least,
        "{scenario}: only {succeeded} of {total} checks succeeded, expected at least {least}"
    );
}

/// Checks that [`SCENARIOS`] matches the suite's list for a revision.
async fn every_scenario_is_run(revision: &str) {
    let list = suite(&["list", "--requirements", revision]).await;
    assert!(list.status.success(), "{}", describe(&list));
    let list = String::from_utf8(list.stdout).expect("the list is UTF-8");
    let required = list
        .lines()
        .skip_while(|line| !line.starts_with("Client scenarios"))
        .skip(1)
        .map_while(|line| line.trim_start().strip_prefix("- "));
    let unscored = list.lines().filter_map(|line| {
        line.trim_start()
            .strip_prefix("- ")?
            .strip_suffix(" [client]")
    });
    let mut listed: Vec<&str> = required.chain(unscored).collect();
    let scenarios = scenarios_of(revision).iter();
    let mut run: Vec<&str> = scenarios.map(|(name, _)| *name).collect();
    listed.sort_unstable();
    run.sort_unstable();
    assert_eq!(run, listed);
}

fn scenarios_of(revision: &str) -> &'static [(&'static str, usize)] {
    match revision {
        LEGACY_REVISION => &LEGACY_SCENARIOS,
        _ => &SCENARIOS,
    }
}

/// Defines a test for each scenario of a revision.
macro_rules! scenarios {
    ($module:ident at $revision:ident, $($test:ident: $scenario:literal,)*) => {
        mod $module {
            use super::*;

            $(
                #[tokio::test]
                async fn $test() {
                    run_scenario($revision, $scenario).await;
                }
            )*

            #[test]
            fn every_scenario_has_a_test() {
                let tested = [$($scenario),*];
                let scenarios = scenarios_of($revision).iter();
                let listed: Vec<&str> = scenarios.map(|(name, _)| *name).collect();
                assert_eq!(tested[..], listed);
            }

            #[tokio::test]
            async fn every_scenario_is_run() {
                super::every_scenario_is_run($revision).await;
            }
        }
    };
}

scenarios! {
    current at REVISION,
    tools_call: "tools_call",
    request_metadata: "request-metadata",
    http_standard_headers: "http-standard-headers",
    http_custom_headers: "http-custom-headers",
    http_invalid_tool_headers: "http-invalid-tool-headers",
    json_schema_ref_no_deref: "json-schema-ref-no-deref",
    sep_2322_client_request_state: "sep-2322-client-request-state",
    json_schema_2020_12_preservation: "json-schema-2020-12-preservation",
    auth_metadata_default: "auth/metadata-default",
    auth_metadata_var1: "auth/metadata-var1",
    auth_metadata_var2: "auth/metadata-var2",
    auth_metadata_var3: "auth/metadata-var3",
    auth_basic_cimd: "auth/basic-cimd",
    auth_scope_from_www_authenticate: "auth/scope-from-www-authenticate",
    auth_scope_from_scopes_supported: "auth/scope-from-scopes-supported",
    auth_scope_omitted_when_undefined: "auth/scope-omitted-when-undefined",
    auth_scope_step_up: "auth/scope-step-up",
    auth_scope_retry_limit: "auth/scope-retry-limit",
    auth_token_endpoint_auth_basic: "auth/token-endpoint-auth-basic",
    auth_token_endpoint_auth_post: "auth/token-endpoint-auth-post",
    auth_token_endpoint_auth_none: "auth/token-endpoint-auth-none",
    auth_pre_registration: "auth/pre-registration",
    auth_resource_mismatch: "auth/resource-mismatch",
    auth_offline_access_scope: "auth/offline-access-scope",
    auth_offline_access_not_supported: "auth/offline-access-not-supported",
    auth_authorization_server_migration: "auth/authorization-server-migration",
    auth_iss_supported: "auth/iss-supported",
    auth_iss_not_advertised: "auth/iss-not-advertised",
    auth_iss_supported_missing: "auth/iss-supported-missing",
    auth_iss_wrong_issuer: "auth/iss-wrong-issuer",
    auth_iss_unexpected: "auth/iss-unexpected",
    auth_iss_normalized: "auth/iss-normalized",
    auth_metadata_issuer_mismatch: "auth/metadata-issuer-mismatch",
    auth_client_credentials_jwt: "auth/client-credentials-jwt",
    auth_client_credentials_basic: "auth/client-credentials-basic",
    auth_enterprise_managed_authorization: "auth/enterprise-managed-authorization",
    auth_dpop: "auth/dpop",
    auth_dpop_nonce: "auth/dpop-nonce",
    auth_wif_jwt_bearer: "auth/wif-jwt-bearer",
}

scenarios! {
    legacy at LEGACY_REVISION,
    initialize: "initialize",
    tools_call: "tools_call",
    elicitation_sep1034_client_defaults: "elicitation-sep1034-client-defaults",
    sse_retry: "sse-retry",
    json_schema_2020_12_preservation: "json-schema-2020-12-preservation",
    auth_metadata_default: "auth/metadata-default",
    auth_metadata_var1: "auth/metadata-var1",
    auth_metadata_var2: "auth/metadata-var2",
    auth_metadata_var3: "auth/metadata-var3",
    auth_basic_cimd: "auth/basic-cimd",
    auth_scope_from_www_authenticate: "auth/scope-from-www-authenticate",
    auth_scope_from_scopes_supported: "auth/scope-from-scopes-supported",
    auth_scope_omitted_when_undefined: "auth/scope-omitted-when-undefined",
    auth_scope_step_up: "auth/scope-step-up",
    auth_scope_retry_limit: "auth/scope-retry-limit",
    auth_token_endpoint_auth_basic: "auth/token-endpoint-auth-basic",
    auth_token_endpoint_auth_post: "auth/token-endpoint-auth-post",
    auth_token_endpoint_auth_none: "auth/token-endpoint-auth-none",
    auth_pre_registration: "auth/pre-registration",
    auth_client_credentials_jwt: "auth/client-credentials-jwt",
    auth_client_credentials_basic: "auth/client-credentials-basic",
    auth_enterprise_managed_authorization: "auth/enterprise-managed-authorization",
    auth_dpop: "auth/dpop",
    auth_dpop_nonce: "auth/dpop-nonce",
    auth_wif_jwt_bearer: "auth/wif-jwt-bearer",
}
