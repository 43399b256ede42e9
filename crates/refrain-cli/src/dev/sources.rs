//! The files whose changes start a build: Rust and TOML files of the crate, and everything that any build so
//! far read.

use crate::AppError;
use refrain_app::with_hint;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The time of the last change and the size of each file.
pub(super) type Snapshot = BTreeMap<PathBuf, Option<(SystemTime, u64)>>;

pub(super) struct Sources {
    /// The directory with the nearest `Cargo.toml`.
    root: PathBuf,
    /// The files that the builds so far read.
    read: BTreeSet<PathBuf>,
}

impl Sources {
    pub(super) fn of_this_crate() -> Result<Self, AppError> {
        let here = std::env::current_dir()?;
        let mut folders = here.ancestors();
        match folders.find(|folder| folder.join("Cargo.toml").is_file()) {
            Some(root) => Ok(Self {
                root: root.to_owned(),
                read: BTreeSet::new(),
            }),
            None => Err(with_hint(
                format!("no Cargo.toml in {} or above", here.display()),
                "change into the directory of a crate, or create one with `refrain new NAME`",
            )),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut files = Vec::new();
        find(&self.root, &mut files);
        let files = files.into_iter().chain(self.read.iter().cloned());
        files.map(|file| (file.clone(), state(&file))).collect()
    }

    /// Adds the files that a build read. They count as unchanged since the snapshot before the build.
    pub(super) fn add(&mut self, read: Vec<PathBuf>, before: &mut Snapshot) {
        for file in &read {
            before.entry(file.clone()).or_insert_with(|| state(file));
        }
        self.read.extend(read);
    }

    /// Waits until the files differ from a snapshot.
    pub(super) async fn changed(&self, before: &Snapshot, interval: Duration) {
        while self.snapshot() == *before {
            tokio::time::sleep(interval).await;
        }
    }
}

fn state(file: &Path) -> Option<(SystemTime, u64)> {
    let data = fs::metadata(file).ok()?;
    Some((data.modified().ok()?, data.len()))
}

/// Adds all Rust and TOML files of a folder, without hidden folders and build folders.
fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let is_source = name.ends_with(".rs") || name.ends_with(".toml");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && name != "target" && !name.starts_with('.') => {
                find(&path, files);
            }
            Ok(kind) if !kind.is_dir() && is_source => files.push(path),
            _ => {}
        }
    }
}

/// The files that a program was made of, from the file in which cargo lists them: `PROGRAM: FILE FILE …`.
pub(super) fn read_dep_info(file: &Path) -> Vec<PathBuf> {
    parse_dep_info(&fs::read_to_string(file).unwrap_or_default())
}

fn parse_dep_info(text: &str) -> Vec<PathBuf> {
    let line = text.lines().find_map(|line| Some(line.split_once(": ")?.1));
    // A space in a name has a backslash before it.
    let names = line.unwrap_or_default().replace("\\ ", "\0");
    let names = names.split_whitespace().map(|name| name.replace('\0', " "));
    names.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dep_info_lists_files_with_spaces() {
        let text = "/a/target/debug/my\\ app: /a/src/main.rs /a/src/my\\ mod.rs\n";
        let files = ["/a/src/main.rs", "/a/src/my mod.rs"].map(PathBuf::from);
        assert_eq!(parse_dep_info(text), files);
        assert_eq!(parse_dep_info(""), [] as [PathBuf; 0]);
    }

    #[test]
    fn new_removed_and_read_files_change_the_snapshot() {
        let folder = tempfile::tempdir().expect("a directory");
        let root = folder.path().join("crate");
        fs::create_dir_all(root.join("target")).expect("a directory");
        fs::write(root.join("Cargo.toml"), "").expect("a file");
        let included = folder.path().join("text");
        fs::write(&included, "old").expect("a file");
        let mut sources = Sources {
            root: root.clone(),
            read: BTreeSet::new(),
        };
        let mut before = sources.snapshot();
        sources.add(vec![included.clone()], &mut before);
        fs::write(root.join("refrain.db"), "data").expect("a file");
        fs::write(root.join("target/x.rs"), "").expect("a file");
        assert_eq!(sources.snapshot(), before);
        fs::write(root.join("main.rs"), "").expect("a file");
        assert_ne!(sources.snapshot(), before);
        fs::remove_file(root.join("main.rs")).expect("a file");
        assert_eq!(sources.snapshot(), before);
        fs::write(&included, "longer").expect("a file");
        assert_ne!(sources.snapshot(), before);
    }
}
