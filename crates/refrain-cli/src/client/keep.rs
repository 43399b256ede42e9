//! The file that a pending call is kept in.
//!
//! Always: what is in it is replaced only when the next state is safe on the disk, and removed only when there is
//! nothing left to take up.

use super::exit::{Code, Stop};
use crate::secret;
use refrain_client::PendingCall;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The largest file that is read.
const FILE_MAX: u64 = 64 * 1024 * 1024;

/// A file for one pending call.
#[derive(Debug)]
pub(super) struct Keep(PathBuf);

impl Keep {
    /// A file for a new call. There must be none yet: it might be another call.
    pub(super) fn new(file: &Path) -> Result<Self, Stop> {
        let there = file.try_exists();
        match there {
            Ok(false) => Ok(Self(file.to_owned())),
            Ok(true) => Err(exists(file)),
            Err(error) => Err(Stop::usage(format!(
                "{} cannot be looked at: {error}",
                file.display()
            ))),
        }
    }

    /// Takes the call out of a file, which stays as it is.
    pub(super) fn read(file: &Path) -> Result<(Self, PendingCall), Stop> {
        let wrong = |why: String| Stop::usage(format!("{}: {why}", file.display()));
        let size = std::fs::metadata(file)
            .map_err(|error| wrong(format!("it cannot be read: {error}")))?
            .len();
        if size > FILE_MAX {
            return Err(wrong(format!(
                "it has {size} bytes, which is too large for a pending call"
            )));
        }
        let text = std::fs::read_to_string(file)
            .map_err(|error| wrong(format!("it cannot be read: {error}")))?;
        let pending = serde_json::from_str(&text).map_err(|error| {
            wrong(format!(
                "it is no pending call as --save writes it: {error}"
            ))
        })?;
        Ok((Self(file.to_owned()), pending))
    }

    pub(super) fn file(&self) -> &Path {
        &self.0
    }

    /// Puts a new call into the file, before it is made.
    pub(super) fn begin(&self, pending: &PendingCall) -> Result<(), Stop> {
        secret::make(&self.0, &bytes(pending)?).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(&self.0),
            _ => self.unwritten(&error),
        })
    }

    /// Puts a later state of the call into the file.
    pub(super) fn replace(&self, pending: &PendingCall) -> Result<(), Stop> {
        secret::replace(&self.0, &bytes(pending)?).map_err(|error| self.unwritten(&error))
    }

    /// There is nothing left to take up.
    pub(super) fn remove(&self) -> Result<(), Stop> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Stop {
                code: Code::Usage,
                message: format!(
                    "the call is done, but {} cannot be removed: {error}",
                    self.0.display()
                ),
            }),
            _ => Ok(()),
        }
    }

    fn unwritten(&self, error: &std::io::Error) -> Stop {
        Stop::usage(format!("{} cannot be written: {error}", self.0.display()))
    }
}

fn bytes(pending: &PendingCall) -> Result<Vec<u8>, Stop> {
    let mut bytes = serde_json::to_vec_pretty(pending)
        .map_err(|error| Stop::usage(format!("the call cannot be written: {error}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn exists(file: &Path) -> Stop {
    let file = file.display();
    Stop::usage(format!(
        "{file} exists already; choose another name, or take up the call in it with `refrain resume {file}`"
    ))
}
