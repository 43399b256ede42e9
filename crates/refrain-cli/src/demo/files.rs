//! The files of one demo, in a directory that is removed at its end.

use crate::Failure;
use refrain::runtime::{Source, SystemSource};
use refrain::server::KeyRing;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of its own under the system's temporary one. Dropping it removes it.
pub(super) struct Files {
    dir: PathBuf,
    source: SystemSource,
}

impl Files {
    /// Makes the directory, which nobody else may read: there is a key in it.
    pub(super) fn make() -> Result<Self, Failure> {
        let source = SystemSource::new();
        let name = format!("refrain-demo-{}-{}", std::process::id(), random(&source, 4));
        let dir = std::env::temp_dir().join(name);
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&dir).map_err(|error| {
            format!(
                "the directory {} cannot be made: {error}; $TMPDIR chooses another place",
                dir.display()
            )
        })?;
        Ok(Self { dir, source })
    }

    /// Where a file of this name is, or would be.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes a file and says where it is.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let file = self.path(name);
        fs::write(&file, text)
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        Ok(file)
    }

    /// Writes a key ring with one new key.
    pub(super) fn write_keys(&self) -> Result<PathBuf, Failure> {
        self.write("keys", &KeyRing::generate(&self.source).to_text())
    }

    /// A new secret, as a bearer token.
    pub(super) fn secret(&self) -> String {
        random(&self.source, 16)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            let dir = self.dir.display();
            anstream::eprintln!("refrain: {dir} cannot be removed: {error}");
        }
    }
}

/// The lines of a ledger: every effect that the tools had so far.
pub(super) fn read_ledger(file: &Path) -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("the ledger {} cannot be read: {error}", file.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn random(source: &SystemSource, bytes: usize) -> String {
    let mut random = vec![0; bytes];
    source.fill(&mut random);
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}
