//! The cached keys of an authorization server.
//!
//! They are read again when they are old, and when a token names an unknown key; never twice at once, and not more often
//! than the interval allows. If that fails, the known keys stay. Only requests with an unknown key wait.

use super::fetch::{Document, FetchError};
use super::jwk::{Key, KeySet};
use super::validation::TokenError;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;
use tokio::task::{JoinHandle, spawn_blocking};

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
}

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
        let keys = parse_file(path, std::fs::read(path))?;
        if keys.len() == 0 {
            return Err(ReadError::Empty);
        }
        let mut state = self.state.lock();
        state.keys = keys;
        state.fresh = Some(Instant::now());
        Ok(())
    }

    pub(super) async fn find(
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<Key>, TokenError> {
        let (found, is_old, attempts) = {
            let state = self.state.lock();
            let is_old = |fresh: Instant| fresh.elapsed() >= self.max_age;
            let is_old = state.fresh.is_none_or(is_old);
            (state.keys.find(id, algorithm), is_old, state.attempts)
        };
        if let Ok(key) = found {
            // Old keys are still used meanwhile.
            if is_old && let Ok(reading) = self.reading.clone().try_lock_owned() {
                drop(self.read_again(reading, attempts));
            }
            return Ok(key);
        }
        let reading = self.reading.clone().lock_owned().await;
        if let Some(task) = self.read_again(reading, attempts)
            && let Err(error) = task.await
        {
            tracing::error!(%error, "failed to read keys");
        }
        self.state.lock().keys.find(id, algorithm)
    }

    /// Starts to read the keys, unless that happened since `attempts`, or less than the interval ago.
    fn read_again(
        self: &Arc<Self>,
        reading: OwnedMutexGuard<()>,
        attempts: u64,
    ) -> Option<JoinHandle<()>> {
        {
            let mut state = self.state.lock();
            let is_recent = |tried: Instant| tried.elapsed() < self.interval;
            if state.attempts != attempts || state.tried.is_some_and(is_recent) {
                return None;
            }
            state.tried = Some(Instant::now());
        }
        let this = self.clone();
        // In a separate task, which is not cancelled when the client disconnects.
        Some(tokio::spawn(async move {
            let _reading = reading;
            let read = this.read().await;
            let mut state = this.state.lock();
            state.attempts += 1;
            match read {
                Ok(keys) => {
                    tracing::debug!(keys = keys.len(), "keys read");
                    if keys.len() == 0 {
                        tracing::warn!(error = %ReadError::Empty, "no token can be verified");
                    }
                    state.keys = keys;
                    state.fresh = Some(Instant::now());
                }
                Err(error) => {
                    let known = state.keys.len();
                    tracing::warn!(%error, known, "failed to read keys, keeping the known ones");
                }
            }
        }))
    }

    async fn read(&self) -> Result<KeySet, ReadError> {
        match &self.origin {
            Origin::Url(document) => {
                let json = document.fetch().await;
                let json = json.map_err(|error| ReadError::Fetch {
                    host: document.url.host.clone(),
                    error,
                })?;
                Ok(KeySet::read(&json)?)
            }
            Origin::File(path) => {
                let file = path.clone();
                let json = spawn_blocking(move || std::fs::read(file)).await;
                parse_file(path, json.unwrap_or_else(|error| Err(error.into())))
            }
        }
    }
}

fn parse_file(path: &Path, json: std::io::Result<Vec<u8>>) -> Result<KeySet, ReadError> {
    let json = json.map_err(|error| ReadError::File {
        path: path.to_owned(),
        error,
    })?;
    Ok(KeySet::read(&json)?)
}
