//! A cache of an authorization server's public keys.
//!
//! Keys are read again when they reach the maximum age and when a token names an unknown key. There is one read at a time,
//! and at most one per interval. If a read fails, the cached keys remain valid. Only requests with unknown keys wait.

use super::fetch::{FetchError, JwksDocument};
use super::jwk::{KeySet, KeySetError, VerificationKey};
use super::validation::TokenError;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use refrain_core::limited_event;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;
use tokio::task::{JoinHandle, spawn_blocking};

pub(super) enum KeySource {
    File(PathBuf),
    Url(Box<JwksDocument>),
}

pub(super) struct KeyCache {
    source: KeySource,
    max_age: Duration,
    /// The minimum time between two attempts to read the keys.
    pub(super) interval: Duration,
    state: Mutex<CacheState>,
    /// Locked while the keys are read.
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct CacheState {
    keys: KeySet,
    /// When the keys were last read successfully.
    read_at: Option<Instant>,
    /// When the last attempt to read them started.
    attempted_at: Option<Instant>,
    /// Completed attempts to read them.
    attempts: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum KeyReadError {
    #[error("failed to read {}: {error}", path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("failed to fetch keys from {host}: {error}")]
    Fetch { host: String, error: FetchError },
    #[error("not a JWK set: {0}")]
    Document(#[from] KeySetError),
    #[error("no usable key")]
    Empty,
}

impl KeyCache {
    pub(super) fn new(source: KeySource, max_age: Duration, interval: Duration) -> Self {
        Self {
            source,
            max_age,
            interval,
            state: Mutex::default(),
            reading: Arc::default(),
        }
    }

    /// Reads the key file, to report an invalid one at startup.
    pub(super) fn read_file(&self) -> Result<(), KeyReadError> {
        let KeySource::File(path) = &self.source else {
            return Ok(());
        };
        let keys = parse_file(path, std::fs::read(path))?;
        if keys.len() == 0 {
            return Err(KeyReadError::Empty);
        }
        let mut state = self.state.lock();
        state.keys = keys;
        state.read_at = Some(Instant::now());
        Ok(())
    }

    pub(super) async fn find(
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<VerificationKey>, TokenError> {
        let (found, is_old, attempts) = {
            let state = self.state.lock();
            let is_old = |read_at: Instant| read_at.elapsed() >= self.max_age;
            let is_old = state.read_at.is_none_or(is_old);
            (state.keys.find(id, algorithm), is_old, state.attempts)
        };
        if let Ok(key) = found {
            // Refresh in the background; the old keys are still used.
            if is_old && let Ok(reading) = self.reading.clone().try_lock_owned() {
                drop(self.start_read(reading, attempts));
            }
            return Ok(key);
        }
        let reading = self.reading.clone().lock_owned().await;
        if let Some(task) = self.start_read(reading, attempts)
            && let Err(error) = task.await
        {
            limited_event!(ERROR, %error, "failed to read keys");
        }
        self.state.lock().keys.find(id, algorithm)
    }

    /// Starts to read the keys, unless another attempt completed since the count was `attempts`, or started less than the
    /// interval ago.
    fn start_read(
        self: &Arc<Self>,
        reading: OwnedMutexGuard<()>,
        attempts: u64,
    ) -> Option<JoinHandle<()>> {
        {
            let mut state = self.state.lock();
            let is_recent = |attempted_at: Instant| attempted_at.elapsed() < self.interval;
            if state.attempts != attempts || state.attempted_at.is_some_and(is_recent) {
                return None;
            }
            state.attempted_at = Some(Instant::now());
        }
        let this = self.clone();
        // A separate Tokio task is not cancelled when the client disconnects.
        Some(tokio::spawn(async move {
            let _reading = reading;
            let read = this.read().await;
            let mut state = this.state.lock();
            state.attempts += 1;
            match read {
                Ok(keys) => {
                    tracing::debug!(keys = keys.len(), "keys read");
                    if keys.len() == 0 {
                        limited_event!(WARN, "key set has no usable key: requests get HTTP 503");
                    }
                    state.keys = keys;
                    state.read_at = Some(Instant::now());
                }
                Err(error) => {
                    let cached = state.keys.len();
                    limited_event!(WARN, %error, cached, "failed to read keys");
                }
            }
        }))
    }

    async fn read(&self) -> Result<KeySet, KeyReadError> {
        match &self.source {
            KeySource::Url(document) => {
                let json = document.fetch().await;
                let json = json.map_err(|error| KeyReadError::Fetch {
                    host: document.url.host.clone(),
                    error,
                })?;
                Ok(KeySet::parse(&json)?)
            }
            KeySource::File(path) => {
                let file = path.clone();
                let json = spawn_blocking(move || std::fs::read(file)).await;
                parse_file(path, json.unwrap_or_else(|error| Err(error.into())))
            }
        }
    }
}

fn parse_file(path: &Path, json: std::io::Result<Vec<u8>>) -> Result<KeySet, KeyReadError> {
    let json = json.map_err(|error| KeyReadError::File {
        path: path.to_owned(),
        error,
    })?;
    Ok(KeySet::parse(&json)?)
}
