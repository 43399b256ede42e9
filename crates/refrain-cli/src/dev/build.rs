//! One build with cargo, whose messages are printed.

use super::sources::read_dep_info;
use crate::AppError;
use crate::process_group::ProcessGroup;
use anstream::{AutoStream, ColorChoice};
use refrain_app::with_hint;
use serde::Deserialize;
use std::io::stderr;
use std::path::PathBuf;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

pub(super) struct Build {
    arguments: Vec<String>,
}

pub(super) enum BuildOutcome {
    Built(Program),
    /// The compiler's errors were printed.
    Failed,
}

/// A built program.
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// Whether the build had nothing to do.
    pub(super) is_fresh: bool,
}

impl Program {
    /// The source files of the program and of its path dependencies, without generated files.
    pub(super) fn sources(&self) -> Vec<PathBuf> {
        // The program is target/debug/NAME.
        let target = self.path.ancestors().nth(2);
        let mut files = read_dep_info(&self.path.with_extension("d"));
        files.retain(|file| !target.is_some_and(|target| file.starts_with(target)));
        files
    }
}

/// A message of cargo about one target.
#[derive(Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
    #[serde(default)]
    fresh: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Build {
    pub(super) fn new(package: Option<&str>, bin: Option<&str>) -> Self {
        let words = ["build", "--message-format", "json-render-diagnostics"];
        let package = package.map(|name| ["--package", name]);
        let bin = match bin {
            Some(name) => vec!["--bin", name],
            None => vec!["--bins"],
        };
        let words = words.into_iter().chain(package.into_iter().flatten());
        Self {
            arguments: words.chain(bin).map(str::to_owned).collect(),
        }
    }

    pub(super) async fn run(&self) -> Result<BuildOutcome, AppError> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        command.args(&self.arguments);
        if AutoStream::choice(&stderr()) != ColorChoice::Never {
            command.env("CARGO_TERM_COLOR", "always");
        }
        let mut cargo = ProcessGroup::start(&mut command).map_err(|error| {
            with_hint(
                format!("cannot start cargo: {error}"),
                "install Rust, or set $CARGO",
            )
        })?;
        let mut programs = Vec::new();
        if let Some(stdout) = cargo.child.stdout.take() {
            let mut lines = BufReader::new(stdout).lines();
            while let Some(line) = lines.next_line().await? {
                programs.extend(program(&line));
            }
        }
        if !cargo.wait().await?.success() {
            return Ok(BuildOutcome::Failed);
        }
        let names: Vec<&str> = programs.iter().map(|(name, _)| name.as_str()).collect();
        match names[..] {
            [_] => {}
            [] => {
                let hint = "add src/main.rs, or choose a package with --package NAME";
                return Err(with_hint("the package has no binary target", hint));
            }
            _ => {
                let message = format!(
                    "the package has several binary targets: {}",
                    names.join(", ")
                );
                return Err(with_hint(message, "choose one with --bin NAME"));
            }
        }
        let program = programs.pop().map(|(_, program)| program);
        Ok(program.map_or(BuildOutcome::Failed, BuildOutcome::Built))
    }
}

/// The program that a line of cargo's output reports, with its name.
fn program(line: &str) -> Option<(String, Program)> {
    // Other messages of cargo have other members.
    let artifact: Artifact = serde_json::from_str(line).ok()?;
    if !artifact.target.kind.iter().any(|kind| kind == "bin") {
        return None;
    }
    let program = Program {
        path: artifact.executable?,
        is_fresh: artifact.fresh,
    };
    Some((artifact.target.name, program))
}
