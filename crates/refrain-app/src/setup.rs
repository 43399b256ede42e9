//! A server with start and stop hooks.

use crate::AppError;
use refrain::server::{Server, ServerBuilder};
use std::pin::Pin;

/// A server, with hooks that run when it starts and stops.
///
/// ```no_run
/// use refrain::prelude::*;
/// use refrain_app::{App, NoFlags, NoSettings, Setup};
/// use std::sync::Arc;
///
/// # struct Pool;
/// # impl Pool {
/// #     async fn connect() -> std::io::Result<Self> { Ok(Self) }
/// #     async fn refresh(&self, server: Server) {}
/// #     async fn close(&self) {}
/// # }
/// fn main() -> std::process::ExitCode {
///     let app = App::configured("pooled", "", async |_: &NoFlags, _: NoSettings| {
///         let pool = Arc::new(Pool::connect().await?);
///         let refreshed = pool.clone();
///         Ok(Setup::new(Server::builder("pooled", "1.0"))
///             .on_start(move |server| {
///                 tokio::spawn(async move { refreshed.refresh(server).await });
///             })
///             .on_stop(async move { pool.close().await }))
///     });
///     app.main()
/// }
/// ```
pub struct Setup {
    pub(crate) builder: ServerBuilder,
    pub(crate) on_start: Box<dyn FnOnce(Server)>,
    pub(crate) on_stop: Pin<Box<dyn Future<Output = ()>>>,
}

impl Setup {
    /// A server without hooks.
    pub fn new(builder: ServerBuilder) -> Self {
        Self {
            builder,
            on_start: Box::new(drop),
            on_stop: Box::pin(std::future::ready(())),
        }
    }

    /// Calls `start` inside the runtime with the built server, before it serves clients or runs tasks. It may spawn
    /// background work.
    pub fn on_start(mut self, start: impl FnOnce(Server) + 'static) -> Self {
        self.on_start = Box::new(start);
        self
    }

    /// Awaits `stop` after the server has drained, or has failed, for at most 10 seconds.
    pub fn on_stop(mut self, stop: impl Future<Output = ()> + 'static) -> Self {
        self.on_stop = Box::pin(stop);
        self
    }
}

impl From<ServerBuilder> for Setup {
    fn from(builder: ServerBuilder) -> Self {
        Self::new(builder)
    }
}

/// Builds the setup of a program from its flags and its own settings.
pub(crate) trait BuildSetup<F, C> {
    fn build<'a>(
        &'a self,
        flags: &'a F,
        config: C,
    ) -> Pin<Box<dyn Future<Output = Result<Setup, AppError>> + 'a>>
    where
        C: 'a;
}

impl<F, C, B> BuildSetup<F, C> for B
where
    B: AsyncFn(&F, C) -> Result<Setup, AppError>,
{
    fn build<'a>(
        &'a self,
        flags: &'a F,
        config: C,
    ) -> Pin<Box<dyn Future<Output = Result<Setup, AppError>> + 'a>>
    where
        C: 'a,
    {
        Box::pin(self(flags, config))
    }
}
