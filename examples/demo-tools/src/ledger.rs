//! A file with one line per effect of a tool, so that effects can be counted.

use parking_lot::Mutex;
use refrain::{Error, Result};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The record of effects: a file that all instances append to, or nothing.
#[derive(Debug)]
pub struct Ledger {
    file: Option<File>,
    checks: Mutex<HashMap<String, u32>>,
}

/// The file could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open ledger {}: {source}", path.display())]
pub struct LedgerError {
    path: PathBuf,
    source: io::Error,
}

impl Ledger {
    /// Opens or creates the file. Without a path, effects are not recorded.
    pub fn open(path: Option<&Path>) -> Result<Self, LedgerError> {
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.map_err(|source| LedgerError {
                path: path.to_owned(),
                source,
            })
        };
        let file = path.map(open).transpose()?;
        Ok(Self {
            file,
            checks: Mutex::default(),
        })
    }

    /// Appends one line in a single write, so that lines of several instances do not mix.
    pub(crate) fn record(&self, effect: &str) -> Result<()> {
        if let Some(mut file) = self.file.as_ref() {
            file.write_all(format!("{effect}\n").as_bytes())
                .map_err(Error::internal)?;
        }
        Ok(())
    }

    /// Simulates a service that reports a visit as completed from the second check on.
    pub(crate) async fn is_visit_completed(&self, visit: &str) -> Result<bool> {
        self.record(&format!("look {visit}"))?;
        let mut checks = self.checks.lock();
        // Limits the memory. Earlier visits need two more checks then.
        if checks.len() >= 10_000 {
            checks.clear();
        }
        let count = checks.entry(visit.to_owned()).or_default();
        *count += 1;
        Ok(*count >= 2)
    }
}
