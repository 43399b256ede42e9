//! `completions` and `man`: files for shells and manual readers, generated from the command line.

use crate::AppError;
use clap::{Args, Command};
use clap_complete::Shell;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `completions`.
#[derive(Args, Clone, Copy)]
pub struct CompletionsOptions {
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Args)]
pub struct ManOptions {
    /// The directory to write to. It is created if it does not exist.
    directory: PathBuf,
}

pub(crate) fn print_completions(
    mut command: Command,
    options: CompletionsOptions,
) -> Result<ExitCode, AppError> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, name, &mut script);
    let written = io::stdout().write_all(&script);
    written.map_err(|error| format!("cannot write to standard output: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn write_manual(command: Command, options: &ManOptions) -> Result<ExitCode, AppError> {
    let directory = &options.directory;
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .map_err(|error| format!("cannot write to {}: {error}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
