//! A cache of results, with the lifetimes that the server sets.

use refrain_wire::client::Request;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const RESULTS_MAX: usize = 256;
const SIZE_MAX: usize = 16 * 1024 * 1024;
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Cached results by method and params. They all belong to one authorization, so private results are cached too.
#[derive(Default)]
pub(crate) struct ResultCache {
    results: HashMap<(&'static str, String), CachedResult>,
    authorization: u64,
}

struct CachedResult {
    expires: Instant,
    /// Unparsed: the parsed values could need much more memory.
    result: Box<RawValue>,
}

impl ResultCache {
    /// Clears the cache if the authorization has changed.
    pub(crate) fn for_authorization(&mut self, authorization: u64) -> &mut Self {
        if self.authorization != authorization {
            self.authorization = authorization;
            self.results.clear();
        }
        self
    }

    pub(crate) fn get(&self, request: &Request) -> Option<Box<RawValue>> {
        let entry = self.results.get(&key(request))?;
        (Instant::now() < entry.expires).then(|| entry.result.clone())
    }

    pub(crate) fn store(&mut self, request: &Request, result: &RawValue, ttl: Duration) {
        let size = result.get().len();
        if size > SIZE_MAX {
            return;
        }
        let now = Instant::now();
        if self.is_full(size) {
            self.results.retain(|_, entry| now < entry.expires);
        }
        if self.is_full(size) {
            self.results.clear();
        }
        let entry = CachedResult {
            expires: now + ttl.min(TTL_MAX),
            result: result.to_owned(),
        };
        self.results.insert(key(request), entry);
    }

    fn is_full(&self, size: usize) -> bool {
        let sizes = self.results.values().map(|entry| entry.result.get().len());
        let used: usize = sizes.sum();
        self.results.len() >= RESULTS_MAX || used + size > SIZE_MAX
    }

    pub(crate) fn invalidate(&mut self, method: &str) {
        self.results.retain(|(cached, _), _| *cached != method);
    }
}

fn key(request: &Request) -> (&'static str, String) {
    let params = Value::Object(request.params.clone());
    (request.method, params.to_string())
}
