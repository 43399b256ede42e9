//! Settings for running and storing tasks.

use crate::builder::BuildError;
use crate::limits::{quarter, settings};
use refrain_store::Quota;
use std::time::Duration;

settings! {
    /// Settings for running and storing tasks. All instances that share a store should use the same settings.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TaskOptions {
        /// Maximum number of tasks that one instance runs at the same time. One owner runs at most half of them, two owners a
        /// third each, and so on. The last quarter is for owners without a running task. With an authenticator, a quarter is
        /// reserved for authenticated owners. Default 64.
        pub concurrent: usize = 64,
        /// The duration of a lease, which is renewed after every third of it. Default 30 seconds.
        pub lease: Duration = Duration::from_secs(30),
        /// How often the store is polled for due tasks and for changes, in addition to its hints. Default 500 milliseconds.
        pub store_poll: Duration = Duration::from_millis(500),
        /// Number of attempts without progress after which a task fails. Default 8.
        pub attempts: u32 = 8,
        /// The wait before the second attempt, doubled for each further one. Default one second.
        pub retry_after: Duration = Duration::from_secs(1),
        /// The longest wait between two attempts. Default 5 minutes.
        pub retry_at_most: Duration = Duration::from_secs(300),
        /// Maximum lifetime of a task, unless its tool sets one. Default 7 days.
        pub ttl: Duration = Duration::from_secs(7 * 24 * 3600),
        /// How often clients should poll a task, unless its tool sets an interval. Default one second.
        pub poll_interval: Duration = Duration::from_secs(1),
        /// Minimum time for which an ended task is kept. Default one hour.
        pub keep: Duration = Duration::from_secs(3600),
        /// How often expired records are deleted. Default one minute.
        pub sweep: Duration = Duration::from_secs(60),
        /// Maximum size of a task's journal, in bytes. Default 4 MiB.
        pub journal: usize = 4 * 1024 * 1024,
        /// Maximum number of tasks of one owner that have not ended. Further calls that need a task get an error. Default 1000.
        pub unfinished_each: usize = 1000,
        /// Maximum size of one owner's data in the store, in bytes: tasks with their arguments, journals, asks, answers and
        /// results; tokens that are too large to send; and records of the replay log. Each task and token is rounded up to
        /// the next KiB. Ended tasks count until they are deleted. More data is rejected, and a task whose journal needs it
        /// fails. Default 64 MiB.
        pub bytes_each: usize = 64 * 1024 * 1024,
        /// Maximum size of the data of all owners, in bytes. The last quarter is for owners that have at most a sixteenth of
        /// `bytes_each`. With an authenticator, anonymous callers use at most three quarters. Default 16 GiB.
        pub bytes: usize = 16 * 1024 * 1024 * 1024,
        /// Maximum number of tasks in one subscription. Default 256.
        pub subscribed: usize = 256,
        /// Maximum number of clients of a draft that wait for a task to end; further ones get HTTP
        /// 503. They do not count as calls in flight. Default 1024.
        pub waiting: usize = 1024,
        /// Maximum number of waiting clients of one caller. Default 128.
        pub waiting_each: usize = 128,
        /// Whether to encrypt journals, arguments, asks, answers and results in the store, and the values of the replay log.
        /// The key ring must keep its keys as long as tasks live. Unencrypted data is rejected, so start with an empty store.
        /// Status messages and keys of asks are not encrypted. Default `false`.
        pub seal: bool = false,
        /// How long after the end of a task its delivery to a webhook is tried. Default three days.
        pub webhook_age: Duration = Duration::from_secs(3 * 24 * 3600),
        /// Maximum number of deliveries in the outbox. The oldest ones over it are dropped. Default 100,000.
        pub webhook_rows: usize = 100_000,
    }
}

impl TaskOptions {
    /// With an authenticator, a quarter of the bytes is reserved for authenticated callers.
    pub(super) fn quota(&self, has_authenticator: bool) -> Quota {
        let reserved = match has_authenticator {
            true => quarter(self.bytes),
            false => 0,
        };
        Quota {
            anonymous_bytes: (self.bytes - reserved) as u64,
            tasks: self.unfinished_each as u64,
            bytes: self.bytes_each as u64,
            total_bytes: self.bytes as u64,
        }
    }

    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let too_small = [
            ("tasks.concurrent", self.concurrent == 0),
            ("tasks.lease", self.lease < Duration::from_millis(3)),
            ("tasks.store_poll", self.store_poll.is_zero()),
            ("tasks.attempts", self.attempts == 0),
            ("tasks.ttl", self.ttl.is_zero()),
            ("tasks.poll_interval", self.poll_interval.is_zero()),
            ("tasks.sweep", self.sweep.is_zero()),
        ];
        match too_small.iter().find(|(_, is_too_small)| *is_too_small) {
            Some((limit, _)) => Err(BuildError::Limit(limit)),
            None => Ok(()),
        }
    }
}
