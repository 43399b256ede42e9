//! `config`: checks a configuration file, prints the defaults.

use super::UncheckedConfig;
use super::errors::{ConfigError, ConfigErrors, position};
use super::file::Spans;
use super::settings::{DEFAULTS, EntryPath, Settings, is_placeholder, split};
use crate::servers::missing_keys;
use crate::{AppError, KEYS, print_error};
use anstyle::{AnsiColor, Style};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const SET: Style = AnsiColor::Green.on_default();
const UNSET: Style = Style::new().dimmed();

/// Arguments of `config`.
#[derive(Args)]
pub struct ConfigOptions {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a configuration file, and print every setting and whether it is from the file or a default.
    Check {
        /// The TOML file, as for `serve --config`.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a configuration file with every setting at its default.
    Defaults,
}

/// Checks the program's own settings: returns the name of each invalid one, and the error.
pub(crate) type CheckOwn<C> = dyn Fn(&C) -> Vec<(String, String)>;

pub(crate) fn run<C: Serialize + DeserializeOwned>(
    settings: &Settings,
    options: &ConfigOptions,
    check_own: &CheckOwn<C>,
) -> Result<ExitCode, AppError> {
    match &options.command {
        ConfigCommand::Check { file, json } => check(settings, file, *json, check_own),
        ConfigCommand::Defaults => {
            anstream::print!("{DEFAULTS}");
            if !settings.own_text.is_empty() {
                anstream::print!("\n{}", settings.own_text);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check<C: Serialize + DeserializeOwned>(
    settings: &Settings,
    file: &Path,
    json: bool,
    check_own: &CheckOwn<C>,
) -> Result<ExitCode, AppError> {
    let unchecked = UncheckedConfig::<C>::read(settings, file)?;
    match check_settings(settings, unchecked, check_own) {
        Ok((rows, missing_keys)) => {
            if json {
                let settings: Vec<Value> = rows.iter().map(SettingRow::to_json).collect();
                let all =
                    json!({"file": file, "usable": true, "settings": settings, "mistakes": []});
                anstream::println!("{all}");
            } else {
                print(&rows);
            }
            // The keys may come from a flag or from the environment of the instance.
            if let Some(message) = missing_keys.filter(|_| std::env::var_os(KEYS).is_none()) {
                anstream::eprintln!(
                    "note: {message}: set `keys`, or start the instance with --keys FILE or ${KEYS}"
                );
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(errors) => {
            if json {
                let mistakes: Vec<Value> = errors
                    .iter()
                    .map(|(position, message)| {
                        let line = position.as_ref().map(|position| position.line);
                        let column = position.as_ref().map(|position| position.column);
                        json!({"line": line, "column": column, "message": message})
                    })
                    .collect();
                let all = json!({"file": file, "usable": false, "mistakes": mistakes});
                anstream::println!("{all}");
            } else {
                print_error(&errors.to_string());
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

struct SettingRow {
    name: String,
    value: Value,
    /// The line of the file; `None` for a default.
    line: Option<usize>,
}

impl SettingRow {
    fn to_json(&self) -> Value {
        let from = if self.line.is_some() {
            "file"
        } else {
            "default"
        };
        json!({"name": self.name, "value": self.value, "from": from, "line": self.line})
    }
}

/// Checks everything that `serve` checks, and returns the settings it would use. Also returns which setting needs keys that
/// the file does not have.
fn check_settings<C: Serialize>(
    settings: &Settings,
    unchecked: UncheckedConfig<C>,
    check_own: &CheckOwn<C>,
) -> Result<(Vec<SettingRow>, Option<&'static str>), ConfigErrors> {
    let mut config = json!(unchecked.config);
    if let (Some(all), Value::Object(own)) = (config.as_object_mut(), json!(unchecked.own)) {
        all.extend(own);
    }
    let line = |name: &str| {
        let span = unchecked.spans.get(name).cloned();
        span.map(|span| position(&unchecked.text, span).line)
    };
    let mut rows = Vec::new();
    add_rows(settings, None, &config, &line, &mut rows);
    let (file, text) = (unchecked.file.clone(), unchecked.text.clone());
    let (spans, has_settings) = (unchecked.spans.clone(), unchecked.has_settings);
    let (checked, own) = unchecked.check()?;
    let errors = check_own(&own).into_iter().map(|(setting, message)| {
        let span = find_span(&spans, &setting);
        ConfigError { span, message }
    });
    let errors: Vec<_> = errors.collect();
    match errors.is_empty() {
        true => Ok((rows, missing_keys(&checked))),
        false => Err(ConfigErrors::new(file, text, errors, has_settings)),
    }
}

/// The position of a setting, or else of the innermost table around it that the file has.
fn find_span(spans: &Spans, mut setting: &str) -> Option<Range<usize>> {
    loop {
        if let Some(span) = spans.get(setting) {
            return Some(span.clone());
        }
        setting = setting.rsplit_once('.')?.0;
    }
}

/// Adds a row for each setting in a table.
fn add_rows(
    settings: &Settings,
    table: Option<&EntryPath>,
    values: &Value,
    line: &dyn Fn(&str) -> Option<usize>,
    rows: &mut Vec<SettingRow>,
) {
    let names = &settings.names;
    for pattern in names.children(table) {
        let keys = match values.as_object() {
            Some(values) if is_placeholder(pattern) => values.keys().map(String::as_str).collect(),
            None if is_placeholder(pattern) => Vec::new(),
            _ => vec![split(pattern).1],
        };
        for key in keys {
            let path = names.path(table, key);
            let value = &values[key];
            if names.is_table(pattern) {
                add_rows(settings, Some(&path), value, line, rows);
            } else {
                rows.push(SettingRow {
                    line: line(&path.name),
                    value: value.clone(),
                    name: path.name,
                });
            }
        }
    }
}

fn print(rows: &[SettingRow]) {
    let values: Vec<String> = rows.iter().map(|row| to_toml(&row.value)).collect();
    let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or_default();
    let names = width(&mut rows.iter().map(|row| row.name.len()));
    // A very long value must not push all the others to the right.
    let widest = width(&mut values.iter().map(|value| value.chars().count())).min(32);
    for (row, value) in rows.iter().zip(values) {
        let name = &row.name;
        match row.line {
            Some(number) => {
                anstream::println!("{SET}{name:<names$}  {value:<widest$}  line {number}{SET:#}");
            }
            None => anstream::println!("{name:<names$}  {value:<widest$}  {UNSET}default{UNSET:#}"),
        }
    }
}

fn to_toml(value: &Value) -> String {
    match value {
        Value::Null => "not set".into(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(to_toml).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries = entries.iter();
            let entries = entries.map(|(name, value)| format!("{name:?} = {}", to_toml(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        // The quotes and escapes of JSON are those of TOML.
        value => value.to_string(),
    }
}
