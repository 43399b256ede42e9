//! Parses a configuration file into a [`Config`], over the defaults of `defaults.toml`.
//!
//! serde stops at the first error. To report all of them, the invalid setting is removed and the rest is read again.

use super::errors::ConfigError;
use super::value::Size;
use super::{Config, UncheckedConfig};
use crate::store::masked;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

/// All settings with their defaults. Settings without a default are commented out.
pub(super) const DEFAULTS: &str = include_str!("defaults.toml");

/// The setting whose default depends on another.
const SHED_ABOVE: &str = "limits.shed_above";

/// The minimum similarity of a suggested name.
const MIN_SIMILARITY: f64 = 0.8;

/// The positions of settings and tables in a file, by name.
pub(super) type Spans = BTreeMap<String, Range<usize>>;

impl Default for Config {
    fn default() -> Self {
        static CONFIG: LazyLock<Config> =
            LazyLock::new(|| read(defaults().clone()).expect("a test reads defaults.toml"));
        CONFIG.clone()
    }
}

fn defaults() -> &'static DeTable<'static> {
    static TABLE: LazyLock<DeTable<'static>> = LazyLock::new(|| {
        let table = DeTable::parse(DEFAULTS).expect("a test reads defaults.toml");
        table.into_inner()
    });
    &TABLE
}

fn read(table: DeTable<'_>) -> Result<Config, Error> {
    Config::deserialize(Deserializer::from(Spanned::new(0..0, table)))
}

impl UncheckedConfig {
    pub(super) fn parse(file: &Path, text: &str) -> Self {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut table = table.into_inner();
        let mut parsed = Self {
            file: file.to_owned(),
            text: text.to_owned(),
            // The values in malformed TOML are guesses: only the syntax errors are reported.
            errors: errors
                .iter()
                .map(|error| syntax_error(text, error))
                .collect(),
            ..Self::default()
        };
        if !errors.is_empty() {
            return parsed;
        }
        collect_spans(None, &table, &mut parsed.spans);
        parsed.config = loop {
            let mut whole = table.clone();
            fill(&mut whole, defaults());
            let error = match read(whole) {
                Ok(config) => break config,
                Err(error) => error,
            };
            let span = error.span().unwrap_or_default();
            let Some(entry) = take_entry(None, &mut table, &span) else {
                parsed.errors.push(syntax_error(text, &error));
                return parsed;
            };
            parsed.spans.remove(&entry.name);
            parsed.errors.push(ConfigError {
                span: Some(span),
                message: entry.message(error.message()),
            });
            if !entry.is_unknown {
                parsed.invalid.push(entry.name);
            }
        };
        if !parsed.spans.contains_key(SHED_ABOVE) {
            let limits = &mut parsed.config.limits;
            let calls = limits.concurrent_calls.size() as u64;
            limits.shed_above = Size::new(calls - calls / 4);
        }
        parsed
    }
}

fn syntax_error(text: &str, error: &Error) -> ConfigError {
    let span = error.span();
    // The parser reports an empty value as a string without quotes.
    let is_empty = span.as_ref().is_some_and(|span| {
        let (before, after) = text.split_at_checked(span.start).unwrap_or_default();
        let rest = after.lines().next().unwrap_or_default().trim_start();
        before.trim_end_matches([' ', '\t']).ends_with('=')
            && (rest.is_empty() || rest.starts_with('#'))
    });
    let message = match is_empty {
        true => "missing value",
        false => error.message(),
    };
    ConfigError {
        span,
        message: message.to_owned(),
    }
}

/// Adds the defaults of settings that are missing in a table.
fn fill<'a>(table: &mut DeTable<'a>, defaults: &DeTable<'a>) {
    for (key, default) in defaults {
        match (table.get_mut(key).map(Spanned::get_mut), default.get_ref()) {
            (Some(DeValue::Table(table)), DeValue::Table(defaults)) => fill(table, defaults),
            (Some(_), _) => {}
            (None, _) => drop(table.insert(key.clone(), default.clone())),
        }
    }
}

fn collect_spans(table: Option<&str>, entries: &DeTable<'_>, spans: &mut Spans) {
    for (key, value) in entries {
        let name = join(table, key.get_ref());
        match value.get_ref() {
            DeValue::Table(entries) if NAMES.is_table(&name) => {
                collect_spans(Some(&name), entries, spans);
                spans.insert(name, key.span());
            }
            _ => drop(spans.insert(name, value.span())),
        }
    }
}

struct ConfigEntry {
    name: String,
    table: Option<String>,
    key: String,
    is_unknown: bool,
    is_table: bool,
}

impl ConfigEntry {
    fn message(&self, error: &str) -> String {
        let Self { name, .. } = self;
        let types = error.strip_prefix("invalid type: ");
        match types.and_then(|types| types.split_once(", expected ")) {
            _ if self.is_unknown => self.unknown(),
            // The value may contain a password.
            Some((found, expected)) => masked(&format!("{name} must be {expected}, not {found}")),
            None => format!("{name} {error}"),
        }
    }

    /// The message about an unknown setting, with a suggestion if there is one.
    fn unknown(&self) -> String {
        let (table, key) = (self.table.as_deref(), self.key.as_str());
        let section = table.map_or_else(String::new, |table| format!(" in [{table}]"));
        let message = format!("unknown setting {key:?}{section}");
        let all = || NAMES.settings.iter().chain(&NAMES.tables).map(|n| split(n));
        let elsewhere = || all().filter(|(other, name)| *name == key && *other != table);
        let is_subtable = |other: &str| table == split(other).0;
        let inside = elsewhere().find(|(other, _)| other.is_some_and(is_subtable));
        if let Some((other, _)) = inside.or_else(|| elsewhere().next()) {
            let other = other.map_or("the top of the file".into(), |other| format!("[{other}]"));
            return format!("{message}; move it to {other}");
        }
        let kind = match self.is_table {
            true => &NAMES.tables,
            false => &NAMES.settings,
        };
        let here = kind
            .iter()
            .map(|name| split(name))
            .filter(|(t, _)| *t == table);
        let similar = here.map(|(_, name)| (strsim::jaro_winkler(name, key), name));
        match similar.max_by(|(a, _), (b, _)| a.total_cmp(b)) {
            Some((similarity, name)) if similarity >= MIN_SIMILARITY => {
                format!("{message}; did you mean {name:?}?")
            }
            _ => message,
        }
    }
}

/// Removes the entry whose key is at a position, or whose value contains it.
fn take_entry(
    table: Option<&str>,
    entries: &mut DeTable<'_>,
    at: &Range<usize>,
) -> Option<ConfigEntry> {
    let mut found = None;
    for (key, value) in entries.iter_mut() {
        let name = join(table, key.get_ref());
        let (is_unknown, span) = (key.span() == *at, value.span());
        let is_table = matches!(value.get_ref(), DeValue::Table(_));
        if let DeValue::Table(entries) = value.get_mut()
            && NAMES.is_table(&name)
            && let Some(entry) = take_entry(Some(&name), entries, at)
        {
            return Some(entry);
        }
        if is_unknown || (span.start <= at.start && at.end <= span.end) {
            found = Some(ConfigEntry {
                name,
                table: table.map(str::to_owned),
                key: key.get_ref().to_string(),
                is_unknown,
                is_table,
            });
            break;
        }
    }
    entries.remove(found.as_ref()?.key.as_str());
    found
}

/// The names of all settings, with their tables, in the order of `defaults.toml`.
pub(super) struct SettingNames {
    pub(super) settings: Vec<String>,
    tables: Vec<String>,
}

pub(super) static NAMES: LazyLock<SettingNames> = LazyLock::new(|| {
    let (mut settings, mut tables) = (Vec::new(), Vec::<String>::new());
    for line in DEFAULTS.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        if let Some((table, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            tables.push(table.to_owned());
        } else if let Some((key, _)) = line.split_once(" = ") {
            settings.push(join(tables.last().map(String::as_str), key));
        }
    }
    SettingNames { settings, tables }
});

impl SettingNames {
    fn is_table(&self, name: &str) -> bool {
        self.tables.iter().any(|table| table == name)
    }
}

fn join(table: Option<&str>, key: &str) -> String {
    match table {
        Some(table) => format!("{table}.{key}"),
        None => key.to_owned(),
    }
}

/// The table and the key of a setting's name.
fn split(name: &str) -> (Option<&str>, &str) {
    match name.rsplit_once('.') {
        Some((table, key)) => (Some(table), key),
        None => (None, name),
    }
}
