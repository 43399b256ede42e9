//! The cache of results, with the lifetimes that the server gives.

use refrain_wire::client::Request;
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const RESULTS_MAX: usize = 256;
/// In bytes of JSON.
const SIZE_MAX: usize = 32 * 1024 * 1024;
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Results by method and params. All are for one authorization, so private results are cached too.
#[derive(Default)]
pub(crate) struct Cache {
    results: HashMap<(&'static str, String), Entry>,
    authorization: u64,
}

struct Entry {
    until: Instant,
    result: Value,
    size: usize,
}

impl Cache {
    /// The cache for an authorization. Results for another one are removed.
    pub(crate) fn under(&mut self, authorization: u64) -> &mut Self {
        if self.authorization != authorization {
            self.authorization = authorization;
            self.results.clear();
        }
        self
    }

    pub(crate) fn get(&self, request: &Request) -> Option<Value> {
        let entry = self.results.get(&key(request))?;
        (Instant::now() < entry.until).then(|| entry.result.clone())
    }

    pub(crate) fn store(&mut self, request: &Request, result: &Value) {
        let ttl = result.get("ttlMs").and_then(Value::as_u64).unwrap_or(0);
        let size = result.to_string().len();
        if ttl == 0 || size > SIZE_MAX {
            return;
        }
        let now = Instant::now();
        if self.is_full(size) {
            self.results.retain(|_, entry| now < entry.until);
        }
        if self.is_full(size) {
            self.results.clear();
        }
        let entry = Entry {
            until: now + Duration::from_millis(ttl).min(TTL_MAX),
            result: result.clone(),
            size,
        };
        self.results.insert(key(request), entry);
    }

    fn is_full(&self, size: usize) -> bool {
        let used: usize = self.results.values().map(|entry| entry.size).sum();
        self.results.len() >= RESULTS_MAX || used + size > SIZE_MAX
    }

    pub(crate) fn forget(&mut self, method: &str) {
        self.results.retain(|(cached, _), _| *cached != method);
    }
}

fn key(request: &Request) -> (&'static str, String) {
    let params = Value::Object(request.params.clone());
    (request.method, params.to_string())
}
