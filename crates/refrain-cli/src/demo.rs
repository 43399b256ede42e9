//! `refrain demo`.
use crate::Failure;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {}

pub(crate) fn run(_: Options) -> Result<ExitCode, Failure> {
    Err("not here yet".into())
}
