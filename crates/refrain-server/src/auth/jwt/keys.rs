//! The keys of an authorization server, kept and read again.
//!
//! They are read again when they are old, and when a token names a key that is not among them; never twice at once, and
//! not more often than the interval allows. When that fails the known keys stay. Only those wait for it whose key is not
//! known.

use super::fetch::{Document, FetchError};
use super::jwk::{Key, KeySet, NoKey};
use jsonwebtoken::Algorithm;
use parking_lot::{Mutex, MutexGuard};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;

/// Where the keys come from.
pub(super) enum Origin {
    File(PathBuf),
    Url(Box<Document>),
}

/// The keys that are known, and how to know more.
pub(super) struct Keys {
    origin: Origin,
    max_age: Duration,
    interval: Duration,
    state: Mutex<State>,
    /// Held by whoever is reading them again.
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    keys: KeySet,
    /// When they were last found to be up to date.
    fresh: Option<Instant>,
    tried: Option<Instant>,
    /// How many attempts to read them have ended.
    attempts: u64,
    /// What the file looked like.
    stamp: Option<Stamp>,
}

/// The time of the last change of a file, and its size.
type Stamp = (SystemTime, u64);

/// Why keys could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{} cannot be read: {error}", path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("they are no JWK set: {0}")]
    Json(#[from] serde_json::Error),
    #[error("there is no key among them that could have signed a token")]
    Empty,
}

impl Keys {
    pub(super) fn new(origin: Origin, max_age: Duration, interval: Duration) -> Self {
        Self {
            origin,
            max_age,
            interval,
            state: Mutex::default(),
            reading: Arc::default(),
        }
    }

    /// Reads a file at once, so that a mistake in it is known before the first call.
    pub(super) fn read_file(&self) -> Result<(), ReadError> {
        let Origin::File(path) = &self.origin else {
            return Ok(());
        };
        let (stamp, keys) = read_file(path, None)?;
        let keys = keys.filter(|keys| keys.len() > 0).ok_or(ReadError::Empty)?;
        let mut state = self.state();
        state.keys = keys;
        state.stamp = Some(stamp);
        state.fresh = Some(Instant::now());
        Ok(())
    }

    /// How long a client should wait that could not be told who it is.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// The key for a token.
    pub(super) async fn find(
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<Key>, NoKey> {
        let (found, old, attempts) = {
            let state = self.state();
            let old = state
                .fresh
                .is_none_or(|fresh| fresh.elapsed() >= self.max_age);
            (state.keys.find(id, algorithm), old, state.attempts)
        };
        match found {
            Ok(key) => {
                // Old keys go on working: nobody who has one waits for others, and one attempt at a time is enough.
                if old && let Ok(reading) = self.reading.clone().try_lock_owned() {
                    drop(self.read_again(reading, attempts, false));
                }
                Ok(key)
            }
            Err(_) => {
                let reading = self.reading.clone().lock_owned().await;
                if let Some(task) = self.read_again(reading, attempts, true)
                    && let Err(error) = task.await
                {
                    tracing::error!(%error, "the keys could not be read");
                }
                self.state().keys.find(id, algorithm)
            }
        }
    }

    /// Has the keys read, unless somebody did so meanwhile, or too short a time ago.
    fn read_again(
        self: &Arc<Self>,
        reading: OwnedMutexGuard<()>,
        attempts: u64,
        missed: bool,
    ) -> Option<JoinHandle<()>> {
        {
            let mut state = self.state();
            let soon = |tried: Instant| tried.elapsed() < self.interval;
            if state.attempts != attempts || state.tried.is_some_and(soon) {
                return None;
            }
            state.tried = Some(Instant::now());
        }
        let this = self.clone();
        // A task of its own: a client that goes away must not take the keys of others with it.
        Some(tokio::spawn(async move {
            let _reading = reading;
            this.read(missed).await;
            this.state().attempts += 1;
        }))
    }

    async fn read(&self, missed: bool) {
        let read = match &self.origin {
            Origin::Url(url) => {
                let document = url.fetch().await.map_err(ReadError::from);
                let keys = document.and_then(|json| Ok(KeySet::read(&json)?));
                keys.map(|keys| (None, Some(keys)))
            }
            Origin::File(path) => {
                // A key was missed: read it even if it looks unchanged.
                let known = self.state().stamp.filter(|_| !missed);
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || read_file(&path, known)).await;
                match read {
                    Ok(read) => read.map(|(stamp, keys)| (Some(stamp), keys)),
                    Err(error) => return tracing::error!(%error, "the keys could not be read"),
                }
            }
        };
        match read {
            Ok((stamp, keys)) => {
                let mut state = self.state();
                state.fresh = Some(Instant::now());
                state.stamp = stamp;
                if let Some(keys) = keys {
                    tracing::debug!(keys = keys.len(), "the keys of the issuer were read");
                    if keys.len() == 0 {
                        tracing::warn!(error = %ReadError::Empty, "no token can be verified");
                    }
                    state.keys = keys;
                }
            }
            Err(error) => {
                let known = self.state().keys.len();
                tracing::warn!(%error, known, "the keys of the issuer stay as they are");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Reads a file, unless it looks as it did.
fn read_file(path: &PathBuf, known: Option<Stamp>) -> Result<(Stamp, Option<KeySet>), ReadError> {
    let failed = |error| ReadError::File {
        path: path.clone(),
        error,
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let stamp = (metadata.modified().map_err(failed)?, metadata.len());
    if known == Some(stamp) {
        return Ok((stamp, None));
    }
    let json = std::fs::read(path).map_err(failed)?;
    Ok((stamp, Some(KeySet::read(&json)?)))
}
