//! Work on a blocking thread that waits for a permit first.

use std::future::{Future, pending};
use std::panic::resume_unwind;
use tokio::task::{JoinError, JoinSet, spawn_blocking};

/// Waits for a permit, and runs `work` with it on a blocking thread. The permit is held until the work is done, even if the
/// caller is dropped. A caller that is dropped before the permit is granted cancels the work. A panic reaches the caller.
///
/// A separate task waits for the permit. The permit would otherwise be assigned to a caller that is not polled, and no other
/// work could start.
pub async fn run_blocking<P: Send + 'static, T: Send + 'static>(
    permit: impl Future<Output = P> + Send + 'static,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    // Aborts the task if the caller is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let permit = permit.await;
        let working = spawn_blocking(move || {
            let done = work();
            drop(permit);
            done
        });
        working.await
    });
    let done = tasks.join_next().await.and_then(Result::ok);
    match done.map(|done| done.map_err(JoinError::try_into_panic)) {
        Some(Ok(done)) => done,
        Some(Err(Ok(panic))) => resume_unwind(panic),
        // The runtime is shutting down, so this task ends too.
        _ => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    async fn run<T: Send + 'static>(
        permits: Arc<Semaphore>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        run_blocking(permits.acquire_owned(), work).await
    }

    #[tokio::test]
    async fn caller_that_is_not_polled_does_not_block_others() {
        let permits = Arc::new(Semaphore::new(1));
        let held = permits.acquire().await;
        let mut idle = pin!(run(permits.clone(), || ()));
        tokio::select! {
            biased;
            () = &mut idle => panic!("there is no permit"),
            () = tokio::task::yield_now() => {}
        }
        let other = tokio::spawn(run(permits.clone(), || 7));
        // Both wait for the permit.
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(other.await.expect("it does not panic"), 7);
        idle.await;
    }

    #[tokio::test]
    async fn panic_reaches_the_caller_and_frees_the_permit() {
        let permits = Arc::new(Semaphore::new(1));
        let working = tokio::spawn(run(permits.clone(), || -> usize { panic!("in the work") }));
        assert!(working.await.expect_err("it panics").is_panic());
        assert_eq!(run(permits, || 7).await, 7);
    }
}
