//! The cached keys of an authorization server.
//!
//! They are read again when they are old, and when a token names an unknown key; never twice at once, and not more often
//! than the interval allows. If that fails, the known keys stay. Only requests with an unknown key wait.

use super::fetch::{Document, FetchError};
use super::jwk::{Key, KeySet};
use super::validation::TokenError;
use jsonwebtoken::Algorithm;
use parking_lot::{Mutex, MutexGuard};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;

/// The source of the keys.
pub(super) enum Origin {
    File(PathBuf),
    Url(Box<Document>),
}

/// The known keys, and their source.
pub(super) struct Keys {
    origin: Origin,
    max_age: Duration,
    /// The least time between two attempts to read them.
    pub(super) interval: Duration,
    state: Mutex<State>,
    /// Held while they are read.
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    keys: KeySet,
    /// When they were last up to date.
    fresh: Option<Instant>,
    tried: Option<Instant>,
    /// Completed attempts to read them.
    attempts: u64,
    /// Of the file when it was read.
    stamp: Option<Stamp>,
}

/// The time of the last change of a file, and its size.
type Stamp = (SystemTime, u64);

/// Why keys could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("could not read {}: {error}", path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("could not fetch keys from {host}: {error}")]
    Fetch { host: String, error: FetchError },
    #[error("not a JWK set: {0}")]
    Json(#[from] serde_json::Error),
    #[error("no usable key")]
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

    /// Reads a file, so that an invalid one is found before the first call.
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

    /// The key for a token.
    pub(super) async fn find(
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<Key>, TokenError> {
        let (found, old, attempts) = {
            let state = self.state();
            let old = state
                .fresh
                .is_none_or(|fresh| fresh.elapsed() >= self.max_age);
            (state.keys.find(id, algorithm), old, state.attempts)
        };
        match found {
            Ok(key) => {
                // Old keys are still used meanwhile.
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
                    tracing::error!(%error, "failed to read keys");
                }
                self.state().keys.find(id, algorithm)
            }
        }
    }

    /// Starts to read the keys, unless that happened since `attempts`, or less than the interval ago.
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
        // In a separate task, which is not cancelled when the client disconnects.
        Some(tokio::spawn(async move {
            let _reading = reading;
            this.read(missed).await;
            this.state().attempts += 1;
        }))
    }

    async fn read(&self, missed: bool) {
        let read = match &self.origin {
            Origin::Url(url) => {
                let document = url.fetch().await.map_err(|error| ReadError::Fetch {
                    host: url.url.host.clone(),
                    error,
                });
                document.and_then(|json| Ok((None, Some(KeySet::read(&json)?))))
            }
            Origin::File(path) => {
                // With an unknown key, the file is read even if it looks unchanged.
                let known = self.state().stamp.filter(|_| !missed);
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || read_file(&path, known)).await;
                match read {
                    Ok(read) => read.map(|(stamp, keys)| (Some(stamp), keys)),
                    Err(error) => return tracing::error!(%error, "failed to read keys"),
                }
            }
        };
        match read {
            Ok((stamp, keys)) => {
                let mut state = self.state();
                state.fresh = Some(Instant::now());
                state.stamp = stamp;
                if let Some(keys) = keys {
                    tracing::debug!(keys = keys.len(), "keys read");
                    if keys.len() == 0 {
                        tracing::warn!(error = %ReadError::Empty, "no token can be verified");
                    }
                    state.keys = keys;
                }
            }
            Err(error) => {
                let known = self.state().keys.len();
                tracing::warn!(%error, known, "failed to read keys, keeping the known ones");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Reads a file, unless its stamp is unchanged.
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
