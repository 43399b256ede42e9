//! [`ClientLimits`]: time, size and retry limits of a client.

use crate::error::ErrorKind;
use serde_json::Value;
use std::time::Duration;

/// Time, size and retry limits of a client, with their defaults in parentheses.
///
/// ```
/// use refrain_client::{Client, ClientLimits};
/// let limits = ClientLimits { rounds: 5, ..ClientLimits::default() };
/// let builder = Client::builder().limits(limits);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientLimits {
    /// The number of rounds of a call (20).
    pub rounds: u32,
    /// The time for a whole call, including the time people take to answer (1 hour); `None` for no limit.
    pub deadline: Option<Duration>,
    /// How long the server may be silent within one round (5 minutes).
    pub silence: Duration,
    /// How long a server process may take to respond to `server/discover` before `initialize` is sent too (5 seconds).
    pub probe: Duration,
    /// The number of retries of a request that did not reach the server or whose response was lost (4).
    pub retries: u32,
    /// The size of one message from the server, or of all pages of a list, in bytes (16 MiB).
    pub message: usize,
    /// The number of JSON values, with object keys, in one message from the server or in all pages of a list (150,000).
    /// A value may need 500 bytes of memory, even if its text is a single byte.
    pub values: usize,
    /// The size of all messages of a response, such as progress and log messages, in bytes (64 MiB).
    pub response: usize,
    /// The size of a request state, in bytes (4 MiB).
    pub state: usize,
    /// The number of asks in one round (100).
    pub asks: usize,
    /// The number of JSON values in the asks of one round, or in all asks of a call of a legacy session (50,000). An ask
    /// that waits for its answer needs more memory than its values, because its form is kept too.
    pub ask_values: usize,
    /// The size of the asks of one round, or of one ask of a legacy session, in bytes (4 MiB).
    pub ask_bytes: usize,
    /// The number of pages of a list (1000).
    pub pages: usize,
    /// The number of entries in all pages of a list (10,000).
    pub entries: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            rounds: 20,
            deadline: Some(Duration::from_secs(3600)),
            silence: Duration::from_secs(300),
            probe: Duration::from_secs(5),
            retries: 4,
            message: 16 * MIB,
            values: 150_000,
            response: 64 * MIB,
            state: 4 * MIB,
            asks: 100,
            ask_values: 50_000,
            ask_bytes: 4 * MIB,
            pages: 1000,
            entries: 10_000,
        }
    }
}

impl ClientLimits {
    pub(crate) fn message_too_large(&self) -> ErrorKind {
        ErrorKind::too_large("message", self.message, "bytes", "ClientLimits::message")
    }

    /// Checks the number of JSON values in the asks of one round, or in all asks of a legacy call.
    pub(crate) fn check_ask_values(&self, values: usize) -> Result<(), ErrorKind> {
        check_asks(
            values,
            self.ask_values,
            "JSON values",
            "ClientLimits::ask_values",
        )
    }

    /// Checks the size of the asks of one round, or of one ask of a legacy session.
    pub(crate) fn check_ask_bytes(&self, bytes: usize) -> Result<(), ErrorKind> {
        check_asks(bytes, self.ask_bytes, "bytes", "ClientLimits::ask_bytes")
    }
}

fn check_asks(
    size: usize,
    limit: usize,
    unit: &'static str,
    setting: &'static str,
) -> Result<(), ErrorKind> {
    match size > limit {
        true => Err(ErrorKind::too_large("round of asks", limit, unit, setting)),
        false => Ok(()),
    }
}

/// The number of values in a JSON value. Objects, arrays and object keys count as one value each.
pub(crate) fn count_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(count_values).sum(),
        Value::Object(members) => members.values().map(|value| 1 + count_values(value)).sum(),
        _ => 0,
    }
}

/// The size of a JSON value in bytes, without punctuation and numbers.
pub(crate) fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(text_bytes).sum(),
        Value::Object(members) => {
            let bytes = |(key, value): (&String, &Value)| key.len() + text_bytes(value);
            members.iter().map(bytes).sum()
        }
        _ => 0,
    }
}
