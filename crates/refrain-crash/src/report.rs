//! What a run came to, as a table and as JSON.

use crate::check::{Evidence, Explained, Findings};
use crate::client::Deeds;
use crate::run::{Kind, Orders};
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
/// Faults that are printed; the rest are in the JSON.
const SHOWN: usize = 30;

/// What a run came to.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    store: &'static str,
    seed: u64,
    workers: usize,
    tasks: u64,
    seconds: f64,
    answers: u64,
    answers_wrong: u64,
    answers_doubled: u64,
    answers_unknown: u64,
    calls_repeated: u64,
    calls_doubled: u64,
    requests_repeated: u64,
    effects: u64,
    attempts: u64,
    second_attempts: Explained,
    caught_unawares: u64,
    kills: u64,
    stops: u64,
    cuts: u64,
    restarts: u64,
    takeovers: u64,
    writes_refused: u64,
    faults: Vec<String>,
}

impl Report {
    pub(crate) fn new(
        orders: &Orders,
        evidence: &Evidence,
        findings: Findings,
        deeds: &Deeds,
        cuts: u64,
        took: Duration,
    ) -> Self {
        let read = |deed: &AtomicU64| deed.load(Ordering::Relaxed);
        Self {
            tasks: evidence.ended.len() as u64,
            answers: read(&deeds.answers),
            answers_wrong: read(&deeds.answers_wrong),
            answers_doubled: read(&deeds.answers_doubled),
            answers_unknown: read(&deeds.answers_unknown),
            calls_repeated: read(&deeds.calls_repeated),
            calls_doubled: read(&deeds.calls_doubled),
            requests_repeated: read(&deeds.requests_repeated),
            effects: findings.effects,
            attempts: findings.attempts,
            second_attempts: findings.explained,
            caught_unawares: findings.caught_unawares,
            kills: evidence.harm.kills.len() as u64,
            stops: evidence.harm.stops.len() as u64,
            cuts,
            restarts: evidence.restarts.len() as u64,
            takeovers: findings.takeovers,
            writes_refused: findings.refused,
            faults: findings.faults,
            store: orders.store.name(),
            seed: orders.seed,
            workers: orders.workers,
            seconds: took.as_secs_f64(),
        }
    }

    /// Does everything hold?
    pub(crate) fn holds(&self) -> bool {
        self.faults.is_empty()
    }

    pub(crate) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The table. Styles are always written; whoever prints it strips them where they do not belong.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        let second = &self.second_attempts;
        let rows: [(&str, &[(&str, u64)]); 4] = [
            (
                "clients",
                &[
                    ("tasks", self.tasks),
                    ("calls repeated for want of a reply", self.calls_repeated),
                    ("calls repeated for no reason", self.calls_doubled),
                    ("answers", self.answers),
                    ("  that did not fit", self.answers_wrong),
                    ("  given again, differently", self.answers_doubled),
                    ("  that nobody had asked for", self.answers_unknown),
                    ("requests repeated, the store away", self.requests_repeated),
                ],
            ),
            (
                "trouble",
                &[
                    ("workers killed (SIGKILL)", self.kills),
                    ("workers stopped beyond their lease (SIGSTOP)", self.stops),
                    ("connections cut", self.cuts),
                    ("restarts of the database", self.restarts),
                ],
            ),
            (
                "leases",
                &[
                    ("taken from a worker that was lost", self.takeovers),
                    ("writes refused, the lease lost", self.writes_refused),
                ],
            ),
            (
                "steps",
                &[
                    ("effects in the ledger", self.effects),
                    ("attempts", self.attempts),
                    ("second attempts", second.total()),
                    ("  the worker was killed", second.killed),
                    ("  the worker was stopped", second.stopped),
                    ("  the database was away", second.restarted),
                    ("  the lease was lost otherwise", second.lease_lost),
                    ("  a step asked to be tried again", second.retried),
                    ("attempts of a worker caught unawares", self.caught_unawares),
                ],
            ),
        ];
        // Writing to a String does not fail, here and below.
        for (heading, rows) in rows {
            let _ = writeln!(out, "{BOLD}{heading}{BOLD:#}");
            for (name, count) in rows {
                let _ = writeln!(out, "  {name:<46} {count:>8}");
            }
        }
        if self.store == Kind::Sqlite.name() {
            let _ = writeln!(
                out,
                "{DIM}A file has no connections to cut and no server to restart.{DIM:#}"
            );
        }
        self.verdict(&mut out);
        out
    }

    fn verdict(&self, out: &mut String) {
        let Self {
            store,
            workers,
            seed,
            seconds,
            faults,
            ..
        } = self;
        let _ = writeln!(
            out,
            "{workers} workers on {store}, {seconds:.0} seconds, seed {seed}"
        );
        if faults.is_empty() {
            let _ = writeln!(out, "{GOOD}everything holds{GOOD:#}");
            return;
        }
        let _ = writeln!(out, "{BAD}{} faults{BAD:#}", faults.len());
        for fault in faults.iter().take(SHOWN) {
            let _ = writeln!(out, "  {fault}");
        }
        if faults.len() > SHOWN {
            let _ = writeln!(out, "  and {} more", faults.len() - SHOWN);
        }
    }
}
