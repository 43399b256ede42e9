//! A file with one line for each effect of a tool, so that effects can be counted.

use parking_lot::Mutex;
use refrain::{Error, Result};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A list of effects: a file that all instances append to, or nothing.
#[derive(Debug)]
pub struct Ledger {
    file: Option<File>,
    looks: Mutex<HashMap<String, u32>>,
}

/// The ledger's file could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("the ledger {} cannot be opened: {source}", path.display())]
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
            looks: Mutex::default(),
        })
    }

    /// Appends one line, whole: effects of several instances do not mix.
    pub(crate) fn record(&self, effect: &str) -> Result<()> {
        if let Some(mut file) = self.file.as_ref() {
            file.write_all(format!("{effect}\n").as_bytes())
                .map_err(Error::internal)?;
        }
        Ok(())
    }

    /// Stands in for a service that knows whether a visit was completed: it is, from the second look on.
    pub(crate) async fn looked_twice(&self, visit: &str) -> Result<bool> {
        self.record(&format!("look {visit}"))?;
        let mut looks = self.looks.lock();
        if looks.len() >= 10_000 {
            looks.clear();
        }
        let count = looks.entry(visit.to_owned()).or_default();
        *count += 1;
        Ok(*count >= 2)
    }
}
