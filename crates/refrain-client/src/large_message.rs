//! Parsing of large messages without delaying other tasks.

use std::future::pending;
use std::panic::resume_unwind;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet, spawn_blocking};

/// The size of a large message, in bytes. Parsing a deeply nested one takes a few milliseconds.
const LARGE: usize = 32 * 1024;

/// The permit to parse a large message. There is one in the process: however many large responses arrive, parsing them uses
/// at most one core.
static PARSING: Semaphore = Semaphore::const_new(1);

/// Runs `parse` on a message of this many bytes. A large message waits for the permit, and is parsed on a blocking thread.
///
/// A separate task waits for the permit. The permit would otherwise be assigned to a caller that is not polled, and no other
/// message could be parsed.
pub(crate) async fn parse<T: Send + 'static>(
    bytes: usize,
    parse: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes < LARGE {
        return parse();
    }
    // Aborts the task if the caller is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let permit = PARSING.acquire().await;
        let parsing = spawn_blocking(move || {
            let parsed = parse();
            drop(permit);
            parsed
        });
        parsing.await
    });
    let parsed = tasks.join_next().await.and_then(Result::ok);
    match parsed.map(|parsed| parsed.map_err(JoinError::try_into_panic)) {
        Some(Ok(parsed)) => parsed,
        Some(Err(Ok(panic))) => resume_unwind(panic),
        // The runtime is shutting down, so this task ends too.
        _ => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

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

    #[tokio::test]
    async fn caller_that_is_not_polled_does_not_block_others() {
        let held = PARSING.acquire().await;
        let mut idle = pin!(parse(LARGE, || ()));
        assert!(poll!(&mut idle).is_pending());
        let other = tokio::spawn(parse(LARGE, || 7));
        // Both wait for the permit.
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(other.await.expect("it does not panic"), 7);
        idle.await;
    }

    #[tokio::test]
    async fn panic_reaches_the_caller_and_frees_the_permit() {
        let parsing = tokio::spawn(parse(LARGE, || -> usize { panic!("in the parser") }));
        assert!(parsing.await.expect_err("it panics").is_panic());
        assert_eq!(parse(LARGE, || 7).await, 7);
    }
}
