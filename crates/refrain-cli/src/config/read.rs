//! A file read into a configuration, setting by setting.

use super::mistake::Mistake;
use super::settings::{SETTINGS, SHED_ABOVE, Setting, split};
use super::{Config, Loaded};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The places of values, by the names of their settings.
type From = BTreeMap<&'static str, Range<usize>>;

/// How much a name must look like another to be taken for it.
const ALIKE: f64 = 0.8;

/// Reads a text, and what is wrong with it.
pub(super) fn read(text: &str, loaded: &mut Loaded) {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // What such a text means is a guess: nothing else is said about it.
        let mistake = |error: &toml::de::Error| Mistake {
            span: error.span(),
            message: error.message().to_owned(),
        };
        loaded.mistakes = errors.iter().map(mistake).collect();
        return;
    }
    loaded.table(None, table.get_ref());
    if !loaded.from.contains_key(SHED_ABOVE) {
        let calls = loaded.config.limits.concurrent_calls;
        loaded.config.limits.shed_above = calls - calls / 4;
    }
}

/// What makes no sense only together.
pub(super) fn check(config: &Config, from: &From) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut mistake = |name: &str, message: String| {
        mistakes.push(Mistake {
            span: from.get(name).cloned(),
            message: format!("{name} {message}"),
        });
    };
    let (shed, calls) = (config.limits.shed_above, config.limits.concurrent_calls);
    if shed > calls {
        let message =
            format!("must be at most limits.concurrent_calls, which is {calls}, not {shed}");
        mistake(SHED_ABOVE, message);
    }
    if config.peers.urls.is_some() && config.peers.name.is_none() {
        let message = "needs peers.name, or --peer-name: which of them this instance is";
        mistake("peers.urls", message.into());
    }
    if let (Some(name), Some(urls)) = (&config.peers.name, &config.peers.urls)
        && !urls.contains_key(name)
    {
        let message =
            format!("is {name:?}, which peers.urls does not name: all instances share that list");
        mistake("peers.name", message);
    }
    if let Some(Err(error)) = config.peers.peers().map(|peers| peers.check()) {
        mistake("peers.urls", format!("is of no use: {error}"));
    }
    if config.metrics == Some(config.listen) && config.listen.port() != 0 {
        mistake("metrics", "must be another port than that of listen".into());
    }
    mistakes
}

impl Loaded {
    /// Reads the table of this name, or the whole file.
    fn table(&mut self, table: Option<&str>, entries: &DeTable<'_>) {
        for (key, value) in entries {
            let name = match table {
                Some(table) => format!("{table}.{}", key.get_ref()),
                None => key.get_ref().to_string(),
            };
            match Setting::find(&name) {
                Some(setting) => self.setting(setting, value),
                None => match (tables().find(|known| *known == name), value.get_ref()) {
                    (Some(known), DeValue::Table(entries)) => {
                        self.from.insert(known, key.span());
                        self.config.auth.open(known);
                        self.table(Some(known), entries);
                    }
                    (Some(_), _) => {
                        self.wrong(value.span(), format!("{name} must be a table: [{name}]"));
                    }
                    (None, _) => {
                        self.wrong(key.span(), unknown(table, key.get_ref(), value.get_ref()));
                    }
                },
            }
        }
    }

    fn setting(&mut self, setting: &'static Setting, value: &Spanned<DeValue<'_>>) {
        match setting.put(&mut self.config, value) {
            Ok(()) => drop(self.from.insert(setting.name, value.span())),
            Err(reason) => {
                self.unread.push(setting.name);
                self.wrong(value.span(), format!("{} {reason}", setting.name));
            }
        }
    }

    fn wrong(&mut self, span: Range<usize>, message: String) {
        let span = Some(span);
        self.mistakes.push(Mistake { span, message });
    }
}

/// The names of the tables, with those that they are in.
fn tables() -> impl Iterator<Item = &'static str> {
    let mut last = None;
    let all = SETTINGS.iter().filter_map(|setting| setting.path().0);
    all.filter(move |table| last.replace(*table) != Some(*table))
}

/// What to say about a key that nothing is known of.
fn unknown(table: Option<&str>, key: &str, value: &DeValue<'_>) -> String {
    let place = table.map_or_else(String::new, |table| format!(" in [{table}]"));
    let said = format!("there is no setting {key:?}{place}");
    let settings = || SETTINGS.iter().map(Setting::path);
    let tables = || tables().map(split);
    let mut elsewhere = settings().chain(tables());
    if let Some((other, _)) = elsewhere.find(|(other, name)| *name == key && *other != table) {
        let other = other.map_or("the top of the file".into(), |other| format!("[{other}]"));
        return format!("{said}; it belongs into {other}");
    }
    let here = |(other, name)| (other == table).then_some(name);
    let names: Vec<&str> = match value {
        DeValue::Table(_) => tables().filter_map(here).collect(),
        _ => settings().filter_map(here).collect(),
    };
    let alike = |name: &&&str| strsim::jaro_winkler(name, key) >= ALIKE;
    let nearest = names
        .iter()
        .filter(alike)
        .max_by(|a, b| strsim::jaro_winkler(a, key).total_cmp(&strsim::jaro_winkler(b, key)));
    match nearest {
        Some(name) => format!("{said}; did you mean {name:?}?"),
        None => said,
    }
}
