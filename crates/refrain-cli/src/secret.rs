//! Files with secrets in them: only their owner can read them, and nobody ever sees half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Makes a file. There must be none yet.
pub(crate) fn make(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut out = options.open(file)?;
    out.write_all(bytes).and(out.sync_all())
}

/// Writes beside the file and then takes its place. What was there before stays until the new is safe on the disk.
pub(crate) fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays a link: what it points to is replaced.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let mut beside = target.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    // A process of the same number may have died while it wrote.
    let _ = fs::remove_file(&beside);
    let written = make(&beside, bytes).and_then(|()| fs::rename(&beside, &target));
    if written.is_err() {
        // It holds secrets, and may not be there.
        let _ = fs::remove_file(&beside);
    }
    written.and_then(|()| settle(&target))
}

/// Has the directory of a file remember it after a loss of power.
fn settle(file: &Path) -> io::Result<()> {
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}
