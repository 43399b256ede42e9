//! `worker`: an instance that runs tasks and serves no clients.

use crate::config::{Config, Settings};
use crate::instance::{InstanceFlags, announce};
use crate::servers::Servers;
use crate::signals::Shutdown;
use crate::store::StoreUrl;
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
    // In a memory store, a worker would never find a task.
    StoreUrl::or_environment(config.store())?
        .unwrap_or_else(|| app.default_store.clone())
        .check_shared()?;
    config.remove_endpoint();
    let work = async |servers: Servers, config: &Config, stop: Shutdown| {
        announce(app.name, config, "running tasks", "");
        servers.main.work(stop).await;
        Ok(())
    };
    flags.run(app, config, &EndpointFlags::default(), work)
}
