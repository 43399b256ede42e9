//! The file of a saved call.
//!
//! The file is replaced atomically, and removed only when the call is done. It is locked, so that only one command at a time
//! continues the call.

use super::exit::CommandError;
use parking_lot::Mutex;
use refrain_app::{input_file, secret_file};
use refrain_client::PendingCall;
use refrain_wire::check_values;
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FILE_MAX: u64 = 32 * 1024 * 1024;
/// The maximum number of JSON values in a file, more than the asks, answers and arguments of one round have.
const VALUES_MAX: usize = 200_000;

#[derive(Debug)]
pub(super) struct SavedCall {
    file: PathBuf,
    /// The locked file, once it exists.
    locked: Mutex<Option<File>>,
}

impl SavedCall {
    /// A file for a new call, which [`create`](Self::create) writes. Fails if the file exists: it might contain another call.
    pub(super) fn new(file: &Path) -> Result<Self, CommandError> {
        match file.try_exists() {
            Ok(false) => Ok(Self {
                file: file.to_owned(),
                locked: Mutex::default(),
            }),
            Ok(true) => Err(already_exists(file)),
            Err(error) => {
                let message = format!("cannot access {}: {error}", file.display());
                Err(CommandError::usage(message))
            }
        }
    }

    pub(super) fn read(file: &Path) -> Result<(Self, PendingCall), CommandError> {
        let name = file.display();
        let unreadable = |error: std::io::Error| {
            CommandError::usage(format!("cannot read saved call {name}: {error}"))
        };
        let in_use_error = || {
            CommandError::usage(format!("another command is continuing the call in {name}"))
                .hint("wait until it has ended, and try again")
        };
        let locked = File::open(file).map_err(unreadable)?;
        locked.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => in_use_error(),
            TryLockError::Error(error) => {
                CommandError::usage(format!("cannot lock saved call {name}: {error}"))
            }
        })?;
        // Another command may have replaced the file before it was locked.
        let opened = locked.metadata().map_err(unreadable)?;
        let current = std::fs::metadata(file).map_err(unreadable)?;
        if (opened.dev(), opened.ino()) != (current.dev(), current.ino()) {
            return Err(in_use_error());
        }
        let text = input_file::read_text_limited(&locked, FILE_MAX).map_err(unreadable)?;
        check_values(text.as_bytes(), VALUES_MAX).map_err(|error| {
            CommandError::usage(format!("invalid saved call {name}: {error}"))
                .hint("only files that --save wrote can be resumed")
        })?;
        let pending = serde_json::from_str(&text).map_err(|error| {
            let message = match is_unrelated(&text) {
                true => format!("{name} is not a saved call"),
                false => format!("invalid saved call {name}: {error}"),
            };
            CommandError::usage(message).hint("only files that --save wrote can be resumed")
        })?;
        let saved = Self {
            file: file.to_owned(),
            locked: Mutex::new(Some(locked)),
        };
        Ok((saved, pending))
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Writes the call to a new file.
    pub(super) fn create(&self, pending: &PendingCall) -> Result<(), CommandError> {
        self.keep_locked(secret_file::create(&self.file, &serialize(pending)?))
    }

    pub(super) fn replace(&self, pending: &PendingCall) -> Result<(), CommandError> {
        self.keep_locked(secret_file::replace(&self.file, &serialize(pending)?))
    }

    /// Keeps the new file locked, and releases the old one.
    fn keep_locked(&self, written: std::io::Result<File>) -> Result<(), CommandError> {
        let written = written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => already_exists(&self.file),
            _ => CommandError::usage(format!(
                "cannot write saved call {}: {error}",
                self.file.display()
            )),
        })?;
        *self.locked.lock() = Some(written);
        Ok(())
    }

    /// Removes the file of a completed call.
    pub(super) fn remove(&self) -> Result<(), CommandError> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(CommandError::usage(format!(
                "the call is done, but {} could not be removed: {error}",
                self.file.display()
            ))),
            _ => Ok(()),
        }
    }
}

fn serialize(pending: &PendingCall) -> Result<Vec<u8>, CommandError> {
    let mut bytes = serde_json::to_vec_pretty(pending)
        .map_err(|error| CommandError::usage(format!("cannot serialize the call: {error}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Whether the text was never a saved call, as opposed to a damaged one: it is not a JSON object with the member `format`,
/// nor malformed JSON that begins like an object.
fn is_unrelated(text: &str) -> bool {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => value.get("format").is_none(),
        Err(_) => !text.trim_start().starts_with('{'),
    }
}

fn already_exists(file: &Path) -> CommandError {
    let file = file.display();
    CommandError::usage(format!("{file} already exists")).hint(format!(
        "choose another name, or continue the call in it with `refrain resume {file}`"
    ))
}
