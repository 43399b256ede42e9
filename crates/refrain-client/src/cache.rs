//! A cache of results, with the lifetimes that the server sets.

use refrain_wire::client::Request;
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const RESULTS_MAX: usize = 256;
const SIZE_MAX: usize = 32 * 1024 * 1024;
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Cached results by method and params. They all belong to one authorization, so private results are cached too.
#[derive(Default)]
pub(crate) struct ResultCache {
    results: HashMap<(&'static str, String), CachedResult>,
    authorization: u64,
}

struct CachedResult {
    expires: Instant,
    result: Value,
    size: usize,
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

    pub(crate) fn get(&self, request: &Request) -> Option<Value> {
        let entry = self.results.get(&key(request))?;
        (Instant::now() < entry.expires).then(|| entry.result.clone())
    }

    pub(crate) fn store(&mut self, request: &Request, result: &Value) {
        let ttl = result.get("ttlMs").and_then(Value::as_u64).unwrap_or(0);
        let size = result.to_string().len();
        if ttl == 0 || size > SIZE_MAX {
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
            expires: now + Duration::from_millis(ttl).min(TTL_MAX),
            result: result.clone(),
            size,
        };
        self.results.insert(key(request), entry);
    }

    fn is_full(&self, size: usize) -> bool {
        let used: usize = self.results.values().map(|entry| entry.size).sum();
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
