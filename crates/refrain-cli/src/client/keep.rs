//! The file that a pending call is kept in.
//!
//! Always: what is in it is replaced only when the next state is safe on the disk, and removed only when there is
//! nothing left to take up. One command at a time has it.

use super::exit::Stop;
use parking_lot::Mutex;
use refrain_app::secret_file;
use refrain_client::PendingCall;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The largest file that is read.
const FILE_MAX: u64 = 64 * 1024 * 1024;

/// A file for one pending call, which nobody else takes up meanwhile.
#[derive(Debug)]
pub(super) struct Keep {
    file: PathBuf,
    /// The file with its lock, once there is one.
    held: Mutex<Option<File>>,
}

impl Keep {
    /// A file for a new call. There must be none yet: it might be another call.
    pub(super) fn new(file: &Path) -> Result<Self, Stop> {
        let there = file.try_exists();
        match there {
            Ok(false) => Ok(Self {
                file: file.to_owned(),
                held: Mutex::default(),
            }),
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
        let unreadable = |error: std::io::Error| wrong(format!("it cannot be read: {error}"));
        let held = File::open(file).map_err(unreadable)?;
        held.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => wrong(
                "another command goes on with this call just now; wait until it has ended".into(),
            ),
            TryLockError::Error(error) => wrong(format!("it cannot be locked: {error}")),
        })?;
        let (here, now) = (held.metadata(), std::fs::metadata(file));
        let (here, now) = (here.map_err(unreadable)?, now.map_err(unreadable)?);
        if (here.dev(), here.ino()) != (now.dev(), now.ino()) {
            return Err(wrong(
                "another command went on with this call just now; try again".into(),
            ));
        }
        let size = here.len();
        if size > FILE_MAX {
            return Err(wrong(format!(
                "it has {size} bytes, which is too large for a pending call"
            )));
        }
        let text = read_to_string(&held).map_err(unreadable)?;
        let pending: PendingCall = serde_json::from_str(&text).map_err(|error| {
            wrong(format!(
                "it is no pending call as --save writes it: {error}"
            ))
        })?;
        let keep = Self {
            file: file.to_owned(),
            held: Mutex::new(Some(held)),
        };
        Ok((keep, pending))
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Puts a new call into the file, before it is made.
    pub(super) fn begin(&self, pending: &PendingCall) -> Result<(), Stop> {
        let made = secret_file::create(&self.file, &bytes(pending)?);
        self.hold(made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(&self.file),
            _ => self.unwritten(&error),
        })?);
        Ok(())
    }

    /// Puts a later state of the call into the file.
    pub(super) fn replace(&self, pending: &PendingCall) -> Result<(), Stop> {
        let made = secret_file::replace(&self.file, &bytes(pending)?);
        self.hold(made.map_err(|error| self.unwritten(&error))?);
        Ok(())
    }

    /// The new file takes the place of the old one, and so does its lock.
    fn hold(&self, made: File) {
        let mut held = self.held.lock();
        *held = Some(made);
    }

    /// There is nothing left to take up.
    pub(super) fn remove(&self) -> Result<(), Stop> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Stop::usage(format!(
                "the call is done, but {} cannot be removed: {error}",
                self.file.display()
            ))),
            _ => Ok(()),
        }
    }

    fn unwritten(&self, error: &std::io::Error) -> Stop {
        Stop::usage(format!(
            "{} cannot be written: {error}",
            self.file.display()
        ))
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
