//! The file of a pending call.
//!
//! Its content is replaced only when the next state is on the disk, and removed only when the call is done. The file is
//! locked, so that only one command at a time has it.

use super::exit::Stop;
use parking_lot::Mutex;
use refrain_app::secret_file;
use refrain_client::PendingCall;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FILE_MAX: u64 = 64 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct SavedCall {
    file: PathBuf,
    /// The file with its lock, once there is one.
    held: Mutex<Option<File>>,
}

impl SavedCall {
    /// A file for a new call. It must not exist: it might contain another call.
    pub(super) fn new(file: &Path) -> Result<Self, Stop> {
        match file.try_exists() {
            Ok(false) => Ok(Self {
                file: file.to_owned(),
                held: Mutex::default(),
            }),
            Ok(true) => Err(exists(file)),
            Err(error) => {
                let file = file.display();
                Err(Stop::usage(format!("{file} cannot be looked at: {error}")))
            }
        }
    }

    pub(super) fn read(file: &Path) -> Result<(Self, PendingCall), Stop> {
        let wrong = |why: String| Stop::usage(format!("{}: {why}", file.display()));
        let unreadable = |error: std::io::Error| wrong(format!("it cannot be read: {error}"));
        let held = File::open(file).map_err(unreadable)?;
        held.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let why =
                    "another command goes on with this call just now; wait until it has ended";
                wrong(why.into())
            }
            TryLockError::Error(error) => wrong(format!("it cannot be locked: {error}")),
        })?;
        let (here, now) = (held.metadata(), std::fs::metadata(file));
        let (here, now) = (here.map_err(unreadable)?, now.map_err(unreadable)?);
        if (here.dev(), here.ino()) != (now.dev(), now.ino()) {
            let why = "another command went on with this call just now; try again";
            return Err(wrong(why.into()));
        }
        let size = here.len();
        if size > FILE_MAX {
            let why = format!("it has {size} bytes, which is too large for a pending call");
            return Err(wrong(why));
        }
        let text = read_to_string(&held).map_err(unreadable)?;
        let pending = serde_json::from_str(&text).map_err(|error| {
            wrong(format!(
                "it is no pending call as --save writes it: {error}"
            ))
        })?;
        let saved = Self {
            file: file.to_owned(),
            held: Mutex::new(Some(held)),
        };
        Ok((saved, pending))
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Creates the file, before the call is made.
    pub(super) fn begin(&self, pending: &PendingCall) -> Result<(), Stop> {
        self.hold(secret_file::create(&self.file, &bytes(pending)?))
    }

    /// Replaces the file by a later state of the call.
    pub(super) fn replace(&self, pending: &PendingCall) -> Result<(), Stop> {
        self.hold(secret_file::replace(&self.file, &bytes(pending)?))
    }

    /// Keeps the lock of the new file in place of the old one's.
    fn hold(&self, written: std::io::Result<File>) -> Result<(), Stop> {
        let written = written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(&self.file),
            _ => Stop::usage(format!(
                "{} cannot be written: {error}",
                self.file.display()
            )),
        })?;
        *self.held.lock() = Some(written);
        Ok(())
    }

    /// Removes the file: the call is done.
    pub(super) fn remove(&self) -> Result<(), Stop> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Stop::usage(format!(
                "the call is done, but {} cannot be removed: {error}",
                self.file.display()
            ))),
            _ => Ok(()),
        }
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
