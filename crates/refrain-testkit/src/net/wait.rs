//! Waiting for conditions, with a limit.

use std::future::Future;
use std::time::Duration;

/// The limit of every wait: longer than anything takes on a busy machine, shorter than the default limits of a minute
/// that a server has.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// Interval at which a condition is checked.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// Waits for a future, and panics after [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// Waits until a condition holds, and panics after [`PATIENCE`].
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    })
    .await;
}
