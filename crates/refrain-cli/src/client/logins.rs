//! The logins of the user: one grant for each server, in a file that only the user can read.

use super::exit::CommandError;
use refrain_app::secret_file;
use refrain_client::{Grant, Grants};
use std::error::Error;
use std::fs::{self, File, TryLockError};
use std::future::{Future, ready};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use url::{Url, form_urlencoded};

const EXTENSION: &str = "json";

/// How long to wait for another process that uses the refresh token.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_POLL: Duration = Duration::from_millis(20);

pub(super) type BoxError = Box<dyn Error + Send + Sync>;
pub(super) type GrantsFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'a>>;

/// The directory of the logins: `$XDG_STATE_HOME/refrain/logins`, by default below `~/.local/state`.
#[derive(Debug, Clone)]
pub(super) struct Logins(PathBuf);

impl Logins {
    /// `None` if neither `$XDG_STATE_HOME` nor `$HOME` is an absolute path.
    pub(super) fn find() -> Option<Self> {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        // Relative paths are ignored, as the XDG specification requires.
        let absolute = |path: &PathBuf| path.is_absolute();
        let state = path("XDG_STATE_HOME").filter(absolute).or_else(|| {
            let home = path("HOME").filter(absolute);
            home.map(|home| home.join(".local/state"))
        });
        state.map(|state| Self(state.join("refrain/logins")))
    }

    pub(super) fn require() -> Result<Self, CommandError> {
        Self::find().ok_or_else(|| {
            CommandError::usage(
                "no directory for logins: neither $XDG_STATE_HOME nor $HOME is an absolute path",
            )
        })
    }

    pub(super) fn contains(&self, server: &Url) -> bool {
        self.file(server).is_file()
    }

    /// The URLs of all servers with a login, sorted.
    pub(super) fn servers(&self) -> Result<Vec<String>, CommandError> {
        let unreadable = |error| self.error("read logins in", &self.0, &error);
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unreadable)?,
        };
        let mut servers = Vec::new();
        for entry in entries {
            let path = entry.map_err(unreadable)?.path();
            let is_login = path.extension().is_some_and(|end| end == EXTENSION);
            if let Some(name) = path.file_stem().filter(|_| is_login) {
                let name = name.to_string_lossy();
                servers.extend(form_urlencoded::parse(name.as_bytes()).map(|(url, _)| url.into()));
            }
        }
        servers.sort();
        Ok(servers)
    }

    pub(super) fn write(&self, server: &Url, grant: &Grant) -> Result<(), CommandError> {
        let file = self.file(server);
        let written = self.replace(&file, grant);
        written.map_err(|error| self.error("write login", &file, &error))
    }

    /// Returns whether there was a login.
    pub(super) fn remove(&self, server: &Url) -> Result<bool, CommandError> {
        let file = self.file(server);
        match fs::remove_file(&file) {
            Ok(()) => {
                // A lock file that remains has no effect.
                fs::remove_file(self.lock_file(server)).ok();
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.error("remove login", &file, &error)),
        }
    }

    fn read(&self, server: &Url) -> io::Result<Option<Grant>> {
        match fs::read(self.file(server)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn replace(&self, file: &Path, grant: &Grant) -> io::Result<()> {
        let bytes = serde_json::to_vec(grant)?;
        self.create_directory()?;
        secret_file::replace(file, &bytes).map(drop)
    }

    fn create_directory(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.0)
    }

    /// Waits for the lock of a server. Closing the returned file releases the lock, also if the process is killed.
    async fn wait_for_lock(&self, server: &Url) -> io::Result<File> {
        self.create_directory()?;
        let file = File::create(self.lock_file(server))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    sleep(LOCK_POLL).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn lock_file(&self, server: &Url) -> PathBuf {
        self.file(server).with_extension("lock")
    }

    /// The file of a server: its encoded URL, without a fragment, is the name.
    fn file(&self, server: &Url) -> PathBuf {
        let mut server = server.clone();
        server.set_fragment(None);
        let name: String = form_urlencoded::byte_serialize(server.as_str().as_bytes()).collect();
        self.0.join(format!("{name}.{EXTENSION}"))
    }

    fn error(&self, verb: &str, path: &Path, error: &io::Error) -> CommandError {
        CommandError::usage(format!("cannot {verb} {}: {error}", path.display()))
    }
}

impl Grants for Logins {
    fn get<'a>(&'a self, server: &'a Url) -> GrantsFuture<'a, Option<Grant>> {
        Box::pin(ready(self.read(server).map_err(Into::into)))
    }

    fn put<'a>(&'a self, server: &'a Url, grant: &'a Grant) -> GrantsFuture<'a, ()> {
        let written = self.replace(&self.file(server), grant);
        Box::pin(ready(written.map_err(Into::into)))
    }

    fn lock<'a>(&'a self, server: &'a Url) -> GrantsFuture<'a, Box<dyn Send>> {
        Box::pin(async {
            let file = self.wait_for_lock(server).await?;
            Ok(Box::new(file) as Box<dyn Send>)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_is_the_encoded_url() {
        let logins = Logins("/state".into());
        let url = Url::parse("https://example.com:8443/a/mcp?x=1#part").unwrap();
        assert_eq!(
            logins.file(&url),
            Path::new("/state/https%3A%2F%2Fexample.com%3A8443%2Fa%2Fmcp%3Fx%3D1.json")
        );
    }

    #[tokio::test]
    async fn lock_excludes_others_and_is_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins(dir.path().join("logins"));
        let url = Url::parse("https://example.com/mcp").unwrap();
        let held = logins.lock(&url).await.unwrap();
        let mut second = logins.lock(&url);
        let waited = tokio::time::timeout(LOCK_POLL * 3, &mut second).await;
        assert!(waited.is_err());
        drop(held);
        second.await.unwrap();
        assert!(logins.servers().unwrap().is_empty());
    }
}
