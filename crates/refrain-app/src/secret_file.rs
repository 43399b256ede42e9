//! Files with secrets: readable only by their owner, and written atomically.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// Creates a file that must not exist. It stays locked until the returned handle is dropped.
pub fn create(file: &Path, bytes: &[u8]) -> io::Result<File> {
    let made = write(file, bytes)?.persist_noclobber(file)?;
    File::open(directory(file))?.sync_all()?;
    Ok(made)
}

/// Replaces a file atomically. The new file is locked as by [`create`].
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<File> {
    // Replace the target of a symbolic link, not the link.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let made = write(&target, bytes)?.persist(&target)?;
    File::open(directory(&target))?.sync_all()?;
    Ok(made)
}

/// A locked temporary file next to `file`, which only its owner can read.
fn write(file: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    // The errors of `tempfile` name the temporary file, which the user does not know.
    fs::metadata(directory(file))?;
    let mut temporary =
        NamedTempFile::new_in(directory(file)).map_err(|error| match error.kind() {
            kind @ (ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => kind.into(),
            _ => error,
        })?;
    temporary.as_file().try_lock()?;
    temporary.write_all(bytes)?;
    temporary.as_file().sync_all()?;
    Ok(temporary)
}

/// The directory of a file. Syncing it makes the entry survive a loss of power.
fn directory(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether users other than the owner can read a file.
fn is_exposed(file: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(file).is_ok_and(|data| data.permissions().mode() & 0o044 != 0)
    }
    #[cfg(not(unix))]
    false
}

/// Logs a warning if other users can read a file with a secret.
pub(crate) fn warn_if_exposed(file: &Path) {
    if is_exposed(file) {
        let file = file.display();
        tracing::warn!(%file, "other users can read the secret file; run `chmod 600` on it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_locked_until_its_handle_is_dropped() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("secret");
        let made = create(&file, b"one").expect("file is written");
        let other = || File::open(&file).expect("file is written");
        assert!(other().try_lock().is_err());
        let replaced = replace(&file, b"two").expect("file is written");
        drop(made);
        assert!(other().try_lock().is_err());
        drop(replaced);
        other().try_lock().expect("lock is released");
        assert_eq!(fs::read(&file).expect("file is readable"), b"two");
        assert_eq!(
            fs::read_dir(dir.path())
                .expect("temporary directory")
                .count(),
            1
        );
    }

    #[test]
    fn error_does_not_name_the_temporary_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let error = create(&dir.path().join("absent/secret"), b"one").expect_err("no directory");
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
    }

    #[cfg(unix)]
    #[test]
    fn file_that_others_can_read_is_exposed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("secret");
        create(&file, b"one").expect("a file");
        assert!(!is_exposed(&file));
        for mode in [0o640, 0o604] {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(&file, permissions).expect("new permissions");
            assert!(is_exposed(&file), "{mode:o}");
        }
    }
}
