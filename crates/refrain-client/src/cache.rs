//! Results that may be used again, for as long as the server said.

use serde_json::{Map, Value};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How many results are kept.
const MOST: usize = 256;
/// The longest time a result is kept.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Results by method and params. All are of one authorization, so private results may be kept too.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    results: HashMap<(String, String), (Instant, Value)>,
    authorization: u64,
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
    pub(crate) fn get(&self, method: &str, params: &Map<String, Value>) -> Option<Value> {
        let (until, result) = self.results.get(&key(method, params))?;
        (Instant::now() < *until).then(|| result.clone())
    }

    /// Keeps a result for as long as it says.
    pub(crate) fn keep(&mut self, method: &str, params: &Map<String, Value>, result: &Value) {
        let ttl = result.get("ttlMs").and_then(Value::as_u64).unwrap_or(0);
        if ttl == 0 {
            return;
        }
        let now = Instant::now();
        if self.results.len() >= MOST {
            self.results.retain(|_, (until, _)| now < *until);
        }
        if self.results.len() >= MOST {
            self.results.clear();
        }
        let until = now + Duration::from_millis(ttl).min(LONGEST);
        self.results
            .insert(key(method, params), (until, result.clone()));
    }

    /// Forgets the results of a method.
    pub(crate) fn forget(&mut self, method: &str) {
        self.results.retain(|(kept, _), _| kept != method);
    }
}

fn key(method: &str, params: &Map<String, Value>) -> (String, String) {
    (method.to_owned(), Value::Object(params.clone()).to_string())
}
