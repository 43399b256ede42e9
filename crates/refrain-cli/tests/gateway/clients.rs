//! The clients in front of the gateways.

use crate::checks::Check;
use crate::gateway::{Address, Target};
use crate::inspector;
use crate::outcome::{Leeway, Outcome};
use crate::refrain_call;
use refrain_testkit::net::sdk_programs::{
    DRIVE_LEGACY_NPM, DRIVE_LEGACY_PYTHON, DRIVE_NPM, DRIVE_PYTHON, DRIVE_RMCP, Program,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// The limit for all checks of a client.
const CLIENT_TIME: Duration = Duration::from_secs(240);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    Python,
    Npm,
    Rmcp,
    Inspector,
    Refrain,
    LegacyPython,
    LegacyNpm,
}

pub(crate) const CLIENTS: [Client; 7] = [
    Client::Python,
    Client::Npm,
    Client::Rmcp,
    Client::Inspector,
    Client::Refrain,
    Client::LegacyPython,
    Client::LegacyNpm,
];

/// The outcomes of the calls of each check, by the name of the target and of the check.
pub(crate) type Outcomes = HashMap<(&'static str, &'static str), Vec<Outcome>>;

/// A line that a driver prints.
#[derive(Deserialize)]
struct Line {
    target: String,
    check: String,
    outcomes: Vec<Outcome>,
}

impl Client {
    fn driver(self) -> Option<Program> {
        Some(match self {
            Self::Python => DRIVE_PYTHON,
            Self::Npm => DRIVE_NPM,
            Self::Rmcp => DRIVE_RMCP,
            Self::LegacyPython => DRIVE_LEGACY_PYTHON,
            Self::LegacyNpm => DRIVE_LEGACY_NPM,
            Self::Inspector | Self::Refrain => return None,
        })
    }

    /// Why a client cannot run a check with any server.
    pub(crate) fn lacks(self, check: &str) -> Option<&'static str> {
        match (self, check) {
            (Self::Rmcp, "url") => {
                Some("it wants an elicitationId, which 2026-07-28 does not have")
            }
            (
                Self::Inspector,
                "sampling"
                | "sampling with tools"
                | "two callers, sampling"
                | "three asks"
                | "two asks",
            ) => Some("it has no model"),
            (Self::Inspector, "progress" | "logs") => Some("it shows neither with the result"),
            (Self::Refrain, "sampling with tools") => Some("it does not let the model use tools"),
            (Self::Refrain, "completion" | "template completion") => Some("it does not complete"),
            (Self::Refrain, "progress") => Some("it shows no progress with --json"),
            _ => None,
        }
    }

    /// The parts of outcomes that this client does not report, or reports in any order.
    pub(crate) fn leeway(self) -> Leeway {
        Leeway {
            // Both clients send their roots without reporting it.
            roots: matches!(self, Self::Inspector | Self::Refrain),
            // rmcp handles notifications concurrently.
            notification_order: self == Self::Rmcp,
        }
    }

    /// Runs the checks that the client supports against each target. Each of them has an outcome for every call.
    pub(crate) async fn run(self, targets: &[Target], checks: &[Check]) -> Outcomes {
        let checks = checks
            .iter()
            .filter(|check| self.lacks(check.name).is_none());
        let checks: Vec<Check> = checks.cloned().collect();
        if checks.is_empty() {
            return Outcomes::new();
        }
        let mut outcomes = match self.driver() {
            Some(driver) => drive(driver, targets, &checks).await,
            None if self == Self::Inspector => inspector::run(targets, &checks).await,
            None => refrain_call::run(targets, &checks).await,
        };
        let failure = outcomes.remove(&FAILURE).unwrap_or_default();
        for (target, check) in pairs(targets, &checks) {
            let missing = || vec![failure.first().cloned().unwrap_or_default(); check.calls.len()];
            let name = (target.name, check.name);
            outcomes.entry(name).or_insert_with(missing);
        }
        outcomes
    }
}

/// The key for the failure of a whole client.
const FAILURE: (&str, &str) = ("", "");

/// Every check with every target.
pub(crate) fn pairs<'a>(
    targets: &'a [Target],
    checks: &'a [Check],
) -> impl Iterator<Item = (&'a Target, &'a Check)> {
    targets
        .iter()
        .flat_map(move |target| checks.iter().map(move |check| (target, check)))
}

/// The job of a driver: see `tests/clients/README.md`.
fn job(targets: &[Target], checks: &[Check]) -> Value {
    let targets = targets.iter().map(|target| match &target.address {
        Address::Url(url) => json!({ "name": target.name, "url": url }),
        Address::Command(command) => json!({ "name": target.name, "command": command }),
    });
    let checks = checks
        .iter()
        .map(|check| json!({ "name": check.name, "calls": check.calls }));
    json!({ "targets": targets.collect::<Vec<_>>(), "checks": checks.collect::<Vec<_>>() })
}

async fn drive(driver: Program, targets: &[Target], checks: &[Check]) -> Outcomes {
    let mut command = driver.command().await;
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the driver can be started");
    let mut input = child.stdin.take().expect("a pipe");
    let job = job(targets, checks).to_string();
    let output = async {
        input
            .write_all(job.as_bytes())
            .await
            .expect("the job is read");
        drop(input);
        child.wait_with_output().await.expect("its output")
    };
    let Ok(output) = timeout(CLIENT_TIME, output).await else {
        panic!("{driver:?} does not end");
    };
    let lines = String::from_utf8_lossy(&output.stdout);
    let lines = lines.lines().map(|line| {
        let line: Line =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let mut pairs = pairs(targets, checks);
        let known =
            pairs.find(|(target, check)| target.name == line.target && check.name == line.check);
        let (target, check) = known.expect("a target and a check of the job");
        ((target.name, check.name), line.outcomes)
    });
    let mut outcomes: Outcomes = lines.collect();
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let failure = Outcome {
            error: Some(format!("the client ended: {error}")),
            ..Outcome::default()
        };
        outcomes.insert(FAILURE, vec![failure]);
    }
    outcomes
}
