//! The settings of a program: those of `defaults.toml`, then its own.

use crate::AppError;
use std::sync::LazyLock;
use toml::de::{DeTable, DeValue};

/// The built-in settings with their defaults. Settings without a default are commented out.
pub(super) const DEFAULTS: &str = include_str!("defaults.toml");

/// The names and defaults of all settings of a program.
pub(crate) struct Settings {
    /// The name of the program, for hints.
    pub(super) program: &'static str,
    pub(super) names: SettingNames,
    /// The program's own settings, in the format of [`DEFAULTS`].
    pub(super) own_text: &'static str,
    own_defaults: DeTable<'static>,
    /// The top-level tables of the program's own settings.
    own_tables: Vec<String>,
}

/// The two parts of a configuration file.
pub(super) struct FileParts<'a> {
    pub(super) built_in: DeTable<'a>,
    pub(super) own: DeTable<'a>,
}

impl Settings {
    /// The built-in settings, and those in `own`: tables with a default for each setting.
    pub(crate) fn new(program: &'static str, own: &'static str) -> Result<Self, AppError> {
        let invalid = |reason: &str| format!("invalid settings of this program: {reason}");
        let own_defaults = DeTable::parse(own)
            .map_err(|error| invalid(&error.to_string()))?
            .into_inner();
        let mut own_names = SettingNames::default();
        own_names.add(own);
        let mut names = SettingNames::default();
        names.add(DEFAULTS);
        let top = |name: &&String| split(name).0.is_none();
        let outside = own_defaults
            .iter()
            .find(|(_, value)| !matches!(value.get_ref(), DeValue::Table(_)))
            .map(|(key, _)| key.get_ref().to_string());
        if let Some(name) = outside.or(own_names.settings.iter().find(top).cloned()) {
            return Err(invalid(&format!("{name:?} must be in a table")).into());
        }
        let own_tables: Vec<String> = own_names.tables.iter().filter(top).cloned().collect();
        if let Some(name) = own_tables.iter().find(|name| names.is_known(name)) {
            return Err(invalid(&format!("{name:?} is a built-in setting")).into());
        }
        names.add(own);
        Ok(Self {
            program,
            names,
            own_text: own,
            own_defaults,
            own_tables,
        })
    }

    pub(super) fn defaults(&self) -> FileParts<'static> {
        FileParts {
            built_in: built_in_defaults().clone(),
            own: self.own_defaults.clone(),
        }
    }

    pub(super) fn split<'a>(&self, mut table: DeTable<'a>) -> FileParts<'a> {
        let mut own = DeTable::new();
        for name in &self.own_tables {
            if let Some((key, value)) = table.remove_entry(name.as_str()) {
                own.insert(key, value);
            }
        }
        FileParts {
            built_in: table,
            own,
        }
    }
}

pub(super) fn built_in_defaults() -> &'static DeTable<'static> {
    static TABLE: LazyLock<DeTable<'static>> = LazyLock::new(|| {
        let table = DeTable::parse(DEFAULTS).expect("a test reads defaults.toml");
        table.into_inner()
    });
    &TABLE
}

/// The names of settings and tables, in the order of the TOML text. A component in upper case, as in `backends.NAME`, is a
/// placeholder for any key.
#[derive(Default)]
pub(super) struct SettingNames {
    pub(super) settings: Vec<String>,
    pub(super) tables: Vec<String>,
}

/// The place of a setting or table.
#[derive(Clone, Debug)]
pub(super) struct EntryPath {
    /// The name in the file, like `backends.files`.
    pub(super) name: String,
    /// The name in [`SettingNames`], like `backends.NAME`.
    pub(super) pattern: String,
}

impl SettingNames {
    /// Adds the settings of a text, commented out or not.
    fn add(&mut self, text: &str) {
        let mut table = None;
        for line in text.lines() {
            let line = line.strip_prefix("# ").unwrap_or(line);
            let header = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            if let Some((name, _)) = header.filter(|(name, _)| name.split('.').all(is_bare)) {
                self.add_table(name);
                table = Some(name);
            } else if let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| is_bare(key)) {
                self.settings.push(join(table, key));
            }
        }
    }

    fn add_table(&mut self, name: &str) {
        if let (Some(parent), _) = split(name) {
            self.add_table(parent);
        }
        if !self.is_table(name) {
            self.tables.push(name.to_owned());
        }
    }

    pub(super) fn is_table(&self, pattern: &str) -> bool {
        self.tables.iter().any(|table| table == pattern)
    }

    fn is_known(&self, pattern: &str) -> bool {
        self.is_table(pattern) || self.settings.iter().any(|setting| setting == pattern)
    }

    /// Whether a line has the key of a setting of any table, or opens a table that is known. The text may be malformed.
    pub(super) fn occur_in(&self, text: &str) -> bool {
        text.lines().map(str::trim_start).any(|line| {
            if let Some(header) = line.strip_prefix('[') {
                let name = header.split(['.', ']']).next().unwrap_or_default();
                return self.is_table(name.trim());
            }
            let key = line.split_once('=').map_or("", |(key, _)| key.trim_end());
            let key = split(key).1;
            self.settings.iter().any(|name| split(name).1 == key)
        })
    }

    /// The patterns of the settings in a table, then those of its tables.
    pub(super) fn children(&self, table: Option<&EntryPath>) -> impl Iterator<Item = &str> {
        let table = table.map(|table| table.pattern.as_str());
        let all = self.settings.iter().chain(&self.tables);
        all.map(String::as_str)
            .filter(move |name| split(name).0 == table)
    }

    /// The path of an entry in a table.
    pub(super) fn path(&self, table: Option<&EntryPath>, key: &str) -> EntryPath {
        let mut pattern = join(table.map(|table| table.pattern.as_str()), key);
        if !self.is_known(&pattern)
            && let Some(any) = self.children(table).find(|name| is_placeholder(name))
        {
            pattern = any.to_owned();
        }
        let parent = table.map(|table| table.name.as_str());
        let name = match is_bare(key) {
            true => join(parent, key),
            false => join(parent, &format!("{key:?}")),
        };
        EntryPath { name, pattern }
    }
}

/// Whether a pattern stands for any key of its table.
pub(super) fn is_placeholder(pattern: &str) -> bool {
    let (_, key) = split(pattern);
    key.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Whether a key needs no quotes.
fn is_bare(key: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    !key.is_empty() && key.chars().all(is_plain)
}

fn join(table: Option<&str>, key: &str) -> String {
    match table {
        Some(table) => format!("{table}.{key}"),
        None => key.to_owned(),
    }
}

/// The table and the key of a pattern.
pub(super) fn split(pattern: &str) -> (Option<&str>, &str) {
    match pattern.rsplit_once('.') {
        Some((table, key)) => (Some(table), key),
        None => (None, pattern),
    }
}
