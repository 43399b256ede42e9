//! The report of a run, as a table and as JSON.

use crate::check::Findings;
use crate::client::ClientCounts;
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::fmt::Write as _;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
/// The number of faults printed; the JSON has all.
const SHOWN: usize = 30;

/// The report of a run.
#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    pub(crate) store: &'static str,
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    pub(crate) tasks: usize,
    pub(crate) seconds: f64,
    #[serde(flatten)]
    pub(crate) counts: ClientCounts,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    pub(crate) cuts: u64,
    pub(crate) restarts: usize,
    #[serde(flatten)]
    pub(crate) findings: Findings,
}

impl RunReport {
    pub(crate) fn holds(&self) -> bool {
        self.findings.faults.is_empty()
    }

    pub(crate) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The lines of the table. Those without an indent are headings.
    fn rows(&self) -> [(&'static str, u64); 27] {
        let Self {
            counts, findings, ..
        } = self;
        let second = &findings.second_attempts;
        [
            ("clients", 0),
            ("  tasks", self.tasks as u64),
            ("  calls retried without a reply", counts.calls_repeated),
            ("  calls sent twice on purpose", counts.calls_duplicated),
            ("  answers", counts.answers),
            ("    of the wrong type", counts.answers_wrong),
            (
                "    sent twice, with another value",
                counts.answers_duplicated,
            ),
            ("    to keys that do not exist", counts.answers_unknown),
            (
                "  requests retried, store unavailable",
                counts.requests_repeated,
            ),
            ("disruptions", 0),
            ("  workers killed (SIGKILL)", self.kills as u64),
            (
                "  workers stopped past their lease (SIGSTOP)",
                self.stops as u64,
            ),
            ("  connections cut", self.cuts),
            ("  database restarts", self.restarts as u64),
            ("leases", 0),
            ("  taken over from a lost worker", findings.takeovers),
            (
                "  writes rejected after a lost lease",
                findings.writes_rejected,
            ),
            ("steps", 0),
            ("  effects in the ledger", findings.effects),
            ("  attempts", findings.attempts),
            ("  second attempts", second.total()),
            ("    the worker was killed", second.killed),
            ("    the worker was stopped", second.stopped),
            ("    the database was down", second.restarted),
            (
                "    the lease was lost for another reason",
                second.lease_lost,
            ),
            ("    a step asked for a retry", second.retried),
            (
                "  attempts of a worker stopped in mid-attempt",
                findings.interrupted_attempts,
            ),
        ]
    }

    /// The table. Styles are always written; the stream that prints the text strips them where they do not belong.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail, here and below.
        for (name, count) in self.rows() {
            let _ = match name.starts_with(' ') {
                true => writeln!(out, "{name:<48} {count:>8}"),
                false => writeln!(out, "{BOLD}{name}{BOLD:#}"),
            };
        }
        if self.store == "SQLite" {
            let note = "SQLite has no connections to cut and no server to restart.";
            let _ = writeln!(out, "{DIM}{note}{DIM:#}");
        }
        let Self {
            store,
            workers,
            seed,
            seconds,
            ..
        } = self;
        let _ = writeln!(
            out,
            "{workers} workers on {store}, {seconds:.0} seconds, seed {seed}"
        );
        let faults = &self.findings.faults;
        if faults.is_empty() {
            let _ = writeln!(out, "{GOOD}all checks passed{GOOD:#}");
            return out;
        }
        let _ = writeln!(out, "{BAD}{} faults{BAD:#}", faults.len());
        for fault in faults.iter().take(SHOWN) {
            let _ = writeln!(out, "  {fault}");
        }
        if faults.len() > SHOWN {
            let _ = writeln!(out, "  and {} more", faults.len() - SHOWN);
        }
        out
    }
}
