//! What a call may take.

use std::time::Duration;

/// What a call may take. Each has a default, and each can be set.
///
/// ```
/// use refrain_client::{Client, Limits};
/// let limits = Limits { rounds: 5, ..Limits::default() };
/// let builder = Client::builder().limits(limits);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How many rounds a call may take (20).
    pub rounds: u32,
    /// The time for a whole call, with the time people take to answer (one hour). `None` is for ever.
    pub deadline: Option<Duration>,
    /// The time the server may be silent within one round (five minutes).
    pub silence: Duration,
    /// The time a server that was started has to say what it speaks before it is taken for an older one (5 seconds).
    /// It may still say so later.
    pub probe: Duration,
    /// How often one request is sent again when it did not reach the server or its response was lost (4).
    pub retries: u32,
    /// The size of one message from the server, in bytes (16 MiB).
    pub message: usize,
    /// The size of the state that a server hands out, in bytes (4 MiB).
    pub state: usize,
    /// How many asks one round may have (100).
    pub asks: usize,
    /// How many pages a list may have (1000).
    pub pages: usize,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            rounds: 20,
            deadline: Some(Duration::from_secs(3600)),
            silence: Duration::from_secs(300),
            probe: Duration::from_secs(5),
            retries: 4,
            message: 16 * MIB,
            state: 4 * MIB,
            asks: 100,
            pages: 1000,
        }
    }
}
