//! How tasks are run and kept.

use crate::builder::BuildError;
use std::time::Duration;

/// How a server runs and keeps tasks. All instances that share a store should have the same options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOptions {
    /// Tasks that one instance runs at the same time. Default 64.
    pub concurrent: usize,
    /// How long a lease lasts. It is renewed every third of this time. Default 30 seconds.
    pub lease: Duration,
    /// How often the store is polled for due tasks and for changes, in addition to its hints. Default 500 milliseconds.
    pub look: Duration,
    /// Attempts without progress after which a task fails. Default 8.
    pub attempts: u32,
    /// The wait before the second attempt, doubled for each further one. Default one second.
    pub retry_after: Duration,
    /// The longest wait between two attempts. Default 5 minutes.
    pub retry_at_most: Duration,
    /// How long a task may live, unless its tool sets another time. Default 7 days.
    pub ttl: Duration,
    /// How often clients should poll a task, unless its tool sets another interval. Default one second.
    pub poll_interval: Duration,
    /// How long an ended task is kept at least. Default one hour.
    pub keep: Duration,
    /// How often expired records are deleted. Default one minute.
    pub sweep: Duration,
    /// The largest journal of a task, in bytes. Default 4 MiB.
    pub journal: usize,
    /// Tasks in one subscription. Default 256.
    pub subscribed: usize,
    /// Clients that wait for a task to end; others get HTTP 503. They need no permit of a call. Default 1024.
    pub waiting: usize,
    /// Seal journals, arguments, asks, answers and results before they are stored. The key ring must keep its keys for as
    /// long as tasks live. Unsealed tasks are rejected: begin with an empty store. Status messages, keys of asks and the
    /// replay log are not sealed. Default no.
    pub seal: bool,
}

impl TaskOptions {
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let zero = [
            ("tasks.concurrent", self.concurrent == 0),
            ("tasks.lease", self.lease < Duration::from_millis(3)),
            ("tasks.look", self.look.is_zero()),
            ("tasks.attempts", self.attempts == 0),
            ("tasks.ttl", self.ttl.is_zero()),
            ("tasks.poll_interval", self.poll_interval.is_zero()),
            ("tasks.sweep", self.sweep.is_zero()),
        ];
        match zero.iter().find(|(_, is_zero)| *is_zero) {
            Some((limit, _)) => Err(BuildError::Limit(limit)),
            None => Ok(()),
        }
    }
}

impl Default for TaskOptions {
    fn default() -> Self {
        Self {
            concurrent: 64,
            lease: Duration::from_secs(30),
            look: Duration::from_millis(500),
            attempts: 8,
            retry_after: Duration::from_secs(1),
            retry_at_most: Duration::from_secs(300),
            ttl: Duration::from_secs(7 * 24 * 3600),
            poll_interval: Duration::from_secs(1),
            keep: Duration::from_secs(3600),
            sweep: Duration::from_secs(60),
            journal: 4 * 1024 * 1024,
            subscribed: 256,
            waiting: 1024,
            seal: false,
        }
    }
}
