//! The files of one demo, in a temporary directory.

use crate::Failure;
use refrain::runtime::{Source, SystemSource};
use std::fs;
use std::path::PathBuf;

/// A directory under the system's temporary one. Dropping it removes it.
pub(super) struct Files(PathBuf);

impl Files {
    /// Creates the directory, readable by its owner only: it contains a key.
    pub(super) fn create() -> Result<Self, Failure> {
        let name = format!("refrain-demo-{}-{}", std::process::id(), random(4));
        let dir = std::env::temp_dir().join(name);
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&dir).map_err(|error| {
            format!(
                "the directory {} cannot be made: {error}; $TMPDIR chooses another place",
                dir.display()
            )
        })?;
        Ok(Self(dir))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let file = self.path(name);
        fs::write(&file, text)
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        Ok(file)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            let dir = self.0.display();
            anstream::eprintln!("refrain: {dir} cannot be removed: {error}");
        }
    }
}

pub(super) fn random(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    SystemSource::new().fill(&mut random);
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}
