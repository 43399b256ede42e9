//! Counts commits in SQLite's write-ahead log (WAL).

use std::path::Path;

use crate::error::{Error, failed};

/// The state of a WAL: its salt, which changes at a reset, and the number of commits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WalState {
    salt: [u8; 8],
    commits: u64,
}

impl WalState {
    pub(crate) fn read(file: &Path) -> Result<Self, Error> {
        let path = format!("{}-wal", file.display());
        let bytes = std::fs::read(&path).map_err(failed(format!("read {path}")))?;
        Ok(Self::parse(&bytes).unwrap_or_default())
    }

    /// The header has 32 bytes with the page size and the salt. Each frame has a header of 24 bytes with the salt and a size
    /// field. In the last frame of a commit this field holds the database size, in others zero.
    fn parse(bytes: &[u8]) -> Option<Self> {
        const HEADER: usize = 32;
        const FRAME_HEADER: usize = 24;
        let page_size = u32::from_be_bytes(bytes.get(8..12)?.try_into().ok()?);
        let salt: [u8; 8] = bytes.get(16..24)?.try_into().ok()?;
        let frames = bytes
            .get(HEADER..)?
            .chunks_exact(FRAME_HEADER + page_size as usize);
        let commits = frames
            .take_while(|frame| frame[8..16] == salt)
            .filter(|frame| frame[4..8] != [0; 4])
            .count() as u64;
        Some(Self { salt, commits })
    }

    /// The number of new commits. The caller's open read transaction prevents a reset after the first of them.
    pub(crate) fn commits_since(&self, before: &Self) -> u64 {
        match self.salt == before.salt {
            true => self.commits - before.commits,
            false => self.commits,
        }
    }
}
