//! `keys`: make and rotate the keys that a fleet shares.
//!
//! A rotation without a refused token: `stage` a key, give the file to every instance (SIGHUP makes them read it
//! again), `promote` it, give the file out again, and `retire` the old key once its last token has expired.

use crate::{Failure, secret_file};
use clap::{Args, Subcommand};
use refrain::runtime::SystemSource;
use refrain::runtime::core::KeyState;
use refrain::server::KeyRing;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `keys`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key file with one key in it.
    New {
        /// The file to make. It must not exist.
        file: PathBuf,
    },
    /// List the keys of a file, without their secrets.
    List {
        /// The key file.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add a new key that opens tokens but does not seal any yet.
    Stage {
        /// The key file.
        file: PathBuf,
    },
    /// Let a key seal new tokens; the one that did so far goes on opening old ones.
    Promote {
        /// The key file.
        file: PathBuf,
        /// The key's id, as `keys list` shows it.
        id: String,
    },
    /// Take a key out: tokens under it are refused from then on.
    Retire {
        /// The key file.
        file: PathBuf,
        /// The key's id, as `keys list` shows it.
        id: String,
    },
}

pub(crate) fn run(options: Options) -> Result<ExitCode, Failure> {
    let source = SystemSource::new();
    match options.command {
        Command::New { file } => {
            let ring = KeyRing::generate(&source);
            secret_file::create(&file, ring.to_text().as_bytes()).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::AlreadyExists => {
                        format!("{} exists already; choose another name", file.display())
                    }
                    _ => format!("{} cannot be written: {error}", file.display()),
                }
            })?;
            show(&ring);
        }
        Command::List { file, json } => {
            let ring = read(&file)?;
            if json {
                let keys: Vec<_> = ring
                    .list()
                    .map(|(id, state)| {
                        serde_json::json!({"id": id.to_string(), "state": state.to_string()})
                    })
                    .collect();
                anstream::println!("{}", serde_json::Value::from(keys));
            } else {
                show(&ring);
            }
        }
        Command::Stage { file } => change(&file, |ring| {
            ring.stage(&source);
            Ok(())
        })?,
        Command::Promote { file, id } => change(&file, |ring| Ok(ring.promote(&id)?))?,
        Command::Retire { file, id } => change(&file, |ring| Ok(ring.retire(&id)?))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a key file.
pub(crate) fn read(file: &Path) -> Result<KeyRing, Failure> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("the key file {} cannot be read: {error}", file.display()))?;
    text.parse()
        .map_err(|error| format!("{}: {error}", file.display()).into())
}

fn change(
    file: &Path,
    change: impl FnOnce(&mut KeyRing) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut ring = read(file)?;
    change(&mut ring)?;
    secret_file::replace(file, ring.to_text().as_bytes())
        .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    show(&ring);
    Ok(())
}

fn show(ring: &KeyRing) {
    for (id, state) in ring.list() {
        let note = match state {
            KeyState::Staged => "opens tokens; promote it once every instance has it",
            KeyState::Minting => "seals new tokens",
            KeyState::Retiring => "opens old tokens; retire it when they have expired",
        };
        anstream::println!("{id}  {state:<8}  {note}");
    }
}
