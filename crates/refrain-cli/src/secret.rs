//! Files with secrets in them: only their owner can read them, and nobody ever sees half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Makes a file. There must be none yet. It is locked as long as what this gives back is there.
pub(crate) fn make(file: &Path, bytes: &[u8]) -> io::Result<File> {
    let made = write(file, bytes)?;
    settle(file)?;
    Ok(made)
}

/// Writes a new file, and leaves none if that fails.
fn write(file: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut out = options.open(file)?;
    let written = out
        .try_lock()
        .map_err(io::Error::from)
        .and_then(|()| out.write_all(bytes))
        .and_then(|()| out.sync_all());
    if let Err(error) = written {
        // Half of it is of no use, and stands in the way of the next.
        let _ = fs::remove_file(file);
        return Err(error);
    }
    Ok(out)
}

/// Writes beside the file and then takes its place. What was there before stays until the new is safe on the disk, and
/// the new is locked like one that is made.
pub(crate) fn replace(file: &Path, bytes: &[u8]) -> io::Result<File> {
    // A link stays a link: what it points to is replaced.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let mut beside = target.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    // A process of the same number may have died while it wrote.
    let _ = fs::remove_file(&beside);
    let made = write(&beside, bytes)?;
    if let Err(error) = fs::rename(&beside, &target) {
        // It holds secrets.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    settle(&target)?;
    Ok(made)
}

/// Has the directory of a file remember it after a loss of power.
fn settle(file: &Path) -> io::Result<()> {
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_locked_as_long_as_its_maker_holds_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("secret");
        let made = make(&file, b"one").expect("a file");
        let other = || File::open(&file).expect("a file");
        assert!(other().try_lock().is_err());
        let replaced = replace(&file, b"two").expect("a file");
        drop(made);
        assert!(other().try_lock().is_err());
        drop(replaced);
        other().try_lock().expect("nobody holds it");
        assert_eq!(fs::read(&file).expect("the file"), b"two");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
    }
}
