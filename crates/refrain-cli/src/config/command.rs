//! `refrain config`: a configuration file checked, and the defaults written out.

use super::mistake::{Mistakes, place};
use super::settings::{SETTINGS, Setting};
use super::{Config, Loaded};
use crate::Failure;
use anstyle::{AnsiColor, Style};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const SET: Style = AnsiColor::Green.on_default();
const UNSET: Style = Style::new().dimmed();

#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a configuration file, and print every setting with where it comes from.
    Check {
        /// The TOML file, as `refrain serve --config` takes it.
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
            anstream::print!("{}", defaults());
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
    setting: &'static Setting,
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
        json!({"name": self.setting.name, "value": self.value, "from": from, "line": self.line})
    }
}

/// Everything that `serve` would check, and what it would start with.
fn checked(mut loaded: Loaded) -> Result<Vec<Line>, Mistakes> {
    let lines = SETTINGS
        .iter()
        .map(|setting| {
            let span = loaded.from.get(setting.name).cloned();
            Line {
                setting,
                value: setting.value(&loaded.config),
                line: span.map(|span| place(&loaded.text, span).line),
            }
        })
        .collect();
    loaded.of_any_peer();
    loaded.ready()?;
    Ok(lines)
}

fn print(lines: &[Line]) {
    let values: Vec<String> = lines.iter().map(|line| shown(&line.value)).collect();
    let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or_default();
    let names = width(&mut lines.iter().map(|line| line.setting.name.len()));
    // One very long value does not push all the others to the right.
    let widest = width(&mut values.iter().map(|value| value.chars().count())).min(32);
    for (line, value) in lines.iter().zip(values) {
        let name = line.setting.name;
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

/// Has a table settings that have a value by default? One without says something by being there.
fn has_defaults(table: &str) -> bool {
    let mut settings = SETTINGS.iter();
    settings.any(|setting| setting.path().0 == Some(table) && setting.example.is_none())
}

/// A file with every setting at its default.
pub(super) fn defaults() -> String {
    let config = Config::default();
    let mut out = String::new();
    let mut last = None;
    for setting in SETTINGS {
        let (table, key) = setting.path();
        if let Some(table) = table
            && last.replace(table) != Some(table)
        {
            let off = if has_defaults(table) { "" } else { "# " };
            out.push_str(&format!("\n{off}[{table}]\n"));
        }
        let line = match setting.example {
            Some(example) => format!("# {key} = {example}"),
            None => format!("{key} = {}", shown(&setting.value(&config))),
        };
        let meaning = setting.meaning;
        out.push_str(&format!("{line:<37} # {meaning}\n"));
    }
    out
}
