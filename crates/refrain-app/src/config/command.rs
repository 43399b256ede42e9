//! `config`: checks a configuration file, prints the defaults.

use super::Loaded;
use super::file::{DEFAULTS, NAMES};
use super::mistake::{Mistakes, place};

use crate::Failure;
use anstyle::{AnsiColor, Style};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const SET: Style = AnsiColor::Green.on_default();
const UNSET: Style = Style::new().dimmed();

/// Arguments of `config`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a configuration file, and print every setting with where it comes from.
    Check {
        /// The TOML file, as `serve --config` takes it.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a configuration file with every setting at its default.
    Defaults,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, Failure> {
    match &options.command {
        Command::Check { file, json } => check(file, *json),
        Command::Defaults => {
            anstream::print!("{DEFAULTS}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(file: &Path, json: bool) -> Result<ExitCode, Failure> {
    match checked(Loaded::read(file)?) {
        Ok(lines) => {
            if json {
                let settings: Vec<Value> = lines.iter().map(Line::to_json).collect();
                let all =
                    json!({"file": file, "usable": true, "settings": settings, "mistakes": []});
                anstream::println!("{all}");
            } else {
                print(&lines);
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(mistakes) => {
            if json {
                let mistakes: Vec<Value> = mistakes
                    .each()
                    .map(|(place, message)| {
                        let line = place.as_ref().map(|place| place.line);
                        let column = place.as_ref().map(|place| place.column);
                        json!({"line": line, "column": column, "message": message})
                    })
                    .collect();
                let all = json!({"file": file, "usable": false, "mistakes": mistakes});
                anstream::println!("{all}");
            } else {
                anstream::eprintln!("{mistakes}");
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

/// One setting, as it is shown.
struct Line {
    name: &'static str,
    value: Value,
    /// The line of the file that sets it.
    line: Option<usize>,
}

impl Line {
    fn to_json(&self) -> Value {
        let from = if self.line.is_some() {
            "file"
        } else {
            "default"
        };
        json!({"name": self.name, "value": self.value, "from": from, "line": self.line})
    }
}

/// Checks everything that `serve` would check. Returns the settings it would start with.
fn checked(loaded: Loaded) -> Result<Vec<Line>, Mistakes> {
    let config = json!(loaded.config);
    let lines = NAMES.settings.iter().map(|name| {
        let path = format!("/{}", name.replace('.', "/"));
        let span = loaded.spans.get(name).cloned();
        Line {
            name,
            value: config.pointer(&path).cloned().unwrap_or_default(),
            line: span.map(|span| place(&loaded.text, span).line),
        }
    });
    let lines = lines.collect();
    loaded.ready()?;
    Ok(lines)
}

fn print(lines: &[Line]) {
    let values: Vec<String> = lines.iter().map(|line| shown(&line.value)).collect();
    let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or_default();
    let names = width(&mut lines.iter().map(|line| line.name.len()));
    // One very long value does not push all the others to the right.
    let widest = width(&mut values.iter().map(|value| value.chars().count())).min(32);
    for (line, value) in lines.iter().zip(values) {
        let name = line.name;
        match line.line {
            Some(number) => {
                anstream::println!("{SET}{name:<names$}  {value:<widest$}  line {number}{SET:#}");
            }
            None => anstream::println!("{name:<names$}  {value:<widest$}  {UNSET}default{UNSET:#}"),
        }
    }
}

/// A value as it is written in a file.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "not set".into(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(shown).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries = entries.iter();
            let entries = entries.map(|(name, value)| format!("{name:?} = {}", shown(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        // The quotes and escapes of JSON are those of TOML.
        value => value.to_string(),
    }
}
