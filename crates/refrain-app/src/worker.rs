//! `worker`: an instance that runs tasks and serves no clients.

use crate::config::Config;
use crate::instance::{InstanceFlags, announce};
use crate::servers::Servers;
use crate::{App, AppError, EndpointFlags, signals};
use clap::Args;
use std::process::ExitCode;

pub(crate) fn run<F: Args>(app: &App<F>, flags: &InstanceFlags<F>) -> Result<ExitCode, AppError> {
    let mut config = flags.load()?;
    config.remove_endpoint();
    let work = async |servers: Servers, config: &Config| {
        // Installed before the instance is announced: a reader of that line may send a signal at once.
        let stop = signals::shutdown()?;
        announce(app, config, "running tasks", "");
        servers.main.work(stop).await;
        Ok(())
    };
    flags.run(app, config, &EndpointFlags::default(), work)
}
