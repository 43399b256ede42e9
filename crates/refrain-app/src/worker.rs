//! `worker`: an instance that runs tasks and serves no clients.

use crate::config::{Config, LogFormat, Settings};
use crate::instance::InstanceFlags;
use crate::servers::Servers;
use crate::signals::Shutdown;
use crate::store::{SHARED_HINT, StoreUrl};
use crate::{App, AppError, EndpointFlags};
use clap::Args;
use serde::de::DeserializeOwned;
use std::process::ExitCode;

pub(crate) fn run<F: Args, C: DeserializeOwned>(
    app: &App<F, C>,
    settings: &Settings,
    flags: &InstanceFlags<F>,
) -> Result<ExitCode, AppError> {
    let mut config = flags.load(settings)?;
    let store = StoreUrl::or_environment(config.store())?;
    let store = store.unwrap_or_else(|| app.default_store.clone());
    // In a memory store, a worker would never find a task.
    store.check_shared()?;
    let is_new = store.is_new();
    config.remove_endpoint();
    let work = async |servers: Servers, config: &Config, stop: Shutdown| {
        // `$RUST_LOG` filters only the JSON form.
        match config.log {
            LogFormat::Text => anstream::eprintln!("{}: running tasks of {store}", app.name),
            LogFormat::Json => tracing::info!(%store, "running tasks"),
        }
        if is_new {
            // A worker may start before the first server, but the path may also be wrong.
            tracing::warn!(%store, hint = SHARED_HINT, "store created, no server uses it yet");
        }
        servers.main.work(stop).await;
        Ok(())
    };
    flags.run(app, config, &EndpointFlags::default(), work)
}
