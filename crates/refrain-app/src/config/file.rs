//! Parses a configuration file over the defaults.
//!
//! serde stops at the first error. To report all of them, the invalid setting is removed and the rest is read again.

use super::errors::ConfigError;
use super::settings::{
    EntryPath, FileParts, SettingNames, Settings, built_in_defaults, is_placeholder, split,
};
use super::value::Size;
use super::{Config, UncheckedConfig};
use crate::store::mask_password;
use refrain_wire::similar_names;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

/// The setting whose default depends on another.
const SHED_ABOVE: &str = "limits.shed_above";
/// The table of the servers behind a gateway, and its names in the configurations of hosts.
const BACKENDS: &str = "backends";
const HOST_TABLES: [&str; 2] = ["mcpServers", "servers"];
/// The tables of a gateway's own settings.
const GATEWAY_TABLES: [&str; 2] = ["gateway", BACKENDS];
/// How the parser's errors about a text without quotes begin, if it starts like another kind of value.
const UNQUOTED_TEXT: [&str; 6] = [
    "invalid boolean",
    "invalid date",
    "invalid float",
    "invalid integer",
    "invalid mantissa",
    "invalid time",
];

/// The positions of settings and tables in a file, by name.
pub(super) type Spans = BTreeMap<String, Range<usize>>;

impl Default for Config {
    fn default() -> Self {
        static CONFIG: LazyLock<Config> = LazyLock::new(|| {
            read(built_in_defaults().clone()).expect("a test reads defaults.toml")
        });
        CONFIG.clone()
    }
}

fn read<T: DeserializeOwned>(table: DeTable<'_>) -> Result<T, Error> {
    T::deserialize(Deserializer::from(Spanned::new(0..0, table)))
}

impl<C: DeserializeOwned> UncheckedConfig<C> {
    pub(super) fn parse(settings: &Settings, file: &Path, text: &str) -> Self {
        let (table, errors) = DeTable::parse_recoverable(text);
        let table = table.into_inner();
        let mut parsed = Self {
            config: Config::default(),
            own: None,
            file: file.to_owned(),
            text: text.to_owned(),
            spans: Spans::new(),
            // The values in malformed TOML are guesses: only the syntax errors are reported.
            errors: errors
                .iter()
                .map(|error| syntax_error(text, error))
                .collect(),
            invalid: Vec::new(),
            has_settings: settings.names.occur_in(text),
            explain: None,
            is_worker: false,
            is_of_gateway: false,
        };
        if !errors.is_empty() {
            if !parsed.has_settings {
                // Without known settings it is another kind of file, in which each line would be an error.
                parsed.errors.truncate(1);
                for error in &mut parsed.errors {
                    error.message = format!("not a configuration file in TOML: {}", error.message);
                }
            }
            return parsed;
        }
        let names = &settings.names;
        parsed.is_of_gateway = GATEWAY_TABLES.iter().any(|name| {
            let value = table.get(*name).map(Spanned::get_ref);
            matches!(value, Some(DeValue::Table(_))) && !names.is_table(name)
        });
        collect_spans(names, None, &table, &mut parsed.spans);
        let defaults = settings.defaults();
        let FileParts { built_in, own } = settings.split(table);
        if let Some(config) = parsed.read_part(names, built_in, &defaults.built_in) {
            parsed.config = config;
        }
        parsed.own = parsed.read_part(names, own, &defaults.own);
        if !parsed.spans.contains_key(SHED_ABOVE) {
            let limits = &mut parsed.config.limits;
            let calls = usize::from(limits.concurrent_calls) as u64;
            limits.shed_above = Size::new(calls - calls / 4);
        }
        parsed
    }

    /// Reads a part of the file without its invalid entries. `None`: the error is in no entry.
    fn read_part<'a, T: DeserializeOwned>(
        &mut self,
        names: &SettingNames,
        mut table: DeTable<'a>,
        defaults: &DeTable<'a>,
    ) -> Option<T> {
        // The tables from which an invalid entry was removed. An error about such a table as a
        // whole may be a consequence.
        let mut reduced = BTreeSet::new();
        loop {
            let mut whole = table.clone();
            fill(&mut whole, defaults);
            let error = match read(whole) {
                Ok(part) => return Some(part),
                Err(error) => error,
            };
            // An error of the whole file has an empty position.
            let span = error.span().filter(|span| !span.is_empty());
            let entry = span
                .as_ref()
                .and_then(|span| take_entry(names, None, &mut table, span));
            let message = match &entry {
                Some(entry) => entry.message(names, error.message()),
                None => describe(None, error.message()),
            };
            if !reduced.contains(&entry.as_ref().map(|entry| entry.path.name.clone())) {
                self.errors.push(ConfigError { span, message });
            }
            let entry = entry?;
            reduced.insert(entry.table.map(|table| table.name));
            self.spans.remove(&entry.path.name);
            if !is_unknown(error.message()) {
                self.invalid.push(entry.path.name);
            }
        }
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
    let message = error.message();
    let may_be_text = UNQUOTED_TEXT.iter().any(|start| message.starts_with(start));
    let message = match is_empty {
        true => "missing value".to_owned(),
        false if may_be_text => format!("{message}; if this is a text, put it in quotes"),
        false => message.to_owned(),
    };
    ConfigError { span, message }
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

fn collect_spans(
    names: &SettingNames,
    table: Option<&EntryPath>,
    entries: &DeTable<'_>,
    spans: &mut Spans,
) {
    for (key, value) in entries {
        let path = names.path(table, key.get_ref());
        match value.get_ref() {
            DeValue::Table(entries) if names.is_table(&path.pattern) => {
                collect_spans(names, Some(&path), entries, spans);
                spans.insert(path.name, key.span());
            }
            _ => drop(spans.insert(path.name, value.span())),
        }
    }
}

/// An entry that was removed because of an error, with its table.
struct ConfigEntry {
    path: EntryPath,
    table: Option<EntryPath>,
    key: String,
    is_table: bool,
    /// Whether the position is in one item of a list.
    is_item: bool,
    /// The full name of the value at the position, if it is in a table with free keys.
    member: Option<String>,
}

impl ConfigEntry {
    fn message(&self, names: &SettingNames, error: &str) -> String {
        match is_unknown(error) {
            true => self.unknown(names),
            false if self.is_item => {
                describe(Some(&format!("each item of {}", self.path.name)), error)
            }
            false => {
                let name = self.member.as_deref().unwrap_or(&self.path.name);
                describe(Some(name), error)
            }
        }
    }

    /// The message about an unknown setting, with a suggestion if there is one.
    fn unknown(&self, names: &SettingNames) -> String {
        let key = self.key.as_str();
        let table = self.table.as_ref().map(|table| table.pattern.as_str());
        let section = self.table.as_ref();
        let section = section.map_or_else(String::new, |table| format!(" in [{}]", table.name));
        let message = format!("unknown setting {key:?}{section}");
        let all = || names.settings.iter().chain(&names.tables).map(|n| split(n));
        let elsewhere = || all().filter(|(other, name)| *name == key && *other != table);
        let is_subtable = |other: &str| table == split(other).0;
        let inside = elsewhere().find(|(other, _)| other.is_some_and(is_subtable));
        if let Some((other, _)) = inside.or_else(|| elsewhere().next()) {
            let other = other.map_or("the top of the file".into(), |other| format!("[{other}]"));
            return format!("{message}; move it to {other}");
        }
        if table.is_none() && HOST_TABLES.contains(&key) && names.is_table(BACKENDS) {
            return format!("{message}; did you mean {BACKENDS:?}?");
        }
        let similar = names
            .children(self.table.as_ref())
            .filter(|name| names.is_table(name) == self.is_table && !is_placeholder(name))
            .map(|name| split(name).1);
        match similar_names(key, similar).first() {
            Some(name) => format!("{message}; did you mean {name:?}?"),
            None => message,
        }
    }
}

fn is_unknown(error: &str) -> bool {
    error.starts_with("unknown field ")
}

/// An error of serde as a sentence about the setting or table `name`.
fn describe(name: Option<&str>, error: &str) -> String {
    if let Some(field) = error.strip_prefix("missing field ") {
        let section = name.map_or_else(String::new, |name| format!(" in [{name}]"));
        return format!("missing setting {:?}{section}", field.trim_matches('`'));
    }
    let Some(name) = name else {
        return error.to_owned();
    };
    let kinds = ["invalid type: ", "invalid value: ", "unknown variant "];
    let types = kinds.iter().find_map(|kind| error.strip_prefix(kind));
    let Some((found, expected)) = types.and_then(|types| types.split_once(", expected ")) else {
        let error = error.replace("integer number overflowed", "is too large");
        return format!("{name} {error}");
    };
    let to_toml = |kind| match kind {
        "a sequence" | "sequence" => "a list",
        "a map" | "map" => "a table",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "0 or a positive whole number",
        kind => kind,
    };
    let (expected, list_item) = (to_toml(expected), found.strip_prefix("string "));
    // The value may contain a password.
    mask_password(&match list_item.filter(|_| expected == "a list") {
        Some(item) => {
            let words = item.trim_matches('"').split_whitespace();
            let words: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
            format!(
                "{name} must be a list, like [{}], not a string",
                words.join(", ")
            )
        }
        None => format!("{name} must be {expected}, not {}", to_toml(found)),
    })
}

/// Removes the entry whose key or value contains a position.
fn take_entry(
    names: &SettingNames,
    table: Option<&EntryPath>,
    entries: &mut DeTable<'_>,
    at: &Range<usize>,
) -> Option<ConfigEntry> {
    let mut found = None;
    for (key, value) in entries.iter_mut() {
        let path = names.path(table, key.get_ref());
        if let DeValue::Table(entries) = value.get_mut()
            && names.is_table(&path.pattern)
            && let Some(entry) = take_entry(names, Some(&path), entries, at)
        {
            return Some(entry);
        }
        if key.span() == *at || contains(value, at) {
            let member = match value.get_ref() {
                DeValue::Table(entries) => entries.iter().find(|(_, value)| contains(value, at)),
                _ => None,
            };
            let member = member.map(|(key, _)| names.path(Some(&path), key.get_ref()).name);
            found = Some(ConfigEntry {
                path,
                table: table.cloned(),
                key: key.get_ref().to_string(),
                is_table: matches!(value.get_ref(), DeValue::Table(_)),
                is_item: value.span() != *at && matches!(value.get_ref(), DeValue::Array(_)),
                member,
            });
            break;
        }
    }
    entries.remove(found.as_ref()?.key.as_str());
    found
}

/// Whether a position is in a value. The position of a table is only its header.
fn contains(value: &Spanned<DeValue<'_>>, at: &Range<usize>) -> bool {
    let span = value.span();
    (span.start <= at.start && at.end <= span.end)
        || match value.get_ref() {
            DeValue::Table(entries) => entries
                .iter()
                .any(|(key, value)| key.span() == *at || contains(value, at)),
            DeValue::Array(items) => items.iter().any(|item| contains(item, at)),
            _ => false,
        }
}
