//! `keys`: creates and rotates the keys that a fleet shares.
//!
//! To rotate without rejecting a token: `stage` a key and distribute the file (SIGHUP reloads it), `promote` the key and
//! distribute the file again, then `retire` the old key once its last token has expired.

use crate::error::{program, with_hint};
use crate::{AppError, input_file, secret_file};
use clap::{Args, Subcommand};
use refrain::runtime::SystemSource;
use refrain::runtime::core::{KeyRingError, KeyState};
use refrain::server::KeyRing;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `keys`.
#[derive(Args)]
pub struct KeysOptions {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Subcommand)]
enum KeysCommand {
    /// Create a key file with one key.
    New {
        /// The file to create. It must not exist.
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
    /// Add a key that opens (decrypts) tokens but does not seal (encrypt) new ones yet.
    Stage {
        /// The key file.
        file: PathBuf,
    },
    /// Make a key seal (encrypt) new tokens. The previous key still opens (decrypts) old ones.
    Promote {
        /// The key file.
        file: PathBuf,
        /// The key's id, from `keys list`.
        id: String,
    },
    /// Remove a key. Its tokens are rejected from then on.
    Retire {
        /// The key file.
        file: PathBuf,
        /// The key's id, from `keys list`.
        id: String,
    },
}

pub(crate) fn run(options: KeysOptions) -> Result<ExitCode, AppError> {
    let source = SystemSource::new();
    match options.command {
        KeysCommand::New { file } => {
            let ring = KeyRing::generate(&source);
            secret_file::create(&file, ring.to_text().as_bytes()).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::AlreadyExists => with_hint(
                        format!("file {} already exists", file.display()),
                        format!(
                            "choose another name; if it is a key file, `{} keys stage {}` adds a key",
                            program(),
                            file.display()
                        ),
                    ),
                    _ => unwritable(&file, &error),
                }
            })?;
            print(&ring);
        }
        KeysCommand::List { file, json } => {
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
                print(&ring);
            }
        }
        KeysCommand::Stage { file } => change(&file, |ring| {
            ring.stage(&source);
            Ok(())
        })?,
        KeysCommand::Promote { file, id } => change(&file, |ring| ring.promote(&id))?,
        KeysCommand::Retire { file, id } => change(&file, |ring| ring.retire(&id))?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn read(file: &Path) -> Result<KeyRing, AppError> {
    let text = input_file::read_text(file)
        .map_err(|error| format!("cannot read key file {}: {error}", file.display()))?;
    text.parse()
        .map_err(|error| format!("invalid key file {}: {error}", file.display()).into())
}

pub(crate) fn is_key_file(text: &str) -> bool {
    text.parse::<KeyRing>().is_ok()
}

fn change(
    file: &Path,
    change: impl FnOnce(&mut KeyRing) -> Result<(), KeyRingError>,
) -> Result<(), AppError> {
    let mut ring = read(file)?;
    change(&mut ring).map_err(|error| match error {
        KeyRingError::Unknown(_) => {
            let (program, file) = (program(), file.display());
            with_hint(
                error,
                format!("`{program} keys list {file}` prints the ids"),
            )
        }
        error => error.into(),
    })?;
    secret_file::replace(file, ring.to_text().as_bytes())
        .map_err(|error| unwritable(file, &error))?;
    print(&ring);
    Ok(())
}

fn unwritable(file: &Path, error: &io::Error) -> AppError {
    format!("cannot write key file {}: {error}", file.display()).into()
}

fn print(ring: &KeyRing) {
    for (id, state) in ring.list() {
        let note = match state {
            KeyState::Staged => "opens tokens; promote it when every instance has it",
            KeyState::Minting => "seals new tokens",
            KeyState::Retiring => "opens old tokens; retire it when they have expired",
        };
        anstream::println!("{id}  {state:<8}  {note}");
    }
}
