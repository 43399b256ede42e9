//! Parsing of large messages without delaying other tasks.

use refrain_http::run_blocking;
use tokio::sync::Semaphore;

/// The size of a large message, in bytes. Parsing a deeply nested one takes a few milliseconds.
const LARGE: usize = 32 * 1024;

/// The permit to parse a large message. There is one in the process: however many large responses arrive, parsing them uses
/// at most one core.
static PARSING: Semaphore = Semaphore::const_new(1);

/// Runs `parse` on a message of this many bytes. A large message waits for the permit, and is parsed on a blocking thread.
pub(crate) async fn parse<T: Send + 'static>(
    bytes: usize,
    parse: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes < LARGE {
        return parse();
    }
    run_blocking(PARSING.acquire(), parse).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn only_large_message_is_parsed_on_another_thread() {
        let here = thread::current().id();
        let parsed_on = async |bytes| parse(bytes, || thread::current().id()).await;
        assert_eq!(parsed_on(LARGE - 1).await, here);
        assert_ne!(parsed_on(LARGE).await, here);
    }

    #[tokio::test]
    async fn large_messages_are_parsed_one_at_a_time() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let overlaps = || {
            let running = RUNNING.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2));
            RUNNING.fetch_sub(1, Ordering::SeqCst);
            running > 0
        };
        let parsing: JoinSet<bool> = (0..8).map(|_| parse(LARGE, overlaps)).collect();
        assert_eq!(parsing.join_all().await, [false; 8]);
    }
}
