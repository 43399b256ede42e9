//! How tasks are run and kept.

use crate::builder::BuildError;
use std::time::Duration;

/// How a server runs and keeps tasks. All instances that share a store should have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOptions {
    /// Tasks that one instance runs at the same time. Default 64.
    pub concurrent: usize,
    /// How long a worker has a task before another may take it. It is held for longer every third of this time. Default
    /// 30 seconds.
    pub lease: Duration,
    /// How often the store is asked for tasks that are due and for what became of others, whatever hints there are.
    /// Default 500 milliseconds.
    pub look: Duration,
    /// How often a task is taken without getting on before it is failed. Default 8.
    pub attempts: u32,
    /// The wait before a second attempt; doubled for each one after it. Default one second.
    pub retry_after: Duration,
    /// The longest wait between two attempts. Default 5 minutes.
    pub retry_at_most: Duration,
    /// How long a task may live, unless its tool says otherwise. Default 7 days.
    pub ttl: Duration,
    /// How often clients should look after a task, unless its tool says otherwise. Default one second.
    pub poll_interval: Duration,
    /// How long a task that ended is kept at least. Default one hour.
    pub keep: Duration,
    /// How often what is over is thrown away. Default one minute.
    pub sweep: Duration,
    /// The largest journal of a task, in bytes. Default 4 MiB.
    pub journal: usize,
    /// Tasks in one subscription. Default 256.
    pub subscribed: usize,
    /// Clients that wait at the same time for a task to end; one more is answered with HTTP 503. They need no permit of a
    /// call. Default 1024.
    pub waiting: usize,
    /// Seal what tasks hold before it is stored: journals, arguments, asks, answers and results. The key ring must keep
    /// the keys that they were sealed with for as long as tasks live, and what was stored unsealed is refused: begin with
    /// a store that has no tasks. Status messages, keys of asks and the replay log are not sealed. Default no.
    pub seal: bool,
}

impl TaskOptions {
    /// Zero of these would make workers that do nothing, or nothing else.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let nothing = [
            ("tasks.concurrent", self.concurrent == 0),
            ("tasks.lease", self.lease < Duration::from_millis(3)),
            ("tasks.look", self.look.is_zero()),
            ("tasks.attempts", self.attempts == 0),
            ("tasks.ttl", self.ttl.is_zero()),
            ("tasks.poll_interval", self.poll_interval.is_zero()),
            ("tasks.sweep", self.sweep.is_zero()),
        ];
        match nothing.iter().find(|(_, zero)| *zero) {
            Some((limit, _)) => Err(BuildError::Limit { limit }),
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
