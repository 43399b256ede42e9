//! Results that may be used again, for as long as the server said.

use refrain_wire::client::Request;
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How many results are kept.
const MOST: usize = 256;
/// How large all results may be together, in bytes of JSON.
const MOST_BYTES: usize = 32 * 1024 * 1024;
/// The longest time a result is kept.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Results by method and params. All are of one authorization, so private results may be kept too.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    results: HashMap<(&'static str, String), Kept>,
    authorization: u64,
}

#[derive(Debug)]
struct Kept {
    until: Instant,
    result: Value,
    size: usize,
}

impl Cache {
    /// What was kept under another authorization is forgotten.
    pub(crate) fn under(&mut self, authorization: u64) -> &mut Self {
        if self.authorization != authorization {
            self.authorization = authorization;
            self.results.clear();
        }
        self
    }

    /// A result that is still fresh.
    pub(crate) fn get(&self, request: &Request) -> Option<Value> {
        let kept = self.results.get(&key(request))?;
        (Instant::now() < kept.until).then(|| kept.result.clone())
    }

    /// Keeps a result for as long as it says.
    pub(crate) fn keep(&mut self, request: &Request, result: &Value) {
        let ttl = result.get("ttlMs").and_then(Value::as_u64).unwrap_or(0);
        if ttl == 0 {
            return;
        }
        let size = result.to_string().len();
        if size > MOST_BYTES {
            return;
        }
        let now = Instant::now();
        if self.is_full(size) {
            self.results.retain(|_, kept| now < kept.until);
        }
        if self.is_full(size) {
            self.results.clear();
        }
        let kept = Kept {
            until: now + Duration::from_millis(ttl).min(LONGEST),
            result: result.clone(),
            size,
        };
        self.results.insert(key(request), kept);
    }

    /// Whether there is no room for a result of this size.
    fn is_full(&self, size: usize) -> bool {
        let kept: usize = self.results.values().map(|kept| kept.size).sum();
        self.results.len() >= MOST || kept + size > MOST_BYTES
    }

    /// Forgets the results of a method.
    pub(crate) fn forget(&mut self, method: &str) {
        self.results.retain(|(kept, _), _| *kept != method);
    }
}

fn key(request: &Request) -> (&'static str, String) {
    let params = Value::Object(request.params.clone());
    (request.method, params.to_string())
}
