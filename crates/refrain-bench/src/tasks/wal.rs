//! Counts the commits in SQLite's write-ahead log (WAL).

use std::path::Path;

use crate::error::BenchError;

/// The salt of a write-ahead log, which identifies it, and the number of its commits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteAheadLog {
    salt: [u8; 8],
    commits: u64,
}

impl WriteAheadLog {
    pub(crate) fn read(file: &Path) -> Result<Self, BenchError> {
        let path = format!("{}-wal", file.display());
        let bytes = std::fs::read(&path).map_err(BenchError::system(path))?;
        Ok(Self::parse(&bytes).unwrap_or_default())
    }

    /// The file header has 32 bytes, with the page size at 8 and the salt at 16. Each page has a frame header of 24 bytes:
    /// bytes 4 to 8 are the size of the database on the last page of a commit and 0 on others, then follows the salt.
    fn parse(bytes: &[u8]) -> Option<Self> {
        const HEAD: usize = 32;
        const PAGE_HEAD: usize = 24;
        let page = u32::from_be_bytes(bytes.get(8..12)?.try_into().ok()?);
        let salt: [u8; 8] = bytes.get(16..24)?.try_into().ok()?;
        let pages = bytes.get(HEAD..)?.chunks_exact(PAGE_HEAD + page as usize);
        let commits = pages
            .take_while(|page| page[8..16] == salt)
            .filter(|page| page[4..8] != [0; 4])
            .count() as u64;
        Some(Self { salt, commits })
    }

    /// Commits since `before`. After a checkpoint the log may have restarted, once, with another salt.
    pub(crate) fn commits_since(&self, before: &Self) -> u64 {
        match self.salt == before.salt {
            true => self.commits - before.commits,
            false => self.commits,
        }
    }
}
