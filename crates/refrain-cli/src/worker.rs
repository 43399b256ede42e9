//! `refrain worker`: an instance that only works on tasks, and has no port for callers.

use crate::Failure;
use crate::config::Config;
use crate::instance::{self, Common, Servers, told_to_stop};
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, Failure> {
    let mut loaded = options.common.load()?;
    loaded.without_peers();
    options.common.run(
        loaded,
        None,
        &[],
        async |servers: Servers, config: &Config| {
            // Before the line that says it works: whoever read that may send a signal.
            let stop = told_to_stop()?;
            instance::say(config, "working on tasks");
            servers.server.work(stop).await;
            Ok(())
        },
    )
}
