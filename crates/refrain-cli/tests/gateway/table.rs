//! The results of all clients with one backend.

use crate::backends::Backend;
use crate::checks::Check;
use crate::clients::{CLIENTS, Client, Outcomes, pairs};
use crate::gateway::Target;
use refrain_testkit::net::process::Log;
use std::collections::HashSet;
use std::fmt::Write;

pub(crate) struct Table {
    pub(crate) backend: Backend,
    cells: Vec<Cell>,
    logs: Vec<Log>,
}

struct Cell {
    client: Client,
    target: &'static str,
    check: &'static str,
    result: Result<(), String>,
}

impl Table {
    pub(crate) fn new(backend: Backend) -> Self {
        Self {
            backend,
            cells: Vec::new(),
            logs: Vec::new(),
        }
    }

    /// Adds the outcomes of the checks that a client supports.
    pub(crate) fn add(
        &mut self,
        client: Client,
        targets: &[Target],
        checks: &[Check],
        outcomes: &Outcomes,
    ) {
        let mut leeway = client.leeway();
        leeway.roots |= self.backend.asks_for_roots_at_any_time();
        for (target, check) in pairs(targets, checks) {
            if let Some(outcomes) = outcomes.get(&(target.name, check.name)) {
                self.cells.push(Cell {
                    client,
                    target: target.name,
                    check: check.name,
                    result: check.compare(outcomes, leeway),
                });
            }
        }
    }

    /// Adds the log of a gateway, which is shown if a check fails.
    pub(crate) fn add_log(&mut self, log: Log) {
        self.logs.push(log);
    }

    /// Prints the table, and fails unless exactly the known exceptions failed.
    pub(crate) fn check(&self) {
        println!("{}", self.rows());
        let mut wrong = String::new();
        for cell in &self.cells {
            let Cell {
                client,
                target,
                check,
                result,
            } = cell;
            let known = self.backend.cannot(target, check);
            match (result, known) {
                (Ok(()), None) | (Err(_), Some(_)) => {}
                (Ok(()), Some(why)) => {
                    let _ = writeln!(
                        wrong,
                        "{target}, {client:?}, {check}: works, despite {why:?}"
                    );
                }
                (Err(error), None) => {
                    let _ = writeln!(wrong, "{target}, {client:?}, {check}: {error}");
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "{:?}:\n{wrong}\n{:?}",
            self.backend,
            self.logs
        );
    }

    fn rows(&self) -> String {
        let mut rows = format!("{:?}", self.backend);
        for client in CLIENTS {
            let _ = write!(rows, " | {client:?}");
        }
        let mut names: Vec<_> = self
            .cells
            .iter()
            .map(|cell| (cell.target, cell.check))
            .collect();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(*name));
        for (target, check) in names {
            let _ = write!(rows, "\n{target} {check}");
            for client in CLIENTS {
                let _ = write!(rows, " | {}", self.mark(client, target, check));
            }
        }
        rows
    }

    fn mark(&self, client: Client, target: &str, check: &str) -> &'static str {
        let mut cells = self.cells.iter().filter(|cell| cell.client == client);
        let cell = cells.find(|cell| (cell.target, cell.check) == (target, check));
        match cell.map(|cell| &cell.result) {
            Some(Ok(())) => "yes",
            Some(Err(_)) => "NO",
            None => "-",
        }
    }
}
