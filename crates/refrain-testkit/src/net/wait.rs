//! Waiting with a limit, and tasks that run until they are stopped.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::fmt::Debug;
use std::io;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The limit of every wait: long enough for a busy machine, and shorter than the default limits of a server.
pub const PATIENCE: Duration = Duration::from_secs(50);

const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Waits for a future, and panics after [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// Waits for an operation that must succeed, and panics after [`PATIENCE`].
pub async fn success<T, E: Debug>(what: &str, future: impl Future<Output = Result<T, E>>) -> T {
    let result = within(what, future).await;
    result.unwrap_or_else(|error| panic!("{what} failed: {error:?}"))
}

/// Waits until a condition holds, and panics after [`PATIENCE`].
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    })
    .await;
}

/// A task that serves until it is stopped or dropped.
pub(super) struct Serving {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<io::Result<()>>,
}

impl Serving {
    /// Starts a task with the future that tells it to stop.
    pub(super) fn start<F>(serve: impl FnOnce(BoxFuture<'static, ()>) -> F) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        Self {
            stop: Some(stop),
            task: tokio::spawn(serve(stopped.map(drop).boxed())),
        }
    }

    pub(super) fn stop(&mut self) {
        self.stop = None;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for the end.
    pub(super) async fn ended(&mut self) {
        let ended = success("the server to end", &mut self.task).await;
        ended.expect("no I/O error");
    }
}
