//! The ledger of effects: one file per idempotency key, in a directory that all workers share.
//!
//! Attempts at effects are in the records of the workers. A file appears as a whole or not at all, and only once.

use crate::error::CrashError;
use crate::plan::Effect;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// An attempt at an effect, recorded before the effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttemptRow {
    /// The number of the worker process, and the serial number of the attempt in it.
    pub(crate) id: i64,
    pub(crate) effect: Effect,
    pub(crate) idempotency_key: String,
    pub(crate) process: u32,
    /// The number of the handler's start in that process; 0 for a call that is not a task.
    pub(crate) start: u64,
    /// The start time.
    pub(crate) at: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EffectRow {
    pub(crate) idempotency_key: String,
    pub(crate) effect: Effect,
    /// The attempt that caused the effect.
    pub(crate) attempt: i64,
}

/// The effects, and the retries that steps have asked for.
#[derive(Clone, Debug)]
pub(crate) struct EffectLedger {
    effects: PathBuf,
    retries: PathBuf,
}

impl EffectLedger {
    /// Opens the ledger in the directory of a run, and creates it if it is missing.
    pub(crate) fn open(dir: &Path) -> Result<Self, CrashError> {
        let (effects, retries) = (dir.join("effects"), dir.join("retries"));
        for dir in [&effects, &retries] {
            std::fs::create_dir_all(dir)?;
        }
        Ok(Self { effects, retries })
    }

    /// Asks for a retry of this attempt, unless `max` retries were asked for under its key.
    pub(crate) fn retry(&self, attempt: &AttemptRow, max: u8) -> io::Result<bool> {
        for number in 0..max {
            let name = format!("{}-{number}", attempt.idempotency_key);
            if create(&self.retries, &name, attempt)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the effect, at most once per key.
    pub(crate) fn effect(&self, attempt: &AttemptRow) -> io::Result<()> {
        let row = EffectRow {
            idempotency_key: attempt.idempotency_key.clone(),
            effect: attempt.effect,
            attempt: attempt.id,
        };
        create(&self.effects, &row.idempotency_key, &row).map(drop)
    }

    pub(crate) fn effects(&self) -> Result<Vec<EffectRow>, CrashError> {
        let files = std::fs::read_dir(&self.effects)?;
        files
            .map(|file| Ok(serde_json::from_slice(&std::fs::read(file?.path())?)?))
            .collect()
    }
}

/// Creates a file with this content. Returns false if it exists.
fn create(dir: &Path, name: &str, content: &impl Serialize) -> io::Result<bool> {
    let mut file = NamedTempFile::new_in(dir.parent().unwrap_or(dir))?;
    file.write_all(&serde_json::to_vec(content)?)?;
    match file.persist_noclobber(dir.join(name)) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}
