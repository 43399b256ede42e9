//! `worker`: an instance that works on tasks without a port for clients.

use crate::config::Config;
use crate::instance::{self, Common};
use crate::servers::{Extras, Servers};
use crate::{App, Failure, signals};
use clap::Args;
use std::process::ExitCode;

pub(crate) fn run<F: Args>(app: &App<F>, flags: &Common<F>) -> Result<ExitCode, Failure> {
    let mut loaded = flags.load()?;
    loaded.without_advertise();
    let work = async |servers: Servers, config: &Config| {
        // Before the line on standard error: its reader may send a signal at once.
        let stop = signals::shutdown()?;
        instance::announce(app, config, "working on tasks");
        servers.server.work(stop).await;
        Ok(())
    };
    flags.run(app, loaded, &Extras::default(), work)
}
