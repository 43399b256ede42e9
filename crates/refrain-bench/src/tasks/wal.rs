//! SQLite's log of changes (WAL), as far as its commits are concerned.

use std::path::Path;

use crate::error::Error;

/// The log beside a file: the salt that tells it from an earlier one, and the number of its commits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    salt: [u8; 8],
    commits: u64,
}

impl Log {
    pub(crate) fn read(file: &Path) -> Result<Self, Error> {
        let path = format!("{}-wal", file.display());
        let bytes = std::fs::read(&path).map_err(Error::system(path))?;
        Ok(Self::parse(&bytes).unwrap_or_default())
    }

    /// Its head has 32 bytes, the size of a page and the salt among them. Each page in it has a head of 24 bytes: with the
    /// last page of a commit is the size of the whole file, and behind that the salt.
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

    /// A log whose changes were all in the file already may have begun anew, once.
    pub(crate) fn commits_since(&self, before: &Self) -> u64 {
        match self.salt == before.salt {
            true => self.commits - before.commits,
            false => self.commits,
        }
    }
}
