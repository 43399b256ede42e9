//! Files with secrets: readable by their owner only, and written atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Creates a file, which must not exist yet. It stays locked until the returned handle is dropped.
pub fn create(file: &Path, bytes: &[u8]) -> io::Result<File> {
    let made = write(file, bytes)?;
    sync_directory(file)?;
    Ok(made)
}

/// Writes a new file, and removes it if that fails.
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
        // Half a file is of no use, and would block the next attempt.
        let _ = fs::remove_file(file);
        return Err(error);
    }
    Ok(out)
}

/// Replaces a file atomically: the old content stays until the new is on the disk. The new file is locked as by
/// [`create`].
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<File> {
    // A symbolic link stays one: its target is replaced.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let mut beside = target.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    // Left by a process with the same id that died while it wrote.
    let _ = fs::remove_file(&beside);
    let made = write(&beside, bytes)?;
    if let Err(error) = fs::rename(&beside, &target) {
        // It holds secrets.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    sync_directory(&target)?;
    Ok(made)
}

/// Makes the directory entry survive a loss of power.
fn sync_directory(file: &Path) -> io::Result<()> {
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
    fn file_is_locked_until_its_handle_is_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("secret");
        let made = create(&file, b"one").expect("a file");
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
